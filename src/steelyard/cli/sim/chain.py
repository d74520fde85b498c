"""`steelyard sim chain`: from requests over replicas, watts and cooling to carbon by hour."""

from pathlib import Path
from typing import Any

from steelyard.cli.flags import flags
from steelyard.cli.output import Switch, print_report
from steelyard.cli.sim.chain_page import page, values
from steelyard.cli.sim.row_trace import requests_of
from steelyard.config import load
from steelyard.errors import ConfigError
from steelyard.operate.power import SCALERS, AnswerChain, ChainScenario, run_chain

__all__ = ["chain"]

_Flags = flags(ChainScenario)


def chain(
    recipe: Path | None = None,
    *,
    scaler: str = "all",
    trace: Path | None = None,
    high_share: float = 0.5,
    json: Switch = False,
    report: Path | None = None,
    chart: Path | None = None,
    options: _Flags | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Follow requests to servers, watts, cooling and carbon: joules and grams of an answer.

    Example: steelyard sim chain --servers 20 --days 1 --report chain.html

    Args:
        recipe: TOML file with the options, in their place.
        scaler: all-on, hpa, forecast, oracle, or all of them.
        trace: file of requests, in any format of serve bench; repeated for the time of the row. In
            place of the published mix by day and night; the forecast learns on that mix.
        high_share: share of the trace's requests that are of high priority, drawn.
        json: print figures as JSON, by hour too.
        report: HTML file for the page with the picture of the first day.
        chart: file for that picture alone, .html, .svg, .png or .json.
        options: the row, its load, its scaling and its site.
    """
    if recipe is not None and options is not None:
        raise ConfigError(f"options are part of the recipe {recipe}", hint="change them there")
    asked = load(recipe, ChainScenario) if recipe else options or ChainScenario()
    answer = _answer(asked, _names(scaler), trace, high_share)
    if chart is not None:
        from steelyard.runs.save import save_chart

        save_chart(_day(answer), chart)
    drawn = _day(answer) if report is not None else None
    print_report(page(answer, drawn), json=json, html=report, values=values(answer))


def _answer(
    asked: ChainScenario, scalers: tuple[str, ...], trace: Path | None, high_share: float
) -> AnswerChain:
    """Run the chain on the mix, or on a trace with its clients as kinds."""
    if trace is None:
        return run_chain(asked, scalers=scalers)
    requests, kinds = requests_of(trace, asked.row_scenario(), high_share)
    return run_chain(asked, scalers=scalers, requests=requests, kinds=kinds)


def _names(scaler: str) -> tuple[str, ...]:
    """Return the scalers that are asked for."""
    if scaler == "all":
        return SCALERS
    known = {name.replace(" ", "-"): name for name in SCALERS}
    if scaler not in known:
        raise ConfigError(
            f"--scaler is {scaler!r}, but must be one of {', '.join(known)} or all",
            hint="such as --scaler forecast",
        )
    return (known[scaler],)


def _day(answer: AnswerChain) -> dict[str, Any]:
    """Draw the first day."""
    from steelyard.operate.power.chain_pictures import chain_day

    return chain_day(answer)
