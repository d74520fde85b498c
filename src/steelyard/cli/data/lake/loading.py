"""From the words of `steelyard data lake` to lakes, graphs and plans."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.config import load
from steelyard.errors import BackendError
from steelyard.runs.progress import progress

if TYPE_CHECKING:
    from steelyard.data.lake import ContainmentGraph, DeletionPlan, Lake, PlanRequest

__all__ = ["extra", "graphed", "planned", "requested", "scanned", "sketched"]


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


def planned(graph: "ContainmentGraph", request: "PlanRequest", *, is_exact: bool) -> "DeletionPlan":
    """Return a plan; tables that deleted ones are rebuilt from stay."""
    from steelyard.data.lake import deleted_tables, plan_deletion

    locked = {
        item.parent: f"{item.table}, deleted earlier, is rebuilt from it"
        for item in deleted_tables(Path(graph.root))
    }
    return plan_deletion(graph, request, locked=locked, is_exact=is_exact)
