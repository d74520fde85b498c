"""`steelyard operate forecast`: what comes next, how sure that is, and how good it was before."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.cli.operate.forecast_options import ModelOptions, SeriesOptions
from steelyard.cli.output import Switch, print_json
from steelyard.runs.report import Block, Cell, Chart, Column, Facts, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.operate.forecast import SampleForecast
    from steelyard.operate.forecast.choosing import ChosenForecaster
    from steelyard.operate.forecast.together import ChosenTogether
    from steelyard.operate.series import SeriesSet

__all__ = ["forecast"]

_MOST_CHARTS = 8
_TOO_SHORT = (
    "The series are too short to try anything on their own past: at least four horizons are "
    "needed. The plainest rule is used."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ForecastAnswer:
    """What the verb found."""

    series: "SeriesSet"
    chosen: "ChosenForecaster | ChosenTogether"
    forecasts: "list[SampleForecast]"
    earlier: "list[SampleForecast] | None"
    held: dict[str, float]
    settled: tuple[int, float] = (0, float("nan"))
    run: str = ""


def forecast(
    file: str,
    *,
    horizon: int = 48,
    series: SeriesOptions | None = None,
    model: ModelOptions | None = None,
    store: str = "",
    no_keep: Switch = False,
    report: Path | None = None,
    chart: Path | None = None,
    json: Switch = False,
) -> None:
    """Forecast the next steps of series, with the record of rules and models on their own past.

    A model is used only where it beat the best simple rule on past windows. What is forecast is
    kept, and checked when a later call reads a file that holds the steps.

    Example: steelyard operate forecast series.csv --horizon 48 --report forecast.html

    Args:
        file: CSV, Parquet, a Prometheus range answer (.json), or rows of the CloudOps schema; also
            a folder, a pattern such as 'load/*.csv', and an address such as s3://bucket/load.
        horizon: steps to forecast.
        series: how the file is read.
        model: what is tried.
        store: folder of the run store; the user's own when left out.
        no_keep: neither keep the forecast nor check earlier ones.
        report: HTML file of the page.
        chart: file for the fan chart of the first series, .html, .svg, .png or .json.
        json: print JSON.
    """
    found = (series or SeriesOptions()).read(file)
    chosen = (model or ModelOptions()).chosen(found, horizon)
    answer = _answer(found, chosen, horizon)
    if not no_keep:
        answer = _kept(answer, file, store)
    if chart is not None:
        from steelyard.runs.save import save_chart

        save_chart(_chart(answer, 0), chart)
    page = _page(answer, Path(file).name, with_charts=report is not None)
    if report is not None:
        page.write_html(report)
    if json:
        print_json(_values(answer))
    else:
        _print(answer, page)


def _answer(
    series: "SeriesSet", chosen: "ChosenForecaster | ChosenTogether", horizon: int
) -> _ForecastAnswer:
    """Forecast, with intervals as wide as the past windows ask for."""
    from steelyard.operate.forecast.conformal import AdaptiveConformal

    # What is chosen is widened by its own past windows, whichever model or rule it is.
    corrected = AdaptiveConformal(chosen)
    held = corrected.learn(series, horizon, chosen.windows) if chosen.windows else {}
    return _ForecastAnswer(
        series=series,
        chosen=chosen,
        forecasts=corrected.predict(series, horizon),
        earlier=corrected.predict(series.before(horizon), horizon) if chosen.windows else None,
        held=held,
    )


def _kept(answer: _ForecastAnswer, source: str, store: str) -> _ForecastAnswer:
    """Settle what was forecast before, and keep what is forecast now."""
    from steelyard.operate.forecast.bookkeeping import held_share, remember, settle
    from steelyard.runs.store import RunStore

    opened = RunStore(store or None)
    checks = [pair for _, pair in settle(opened, answer.series)]
    run = remember(opened, source, answer.series, answer.forecasts)
    return replace(answer, settled=(len(checks), held_share(checks)), run=run)


def _page(answer: _ForecastAnswer, file: str, *, with_charts: bool) -> Report:
    """Make the page: what is used for each series and why, the record, and the fan charts."""
    series, chosen = answer.series, answer.chosen
    heads = [
        Column("Series"),
        Column("Used"),
        Column("Best rule", rank=2),
        *(Column(name, align="right") for name in ("Its CRPS", "Model's CRPS")),
        Column("Best model", rank=2),
        Column("80 % interval held", align="right"),
    ]
    rows = [_row(answer, name) for name in series.ids]
    note = _note(answer) if chosen.windows else _TOO_SHORT
    blocks: list[Block] = [Facts(_facts(answer)), Table(heads, rows, note)]
    charts: list[Block] = []
    if with_charts:
        charts = [Chart(_chart(answer, row)) for row in range(min(len(series), _MOST_CHARTS))]
        if len(series) > _MOST_CHARTS:
            charts.append(Text(f"Drawn are the first {_MOST_CHARTS} of {len(series)} series."))
    sections = [Section("", blocks), *([Section("What comes next", charts)] if charts else [])]
    return Report(f"Forecast of {file}", f"{len(series)} series", sections)


def _note(answer: _ForecastAnswer) -> str:
    """Say what the scores are, and when a model is used."""
    from steelyard.operate.forecast.together import ChosenTogether

    horizon = answer.forecasts[0].horizon
    scores = "relative to the size of the series; lower is better. "
    if isinstance(answer.chosen, ChosenTogether):
        return (
            f"CRPS over {answer.chosen.windows} past windows of {horizon} steps, {scores}"
            "Series on levels are forecast together: the model is used for all where it beat the "
            "best rules by geometric mean, else for none."
        )
    return (
        f"CRPS over the last {answer.chosen.windows} times {horizon} steps, forecast half a window "
        f"apart and {scores}A model is used only where it beat the best rule there."
    )


def _facts(answer: _ForecastAnswer) -> list[tuple[str, str, str]]:
    """Return the first things to know."""
    from steelyard.units import pretty_duration

    used = [item.used == item.model for item in answer.chosen.choices.values()]
    ahead_s = float(answer.series.step_s[0]) * answer.forecasts[0].horizon
    count, held = answer.settled
    words = f"{held:.0%} of {count:,} steps" if count else "none has come yet"
    known = [share for share in answer.held.values() if share == share]
    coverage = f"{sum(known) / len(known):.0%}" if known else "not tried"
    return [
        ("Ahead", f"{answer.forecasts[0].horizon} steps, {pretty_duration(ahead_s)}", ""),
        ("A model is used for", f"{sum(used)} of {len(used)} series", ""),
        ("80 % intervals held on past windows", coverage, ""),
        ("Earlier forecasts that came due: held", words, ""),
    ]


def _row(answer: _ForecastAnswer, name: str) -> list[Cell]:
    """Return the table's row of one series."""
    item = answer.chosen.choices[name]
    rule, model = (
        None if part is None else f"{part.crps:.4f}" for part in (item.rule_score, item.model_score)
    )
    share = answer.held.get(name, float("nan"))
    held = f"{share:.0%}" if share == share else None
    used = answer.forecasts[answer.series.index(name)].source
    return [name, used, item.rule, rule, model, item.model, held]


def _chart(answer: _ForecastAnswer, row: int) -> dict[str, Any]:
    """Draw one series."""
    from steelyard.operate.forecast.pictures import fan_chart

    one = answer.series.cut([row], [0], [answer.series.lengths[row]])
    earlier = answer.earlier[row] if answer.earlier else None
    made = answer.forecasts[row]
    return fan_chart(one, made, earlier=earlier, title=f"{one.ids[0]}, by {made.source}")


def _print(answer: _ForecastAnswer, page: Report) -> None:
    """Print the page, with the first series as a fan of characters."""
    from steelyard.cli.following import say_next
    from steelyard.cli.operate.fan import fan_lines
    from steelyard.runs.screen import screen

    page.print()
    console = screen()
    console.print(f"\n{answer.series.ids[0]}: seen (•), median (━) and 80 % interval (░)")
    for line in fan_lines(answer.series.row(0), answer.forecasts[0]):
        console.print(line, markup=False)
    if answer.run:
        say_next("runs", "ledger")


def _values(answer: _ForecastAnswer) -> dict[str, Any]:
    """Return what programs want to know."""
    count, held = answer.settled
    return {
        "windows": answer.chosen.windows,
        "settled": {"steps": count, "held": held if count else None},
        "run": answer.run,
        "series": [
            {
                "id": name,
                "used": answer.forecasts[row].source,
                "held": answer.held.get(name),
                "choice": asdict(answer.chosen.choices[name]),
                "first_s": float(answer.series.start_s[row])
                + float(answer.series.step_s[row]) * int(answer.series.lengths[row]),
                "step_s": float(answer.series.step_s[row]),
                "low": answer.forecasts[row].quantile(0.1).tolist(),
                "median": answer.forecasts[row].quantile(0.5).tolist(),
                "high": answer.forecasts[row].quantile(0.9).tolist(),
            }
            for row, name in enumerate(answer.series.ids)
        ],
    }
