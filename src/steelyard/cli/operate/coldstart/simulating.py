"""`steelyard operate coldstart simulate`: policies side by side on one workload."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.jit import compiling_told
from steelyard.operate.coldstart.compare import ORACLE, POLICIES, PolicyOutcome, compare
from steelyard.operate.coldstart.generate import WorkloadGenerator
from steelyard.operate.coldstart.keepalive import FixedKeepAlive
from steelyard.operate.coldstart.loading import load_workload
from steelyard.operate.coldstart.pictures import mean_parts, waterfall
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text
from steelyard.sim.serverless import Platform, StartUp, Workload
from steelyard.sim.serverless.published import published_platform, published_start_ups
from steelyard.units import parse, pretty, pretty_duration

__all__ = ["RequestOptions", "simulate"]

_MOST_STARTS = 2_000_000
_PUBLISHED_PER_DAY = 66_870
"""Cold starts of the published region per day."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Requests that are simulated, from traces or made.

    Args:
        functions: Huawei's table of runtimes and triggers by funcID.
        durations: Azure 2019's table of durations.
        runtime: start-up of functions whose runtime the traces do not tell.
        days: length of a made workload.
        cold_starts: cold starts per day to which a workload is made, with pods kept for 60 s.
        slots: requests that a pod serves at a time.
        seed: seed of the workload and of the start-ups.
    """

    functions: Path | None = None
    durations: Path | None = None
    runtime: str = "Python3"
    days: float = 7.0
    cold_starts: float = 3000.0
    slots: int = 1
    seed: int = 0

    def work(self, traces: Sequence[Path]) -> Workload:
        """Return the requests of traces, or made ones where none is given."""
        if not traces:
            maker = WorkloadGenerator(
                days=self.days, cold_starts_per_day=self.cold_starts, slots=self.slots
            )
            return maker.make(self.seed)
        tables: dict[str, Any] = {"functions": self.functions, "durations": self.durations}
        return load_workload(
            traces, runtime=self.runtime, slots=self.slots, seed=self.seed, **tables
        )


def simulate(
    # A docstring's words for it are not read: its name there has a star.
    *traces: Annotated[
        Path,
        Parameter(
            help="tables of requests: Huawei's, or Azure's of 2019 or 2021; made when left out."
        ),
    ],
    options: RequestOptions | None = None,
    policies: str = "fixed,fixed-10min,histogram,utility,timer,timer+utility",
    wait_cost: float = 30.0,
    weights: str = "",
    storage_rate: str = "2 GB/s",
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Compare policies against cold starts on the same requests: starts, waits, pods, regret.

    Example: steelyard operate coldstart simulate --days 3 --policies fixed,timer --report cold.html

    Args:
        *traces: tables of requests: Huawei's, or Azure's of 2019 or 2021; made when left out.
        options: requests that are simulated.
        policies: names separated by commas: fixed, fixed-10min, histogram, utility, timer,
            timer+utility, timer+chain, forecast, delay.
        wait_cost: pod-seconds that a second of waiting for a start is worth.
        weights: size of an inference engine's weights, such as "16 GB": every pod starts one.
        storage_rate: rate at which they are read.
        json: print figures as JSON.
        report: HTML file for the page with pictures.
    """
    asked, chosen = options or RequestOptions(), _policies(policies)
    _check(asked, wait_cost)
    work = asked.work(traces)
    platform = _platform(work, asked.cold_starts, weights, storage_rate)
    with compiling_told("the simulator", 10):
        found = compare(platform, work, chosen, seed=asked.seed, wait_cost=wait_cost)
    source = ", ".join(path.name for path in traces) or "made to the published shares"
    values = _values(found, work) | {"source": source, "seed": asked.seed, "wait_cost": wait_cost}
    print_report(_page(found, work, source), json=json, html=report, values=values)


def _values(found: list[PolicyOutcome], work: Workload) -> dict[str, Any]:
    """Return the figures for programs."""
    policies = [
        {"name": item.name, "cost_s": item.cost_s, "regret": item.regret} | item.result.summary()
        for item in found
    ]
    return {
        "requests": len(work),
        "functions": len(work.functions),
        "provenance": "simulated",
        "policies": policies,
    }


def _policies(words: str) -> dict[str, dict[str, Any]]:
    """Return the policies that are named."""
    names = [name.strip() for name in words.split(",") if name.strip()]
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        raise ConfigError(
            f"--policies is {words!r}, but must name some of {', '.join(POLICIES)}",
            hint="separate names by commas",
        )
    return {name: POLICIES[name] for name in names}


def _check(asked: RequestOptions, wait_cost: float) -> None:
    """Refuse options out of range, in the words of the flags."""
    days, cold_starts = asked.days, asked.cold_starts
    for flag, value, good, allowed in (
        ("--days", days, days > 0, "above 0"),
        ("--cold-starts", cold_starts, cold_starts > 0, "above 0"),
        ("--slots", asked.slots, asked.slots >= 1, "at least 1"),
        ("--wait-cost", wait_cost, wait_cost >= 0, "0 or more"),
        ("--seed", asked.seed, asked.seed >= 0, "0 or more"),
    ):
        if not good:
            raise ConfigError(f"{flag} is {value}, but must be {allowed}")
    if days * cold_starts > _MOST_STARTS:
        raise ConfigError(
            f"--days {days:g} with --cold-starts {cold_starts:g} are more than {_MOST_STARTS:,} "
            "cold starts",
            hint="take fewer; shares do not depend on the size",
        )


def _platform(work: Workload, cold_starts: float, weights: str, rate: str) -> Platform:
    """Return the published region at the workload's size, or one whose pods are engines."""
    keep_alive = FixedKeepAlive()
    if not weights:
        platform = published_platform(keep_alive, scale=cold_starts / _PUBLISHED_PER_DAY)
        known = published_start_ups()
        unknown = sorted({item.runtime for item in work.functions} - set(known))
        if unknown:
            raise ConfigError(
                f"start-ups of {', '.join(unknown)} are not known, but of {', '.join(known)}",
                hint="name one of these with --runtime, or correct --functions",
            )
        return platform
    size = parse(weights, "byte", where="--weights")
    speed = parse(rate, "byte/s", where="--storage-rate")
    if size <= 0 or speed <= 0:
        raise ConfigError(f"--weights {weights} and --storage-rate {rate} must be above 0")
    start_up = StartUp.of_bytes(size, speed, process_s=0.5, imports_s=8.0, warm_up_s=10.0)
    runtimes = {item.runtime for item in work.functions}
    return Platform(start_ups=dict.fromkeys(sorted(runtimes), start_up), keep_alive=keep_alive)


def _page(found: list[PolicyOutcome], work: Workload, source: str) -> Report:
    """Make the page: the table and the waterfall."""
    subtitle = (
        f"{len(work):,} requests of {len(work.functions):,} functions in "
        f"{pretty_duration(work.horizon_s)}, {source}; simulated"
    )
    best = found[0]
    said = Text(
        f"**{best.name}** costs least. Regret is pod-seconds and waits at their price over those "
        f"of the best; the {ORACLE} knows when each function is called next."
    )
    parts = mean_parts(found[0].result, work)
    sections = [Section("Policies", [_table(found), said])]
    if parts:
        sections.append(Section("Where the time goes", [Chart(waterfall(parts))]))
    return Report("Policies against cold starts", subtitle, sections)


def _table(found: list[PolicyOutcome]) -> Table:
    """List every policy."""
    rows: list[list[Cell]] = []
    for item in found:
        figures = item.result.summary()
        waits = item.result.cold_wait_s
        rows.append(
            [
                item.name,
                f"{figures['cold_starts']:,.0f}",
                f"{figures['starts_ahead']:,.0f}",
                pretty(float(waits.mean()), "s") if len(waits) else "–",
                f"{figures['pod_s'] / 3600:,.1f}",
                f"{figures['peak_pods']:,.0f}",
                f"{figures['utility_p50']:.2g}",
                f"{item.regret:+.1%}",
            ]
        )
    heads = [
        Column("policy"),
        Column("cold starts", align="right"),
        Column("ahead", align="right", rank=2),
        Column("mean wait", align="right", rank=1),
        Column("pod-hours", align="right"),
        Column("peak pods", align="right", rank=2),
        Column("utility", align="right", rank=2),
        Column("regret", align="right"),
    ]
    return Table(heads, rows, caption="ahead: pods started before a request; utility: median ratio")
