"""A picture of a choice: what each candidate finds, and queries a second, forecast and measured."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from steelyard.retrieve.choosing import Chosen, IndexCandidate

__all__ = ["CandidatePoint", "candidate_chart", "choice_chart"]

_HEIGHT = 340
_CHOICE = "#b0235f"


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidatePoint:
    """A candidate, as it was forecast or as it was measured.

    Attributes:
        index: what it is a setting of; gives the color.
        setting: the setting in words; a line joins both points of one.
        found: what it finds, 0 to 1.
        rate: queries a second on one thread.
        is_measured: whether both were measured.
        is_chosen: whether it is the choice.
    """

    index: str
    setting: str
    found: float
    rate: float
    is_measured: bool
    is_chosen: bool = False


def candidate_chart(
    points: Sequence[CandidatePoint],
    *,
    title: str,
    found: str = "share of the true neighbours that is found",
    told: str = "hollow: forecast before it was tried; filled: measured; the circle is the choice",
    goal: float | None = None,
    is_share: bool = True,
    names: bool = False,
) -> dict[str, Any]:
    """Draw queries a second over what is found.

    Args:
        points: one or two of each candidate.
        title: what the picture shows.
        found: title of the axis of what is found.
        told: what points mean.
        goal: what was asked for; a line stands there.
        is_share: whether what is found is told in percent.
        names: whether the setting stands beside each measured point.

    Returns:
        Vega-Lite spec: a hollow point for each forecast, a filled one for each measurement, a line
        between both of one candidate, a circle around the chosen one.
    """
    import altair as alt

    from steelyard.runs import layers

    rows = [asdict(point) for point in points]
    lowest = min([point.found for point in points] + ([] if goal is None else [goal]))
    # What is found is a share of all there is to find; other scores are told beside each other.
    ends = max(lowest - max(0.02, 0.1 * (1 - lowest)), 0.0), 1.0
    if not is_share:
        highest = max(point.found for point in points)
        ends = (0.9 * lowest, 1.1 * highest)
    seen = alt.Scale(domain=list(ends), nice=False)
    shown = alt.Chart(layers.values(rows)).encode(
        x=alt.X(
            "found:Q", title=found, axis=alt.Axis(format=".1%" if is_share else ".2f"), scale=seen
        ),
        y=alt.Y("rate:Q", title="queries a second, one thread", scale=alt.Scale(zero=True)),
        color=alt.Color("index:N", title="index", sort=None),
        detail="setting:N",
        tooltip=["setting:N", "found:Q", "rate:Q"],
    )
    lines = shown.mark_line(strokeWidth=1, opacity=0.6)
    said = shown.mark_point(size=60, filled=False).transform_filter("!datum.is_measured")
    came = shown.mark_point(size=70, filled=True, opacity=1).transform_filter("datum.is_measured")
    best = shown.mark_point(size=300, strokeWidth=2.5, filled=False)
    best = best.encode(color=alt.value(_CHOICE)).transform_filter(
        "datum.is_chosen && datum.is_measured"
    )
    drawn = lines + said + came + best
    if names:
        text = shown.mark_text(align="left", dx=9, dy=4).encode(text="setting:N")
        drawn += text.transform_filter("datum.is_measured")
    if goal is not None:
        wanted = alt.Chart(layers.values([{"found": goal}]))
        drawn = (
            wanted.mark_rule(strokeDash=[4, 4], opacity=0.7).encode(x=alt.X("found:Q", scale=seen))
            + drawn
        )
    named = alt.TitleParams(title, subtitle=told)
    return layers.finish(drawn.properties(width=layers.PLOT_WIDTH, height=_HEIGHT, title=named))


def choice_chart(chosen: Chosen, goal: float) -> dict[str, Any]:
    """Draw the candidates of a choice.

    Args:
        chosen: the choice and what it was chosen from.
        goal: the recall that was asked for.

    Returns:
        Vega-Lite spec, see `candidate_chart`.
    """
    points = [point for item in chosen.candidates for point in _points(item, item is chosen.best)]
    if not any(point.is_chosen for point in points):
        points += _points(chosen.best, True)
    return candidate_chart(points, title="What each index finds, and how fast", goal=goal)


def _points(item: IndexCandidate, is_chosen: bool) -> list[CandidatePoint]:
    """Return the points of a candidate."""
    common: dict[str, Any] = {
        "index": item.index,
        "setting": f"{item.index}, {item.nprobe} cells, {item.rerank} candidates",
        "is_chosen": is_chosen,
    }
    said = item.expected_recall or item.recall
    found = [CandidatePoint(found=said, rate=1 / item.forecast_s, is_measured=False, **common)]
    if item.measured_s:
        rate = 1 / item.measured_s
        found.append(CandidatePoint(found=item.recall, rate=rate, is_measured=True, **common))
    return found
