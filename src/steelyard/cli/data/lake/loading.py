"""From the words of `steelyard data lake` to lakes, graphs and plans."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.config import load
from steelyard.errors import BackendError
from steelyard.runs.progress import progress

if TYPE_CHECKING:
    from steelyard.data.lake import ContainmentGraph, DeletionPlan, Encoding, Lake, PlanRequest

__all__ = ["encoded", "extra", "graphed", "planned", "requested", "scanned", "sketched"]


@contextmanager
def extra() -> Iterator[None]:
    """Name the extra that is missing where Arrow is not installed."""
    try:
        yield
    except ImportError as error:
        raise BackendError(
            "tables of a lake are read with Arrow, which is not installed",
            hint="pip install 'steelyard[data]'",
        ) from error


def scanned(source: str) -> "Lake":
    """Return the lake below a folder or of a pattern."""
    with extra():
        from steelyard.data.lake import Lake

        return Lake.scan(source)


def sketched(lake: "Lake", folder: Path, *, quiet: bool) -> "Lake":
    """Write sketches of the tables; return the lake with those left out that cannot be read."""
    from dataclasses import replace

    from steelyard.data.lake import write_sketches

    with progress("sketches", quiet=quiet):
        problems = write_sketches(lake.tables, folder)
    return replace(lake, unreadable={**lake.unreadable, **problems})


def requested(recipe: Path | None, tier: str = "") -> "PlanRequest":
    """Return what a recipe asks for, the defaults where there is none, with a tier's prices."""
    from dataclasses import replace

    from steelyard.catalog import storage_tier
    from steelyard.data.lake import PlanRequest, StorageCosts

    asked = load(recipe, PlanRequest) if recipe else PlanRequest()
    if not tier:
        return asked
    scans = asked.prices.maintenance_scans
    prices = StorageCosts.of_tier(storage_tier(tier), maintenance_scans=scans)
    return replace(asked, prices=prices)


def graphed(
    lake: "Lake",
    request: "PlanRequest",
    kept: tuple[Path | None, Path | None],
    *,
    quiet: bool,
) -> "ContainmentGraph":
    """Return the graph of a lake, with the file of its state, which is replaced, and sketches."""
    from steelyard.data.lake import ContainmentGraph

    state, sketches = kept
    previous = ContainmentGraph.load(state) if state and state.is_file() else None
    with progress("containment", quiet=quiet):
        found = lake.containment(request.checks, previous=previous, sketches=sketches)
    if state is not None:
        found.save(state)
    return found


def encoded(
    graph: "ContainmentGraph", request: "PlanRequest", *, quiet: bool
) -> "dict[str, Encoding]":
    """Return the smallest way to write each table; this machine is measured first, once."""
    from steelyard.data.formats.advice import known_costs
    from steelyard.data.lake import find_encodings

    total = float(len(graph.nodes))
    with progress("ways to write tables", total=total, quiet=quiet) as advance:
        return find_encodings(
            graph,
            request.prices,
            known_costs(),
            max_latency_s=request.max_latency_s,
            done=lambda count, name: advance(float(count), name),
        )


def planned(
    graph: "ContainmentGraph",
    request: "PlanRequest",
    encodings: "dict[str, Encoding] | None" = None,
    *,
    is_exact: bool,
) -> "DeletionPlan":
    """Return a plan, with other ways to write tables where they are given.

    Tables that deleted ones are rebuilt from stay.
    """
    from steelyard.data.lake import deleted_tables, plan_deletion, plan_rewrites

    locked = {
        item.parent: f"{item.table}, deleted earlier, is rebuilt from it"
        for item in deleted_tables(Path(graph.root))
    }
    if encodings is not None:
        return plan_rewrites(graph, request, encodings, locked=locked, is_exact=is_exact)
    return plan_deletion(graph, request, locked=locked, is_exact=is_exact)
