"""`steelyard plan serve --against`: what a running deployment would gain by each single change."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steelyard.cli.following import say_next
from steelyard.cli.output import print_report
from steelyard.config import dump, load
from steelyard.errors import ConfigError
from steelyard.plan.service.against import ServiceChange, changed, single_changes
from steelyard.plan.service.case import OwnEngine, ServiceCase
from steelyard.runs.report import Block, Column, Report, Section, Table, Text
from steelyard.serve.deployment import Deployment
from steelyard.units import pretty

__all__ = ["compare"]


def compare(
    against: Path,
    change: str,
    out: Path | None,
    *,
    model: str,
    own: OwnEngine | None,
    json: bool,
    report: Path | None,
    say: Callable[[str], None],
) -> None:
    """Rank the single changes of a deployment, or write one of them.

    Args:
        against: file of the deployment.
        change: the change to write; all are ranked when empty.
        out: file to write the changed deployment to.
        model: folder of the model of a measured engine, else empty.
        own: measured engine; None for step times of the roofline.
        json: print JSON.
        report: HTML file for the page.
        say: told of each change that is simulated.

    Raises:
        ConfigError: only one of --change and --out is given, or the file is wrong.
        CapacityError: the deployment does not fit in its machines' memory.
    """
    if bool(change) != (out is not None):
        raise ConfigError("--change and --out go together here", hint="give both, or neither")
    running = load(against, Deployment)
    group = running.groups[-1]
    case = ServiceCase.asked(
        model or running.model,
        running.machine,
        running.load,
        token_budget=group.token_budget,
        max_num_seqs=group.max_num_seqs,
        own=own,
    )
    if out is not None:
        dump(changed(case, running, change), out)
        say_next("serve", "MODEL_DIR", "--deployment", out)
        return
    found = single_changes(case, running, say)
    page = _page(found, against)
    values = {"changes": [_values(item, found[0], against) for item in found]}
    print_report(page, json=json, html=report, values=values)


def _command(item: ServiceChange, against: Path) -> str:
    """Return the command line that makes a change."""
    out = against.with_name(f"{against.stem}-{item.name.replace('=', '-')}.json")
    words = ("plan", "serve", "--against", against, "--change", item.name, "--out", out)
    return shlex.join(["steelyard", *map(str, words)]) if item.name and item.goodput else ""


def _gain(item: ServiceChange, base: ServiceChange) -> float:
    """Return the relative gain of goodput per accelerator."""
    return item.per_device / base.per_device - 1 if base.per_device else 0.0


def _values(item: ServiceChange, base: ServiceChange, against: Path) -> dict[str, Any]:
    """Return a change as JSON values."""
    return {
        "change": item.name,
        "accelerators": item.deployment.num_accelerators,
        "goodput_per_s": item.total_per_s,
        "goodput_per_accelerator": item.per_device,
        "gain": _gain(item, base) if item.goodput else None,
        "reason": item.reason,
        "command": _command(item, against),
    }


def _page(found: list[ServiceChange], against: Path) -> Report:
    """List the changes with their gains, and the commands of those that gain."""
    base, *rest = found
    heads = [
        Column("change"),
        Column("accelerators", align="right", rank=1),
        Column("goodput", align="right"),
        Column("each", align="right"),
        Column("gain each", align="right"),
        Column("why not"),
    ]
    rows = [
        [
            item.name or "as it runs",
            item.deployment.num_accelerators,
            pretty(item.total_per_s, "request/s") if item.goodput else "",
            pretty(item.per_device, "request/s") if item.goodput else "",
            f"{_gain(item, base):+.1%}" if item.goodput and item.name else "",
            item.reason,
        ]
        for item in found
    ]
    better = [item for item in rest if item.goodput and _gain(item, base) > 0]
    commands: list[Block] = [Text(_command(item, against)) for item in better]
    commands = commands or [Text("No single change carries more per accelerator.")]
    return Report(
        f"Changes of {against.name}",
        f"{base.deployment.model} on {base.deployment.machine.accelerator}: goodput with one thing "
        f"changed",
        [Section("", [Table(heads, rows)]), Section("Commands", commands)],
    )
