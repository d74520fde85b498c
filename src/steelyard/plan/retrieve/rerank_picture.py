"""A picture of hits: what is guessed after a share of the search, and where reads begin."""

from typing import Any

from steelyard.plan.retrieve.rerank import RerankPlan

__all__ = ["hit_chart"]

_HEIGHT = 300


def hit_chart(plan: RerankPlan) -> dict[str, Any]:
    """Draw the share of candidates that are guessed early over the share of the search.

    Args:
        plan: the chosen design and the others.

    Returns:
        Vega-Lite spec: a line for each number of ranked documents, a circle for the chosen design.
    """
    import altair as alt

    from steelyard.runs import layers

    designs = [plan.best, *(item for item, _ in plan.others)]
    rows = [
        {
            "share": item.prefetch_step,
            "rate": item.hit_rate,
            "ranked": f"{item.rerank:>3} documents",
            "chosen": item is plan.best,
        }
        for item in designs
        if item.prefetch_step < 1
    ]
    shown = alt.Chart(layers.values(rows)).encode(
        x=alt.X(
            "share:Q",
            title="share of the search before reads begin",
            axis=_percent(alt),
            scale=alt.Scale(zero=True),
        ),
        y=alt.Y(
            "rate:Q",
            title="candidates that are read early",
            axis=_percent(alt),
            scale=alt.Scale(domain=[0, 1]),
        ),
    )
    lines = shown.mark_line(point=True).encode(
        color=alt.Color("ranked:N", title="ranked by tokens", sort=None)
    )
    chosen = shown.mark_point(size=260, strokeWidth=2.5, color="#b0235f").transform_filter(
        "datum.chosen"
    )
    is_early = plan.best.prefetch_step < 1
    told = "the circle is the chosen design" if is_early else "the chosen design reads at the end"
    title = alt.TitleParams(
        "What a prefetch guesses", subtitle=f"measured on sample queries; {told}"
    )
    drawn = (lines + chosen).properties(width=layers.PLOT_WIDTH, height=_HEIGHT, title=title)
    return layers.finish(drawn)


def _percent(alt: Any) -> Any:
    """Return an axis in percent."""
    return alt.Axis(format=".0%")
