"""`steelyard runs`: list, show, compare, check and export runs, and read the ledger."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts
import msgspec

from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.quantity import Check
from steelyard.runs import export as exports
from steelyard.runs import views
from steelyard.runs.wording import check_values

if TYPE_CHECKING:
    from steelyard.runs.store import RunStore

__all__ = ["app"]

app = cyclopts.App(
    name="runs", help="List, show, compare, check and export runs; read the ledger of forecasters."
)

Store = Annotated[
    str,
    cyclopts.Parameter(
        help="Folder of the run store, or a postgresql:// URL; the user's own store when left out."
    ),
]


_Runs = Annotated[
    str, cyclopts.Parameter(help="Ids of two or more runs, or unique beginnings of them.")
]
"""The help of arguments that may be many stands here: it is not read from a docstring."""


def _open(store: str) -> "RunStore":
    """Open an existing store; a folder that holds none is refused."""
    from steelyard.runs.store import RunStore

    return RunStore.existing(store or None)


@app.command(name="list")
def list_runs(*, kind: str = "", limit: int = 30, store: Store = "", json: Switch = False) -> None:
    """List runs, newest first.

    Example: steelyard runs list --kind train

    Args:
        kind: kind of the runs to list, such as "train"; all when empty.
        limit: most runs to list; 0 for all.
        store: folder of the run store, or a postgresql:// URL; the user's own when left out.
        json: print JSON.
    """
    opened = _open(store)
    records = opened.list(kind=kind, limit=max(limit, 0))
    report = views.list_report(records, opened.database.url)
    print_report(report, json=json, values=list(map(to_plain, records)))
    if records and not json:
        say_next("runs", "show", records[0].id, *_in(store))


def _in(store: str) -> tuple[str, ...]:
    """Return the option that names a store, none for the user's own."""
    return ("--store", store) if store else ()


@app.command
def show(run: str, /, *, html: Path | None = None, store: Store = "", json: Switch = False) -> None:
    """Show everything about one run.

    Example: steelyard runs show 3f2a --html run.html

    Args:
        run: id of the run, or a unique beginning of it.
        html: HTML file to write the report to as well.
        store: folder of the run store, or a postgresql:// URL; the user's own when left out.
        json: print JSON.
    """
    opened = _open(store)
    record = opened.get(run)
    checks = opened.check(record.id)
    report = views.run_report(record, checks, opened.columns(record.id))
    values = to_plain(record) | {"checks": list(map(_values, checks))}
    print_report(report, json=json, html=html, values=values)
    if not json:
        verb = ("check", record.id) if checks else ("export", record.id)
        say_next("runs", *verb, *_in(store))


def _values(check: Check) -> dict[str, Any]:
    """Return a check as JSON values, with its error and verdict."""
    return to_plain(check) | check_values(check)


@app.command
def compare(*runs: _Runs, store: Store = "", json: Switch = False) -> None:
    """Put runs side by side: what they measured, and where their recipes differ.

    Example: steelyard runs compare 3f2a 91bc

    Args:
        *runs: ids of two or more runs, or unique beginnings of them.
        store: folder of the run store, or a postgresql:// URL; the user's own when left out.
        json: print JSON.

    Raises:
        ConfigError: fewer than two runs are named.
    """
    if len(runs) < 2:
        raise ConfigError(
            f"compare needs at least two runs, {len(runs)} given",
            hint="steelyard runs compare ID ID",
        )
    opened = _open(store)
    records = [opened.get(run) for run in runs]
    print_report(views.compare_report(records), json=json, values=list(map(to_plain, records)))
    if not json:
        say_next("runs", "show", records[0].id, *_in(store))


@app.command
def check(
    run: str,
    /,
    *,
    record: str = "",
    html: Path | None = None,
    store: Store = "",
    json: Switch = False,
) -> int:
    """Check a run's forecasts against what it measured.

    Example: steelyard runs check 3f2a --record cost.training_step

    Exits 1 when a measured value lies outside its 80 % interval.

    Args:
        run: id of the run, or a unique beginning of it.
        record: name of the forecaster to write the checks to the ledger under.
        html: HTML file to write the report to as well.
        store: folder of the run store, or a postgresql:// URL; the user's own when left out.
        json: print JSON.

    Returns:
        Exit code.
    """
    from steelyard.runs.ledger import Ledger

    opened = _open(store)
    found = opened.get(run)
    checks = opened.check(found.id)
    if record:
        Ledger(opened).record(record, checks, found.id)
    values = {"id": found.id, "checks": list(map(_values, checks))}
    print_report(views.check_report(found, checks), json=json, html=html, values=values)
    if not json:
        say_next("runs", "ledger", *_in(store))
    # Scripts decide by the exit code, as they do after a failed test.
    return 0 if all(item.covered for item in checks) else 1


@app.command
def export(
    run: str,
    /,
    *,
    to: Literal["json", "parquet", "tensorboard", "mlflow"] = "json",
    out: str = "",
    store: Store = "",
    json: Switch = False,
) -> None:
    """Export a run to a file or another tool.

    Example: steelyard runs export 3f2a --to parquet --out run.parquet

    Args:
        run: id of the run, or a unique beginning of it.
        to: json (everything), parquet (logged columns), tensorboard (event files) or mlflow
            (tracking server).
        out: file, log folder, or MLflow tracking address; RUN.json, RUN.parquet, tensorboard/ or
            MLflow's default when left out.
        store: folder of the run store, or a postgresql:// URL; the user's own when left out.
        json: print the place as JSON.
    """
    opened = _open(store)
    record = opened.get(run)
    frame = opened.columns(record.id)
    match to:
        case "json":
            place = exports.export_json(record, frame, Path(out or f"{record.id}.json"))
        case "parquet":
            place = exports.export_parquet(frame, Path(out or f"{record.id}.parquet"))
        case "tensorboard":
            place = exports.export_tensorboard(record, frame, Path(out or "tensorboard"))
        case "mlflow":
            place = exports.export_mlflow(record, frame, out)
    answer = (
        msgspec.json.encode({"run": record.id, "to": to, "place": place}).decode()
        if json
        else f"{record.id} exported to {place}"
    )
    sys.stdout.write(answer + "\n")
    if not json:
        say_next("runs", "show", record.id, *_in(store))


@app.command
def ledger(*, store: Store = "", json: Switch = False) -> None:
    """Show bias, median error and coverage of 80 % intervals of each forecaster.

    Example: steelyard runs ledger

    Args:
        store: folder of the run store, or a postgresql:// URL; the user's own when left out.
        json: print JSON.
    """
    from steelyard.runs.ledger import Ledger

    opened = _open(store)
    rows = Ledger(opened).summary()
    report = views.ledger_report(rows, opened.database.url)
    print_report(report, json=json, values=list(map(to_plain, rows)))
    if not json:
        say_next("runs", "list", *_in(store))
