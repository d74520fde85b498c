"""The page of a service's plan: candidates, forecasts, attainment over the rate, the front."""

from typing import Any

import numpy as np

from steelyard.cli.output import forecast_table
from steelyard.plan.service.assumptions import Assumption
from steelyard.plan.service.case import ServiceCase
from steelyard.plan.service.over_trace import TraceFleet
from steelyard.plan.service.search import ServiceCandidate, ServiceSearch
from steelyard.plan.types import Plan
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text
from steelyard.units import pretty

__all__ = ["attainment_curves", "service_page"]

_SHOWN = 8
_CURVES = 3


def attainment_curves(search: ServiceSearch, found: list[ServiceCandidate]) -> dict[str, Any]:
    """Return attainment over the rate per accelerator of the best candidate of each kind.

    Args:
        search: the search.
        found: its candidates, the best first.

    Returns:
        For each, in words, "rate_per_accelerator" and "attainment".
    """
    firsts: dict[str, ServiceCandidate] = {}
    for item in found:
        if item.goodput and item.goodput.rate_per_s:
            firsts.setdefault(item.arrangement.kind, item)
    # One axis for all kinds: rates per accelerator, up to well beyond the best one's goodput.
    top = found[0].per_device
    curves = {}
    for kind, item in list(firsts.items())[:_CURVES]:
        devices = item.arrangement.num_devices
        per_device = np.linspace(0.3, 1.4, 23) * top
        seen = search.curve(item.arrangement, per_device * devices)
        curves[f"{kind}: {item.arrangement.words}"] = {
            "rate_per_accelerator": per_device.tolist(),
            "attainment": [point.both for point in seen],
        }
    return curves


def service_page(
    case: ServiceCase,
    plan: Plan,
    found: list[ServiceCandidate],
    curves: dict[str, Any],
    weak: list[Assumption],
    fleets: list[TraceFleet],
) -> Report:
    """Lay a plan out.

    Args:
        case: what was planned for.
        plan: the plan.
        found: candidates with the reasons why they lost, the best first.
        curves: curves that `attainment_curves` returned.
        weak: assumptions by what they cost.
        fleets: fleets over the whole trace, the best first; empty for none.

    Returns:
        The report.
    """
    from steelyard.runs.charts import loss_curves

    choice = plan.choice
    said = (
        f"{choice['instances']} x ({choice['words']}) = {choice['accelerators']} "
        f"{choice['accelerator']}, {choice['kind']}"
    )
    lines = {
        label.partition(":")[0]: (curve["rate_per_accelerator"], curve["attainment"])
        for label, curve in curves.items()
    }
    chart = loss_curves(
        lines,
        "Requests that keep both limits",
        x_title="Requests per second and accelerator",
        y_title="Share of the requests",
    )
    notes = [Text(f"{line}.") for line in plan.notes]
    return Report(
        f"Serving {case.arch.name} at {pretty(case.rate_per_s, 'request/s')}",
        said,
        [
            Section("", [_table(found), Text(f"Bound: {plan.binding_constraint}.")]),
            Section("Forecast of one instance", [forecast_table(plan.forecasts), *notes]),
            *([Section("Over the whole trace", [_fleets(fleets)])] if fleets else []),
            Section("If an assumption is wrong", [_assumptions(weak)]),
            Section("Attainment", [Chart(chart)]),
            Section("Accelerators and money against time", [Chart(_front(found))]),
        ],
    )


def _fleets(fleets: list[TraceFleet]) -> Table:
    """List fleets by the hours of accelerators that they take."""
    heads = [
        Column("fleet"),
        Column("split"),
        Column("most at once", align="right", rank=2),
        Column("accelerator hours", align="right"),
        Column("price", align="right", rank=1),
        Column("limits kept", align="right"),
        Column("why not"),
    ]
    rows: list[list[Cell]] = [
        [
            item.fleet,
            f"{item.kind}: {item.words}",
            item.most,
            f"{item.accelerator_hours:,.1f}",
            f"${item.usd:,.2f}" if item.usd else "",
            f"{item.attainment:.1%}",
            item.reason,
        ]
        for item in fleets
    ]
    return Table(heads, rows)


def _assumptions(weak: list[Assumption]) -> Table:
    """List assumptions, the one whose failure costs most first."""
    heads = [
        Column("if"),
        Column("goodput of one instance", align="right"),
        Column("change", align="right"),
    ]
    rows: list[list[Cell]] = [
        [item.words, pretty(item.goodput_per_s, "request/s"), f"{-item.lost:+.1%}"] for item in weak
    ]
    return Table(heads, rows)


def _front(found: list[ServiceCandidate]) -> Any:
    """Draw candidates by what a request costs and how long its tokens take."""
    from steelyard.runs.pareto import pareto

    held = [item for item in found if item.goodput and item.goodput.rate_per_s]
    return pareto(
        [f"{item.arrangement.kind}: {item.arrangement.words}" for item in held],
        [1 / item.per_device for item in held],
        [item.goodput.at.tpot_s for item in held if item.goodput],
        titles=("accelerator seconds per request", "time per token that the share keeps"),
        units=("s", "s"),
        title="Fewer accelerators against faster tokens, each at its goodput",
    )


def _table(found: list[ServiceCandidate]) -> Table:
    """List the candidates, the best first."""
    heads = [
        Column("arrangement"),
        Column("split"),
        Column("accelerators", align="right", rank=1),
        Column("goodput each", align="right"),
        Column("why not"),
    ]
    rows = [
        [
            item.arrangement.kind,
            item.arrangement.words,
            item.arrangement.num_devices,
            pretty(item.per_device, "request/s") if item.goodput else "",
            item.reason,
        ]
        for item in found[:_SHOWN]
    ]
    return Table(heads, rows)
