"""`steelyard retrieve tenants audit`: what a tenant could see at a past moment."""

import math
from datetime import UTC, datetime
from pathlib import Path

from steelyard.cli.output import Switch, print_report
from steelyard.cli.retrieve.tenants.ids import read_ids
from steelyard.errors import ConfigError
from steelyard.retrieve.tenants import audit as check_answer
from steelyard.retrieve.tenants.store import require_tenant_store
from steelyard.runs.report import Cell, Column, Report, Section, Table

__all__ = ["audit"]


def audit(folder: Path, tenant: str, *, ids: str, at: str, json: Switch = False) -> None:
    """Say which vectors of an answer a tenant could see at a past moment.

    Ends with exit code 1 where one was not visible.

    Example: steelyard retrieve tenants audit shared acme --ids 3,5 --at 2026-03-01T12:00:00Z

    Args:
        folder: folder that `steelyard retrieve tenants build` wrote.
        tenant: whom the answer was given to.
        ids: numbers in the answer separated by commas, or @ and a file with a number per line.
        at: when it was given: a date and time in ISO 8601; without a zone it is UTC.
        json: print JSON instead of a table.
    """
    try:
        moment = datetime.fromisoformat(at)
    except ValueError as error:
        raise ConfigError(f"--at is {at!r}", hint="give it like 2026-03-01T12:00:00Z") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Without its log, nothing would have been visible at any moment.
    require_tenant_store(folder)
    found = check_answer(folder, tenant, read_ids(ids), moment.timestamp())
    rows: list[list[Cell]] = [
        [item.id, "yes" if item.is_visible else "no", _shown(item.since_s)] for item in found
    ]
    hidden = sum(not item.is_visible for item in found)
    table = Table([Column("vector"), Column("visible"), Column("since")], rows)
    page = Report(
        f"What {tenant} could see at {moment.isoformat()}",
        f"{hidden} of {len(found)} were not visible",
        [Section("Answer", [table])],
    )
    values = {
        "hidden": hidden,
        "vectors": [
            {
                "id": item.id,
                "visible": item.is_visible,
                "since": None if math.isnan(item.since_s) else item.since_s,
            }
            for item in found
        ],
    }
    print_report(page, json=json, values=values)
    if hidden:
        raise SystemExit(1)


def _shown(since_s: float) -> str:
    """Return a moment in words."""
    if math.isnan(since_s):
        return "never granted"
    return datetime.fromtimestamp(since_s, UTC).isoformat(timespec="milliseconds")
