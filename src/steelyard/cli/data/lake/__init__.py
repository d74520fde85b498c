"""`steelyard data lake`: which tables of a lake lie in others, which can go, and their way back."""

from pathlib import Path
from typing import Annotated

import cyclopts

from steelyard.cli.output import Switch, print_json, print_report
from steelyard.runs.progress import progress

__all__ = ["app"]

app = cyclopts.App(
    name="lake",
    help="Find tables of a lake that lie in others, delete what can be rebuilt, and rebuild it.",
)
_Names = Annotated[str, cyclopts.Parameter(help="Tables by name; none lists what was deleted.")]


@app.command
def scan(
    lake: str, *, sketches: Path | None = None, json: Switch = False, report: Path | None = None
) -> None:
    """List the tables of a lake by their footers: rows, columns, bytes, and what cannot be read.

    Example: steelyard data lake scan lake/

    Args:
        lake: folder of tables, or a pattern such as 'lake/*.parquet'.
        sketches: folder for some values of each column, from which `graph` and `plan` rule pairs
            out unread; every table that is new there is read once.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.cli.data.lake.loading import scanned, sketched
    from steelyard.cli.data.lake.pages import scan_page, scan_values

    found = scanned(lake)
    if sketches is not None:
        found = sketched(found, sketches, quiet=json)
    print_report(scan_page(found), json=json, html=report, values=scan_values(found))


@app.command
def graph(
    lake: str,
    *,
    recipe: Path | None = None,
    state: Path | None = None,
    sketches: Path | None = None,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Find which table lies in which: by schemas, by statistics of footers, by sampled rows.

    Example: steelyard data lake graph lake/ --state graph.json

    Args:
        lake: folder of tables, or a pattern such as 'lake/*.parquet'.
        recipe: TOML file of how to check, such as recipes/data-lake.toml.
        state: JSON file of the graph; where it is there, only what has changed since is read.
        sketches: folder that `scan --sketches` wrote; pairs that it rules out are not read.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.cli.data.lake.loading import graphed, requested, scanned
    from steelyard.cli.data.lake.pages import graph_page

    found = graphed(scanned(lake), requested(recipe), (state, sketches), quiet=json)
    print_report(graph_page(found), json=json, html=report, values=found)


@app.command
def plan(
    lake: str,
    *,
    recipe: Path | None = None,
    state: Path | None = None,
    sketches: Path | None = None,
    tier: str = "",
    greedy: Switch = False,
    reencode: Switch = False,
    out: Path | None = None,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Say which tables could go, why, what each is rebuilt from, and the dollars that saves.

    Nothing is changed.

    Example: steelyard data lake plan lake/ --out plan.json --report plan.html

    Args:
        lake: folder of tables, or a pattern such as 'lake/*.parquet'.
        recipe: TOML file of prices, accesses and the longest latency, such as
            recipes/data-lake.toml.
        state: JSON file of the graph; where it is there, only what has changed since is read.
        sketches: folder that `scan --sketches` wrote; pairs that it rules out are not read.
        tier: storage of the catalog whose prices count in place of the recipe's, such as
            gcs-standard; `steelyard catalog list storage` has them.
        greedy: choose by single steps in place of an integer program.
        reencode: look for the smallest way to write each table too, and choose for each whether it
            stays, is written anew, or is deleted and rebuilt, for the fewest dollars; every table
            is read, and a million rows of each are looked at.
        out: JSON file for the plan, which `apply` takes.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.cli.data.lake.loading import encoded, graphed, planned, requested, scanned
    from steelyard.cli.data.lake.pages import plan_page

    request = requested(recipe, tier)
    found = graphed(scanned(lake), request, (state, sketches), quiet=json)
    ways = encoded(found, request, quiet=json) if reencode else None
    made = planned(found, request, ways, is_exact=not greedy)
    if out is not None:
        made.save(out)
    print_report(plan_page(found, made, out), json=json, html=report, values=made)


@app.command
def apply(plan: Path, *, yes: Switch = False, json: Switch = False) -> None:
    """Prove each deletion of a plan value by value, and move the tables to a trash folder.

    Tables that the plan writes in another way are read back before the old file goes to the trash.
    Without --yes tables are proven and listed only. The trash and the manifest are in the folder
    .steelyard of the lake; a call that was killed is completed or undone by the next one.

    Example: steelyard data lake apply plan.json --yes

    Args:
        plan: JSON file that `steelyard data lake plan --out` wrote.
        yes: move the tables.
        json: print JSON instead of a table.
    """
    from steelyard.cli.data.lake.loading import extra
    from steelyard.cli.data.lake.pages import applied_page
    from steelyard.data.lake import DeletionPlan, apply_plan

    loaded = DeletionPlan.load(plan)
    total = float(max(len(loaded.deletions) + len(loaded.rewrites), 1))
    with extra(), progress("prove tables", total=total, quiet=json) as advance:
        found = apply_plan(
            loaded, dry_run=not yes, advance=lambda done, name: advance(float(done), name)
        )
    print_report(applied_page(found, loaded), json=json, values=found)


@app.command
def rebuild(
    lake: Path,
    *tables: _Names,
    every: Switch = False,
    out: Path | None = None,
    json: Switch = False,
) -> None:
    """Make deleted tables anew from the tables that contain them, equal row by row.

    Example: steelyard data lake rebuild lake/ t004

    Args:
        lake: folder of the lake.
        *tables: tables by name; none lists what was deleted.
        every: rebuild all that were deleted.
        out: folder to write to in place of the lake, which stays as it is.
        json: print JSON instead of lines.
    """
    from steelyard.cli.data.lake.loading import extra
    from steelyard.cli.data.lake.pages import deleted_page
    from steelyard.data.lake import deleted_tables, rebuild_table

    deleted = deleted_tables(lake)
    if not tables and not every:
        print_report(deleted_page(lake, deleted), json=json, values=deleted)
        return
    sources = {item.table: item for item in deleted}
    written: dict[str, str] = {}
    for name in sources if every else tables:
        target = out / sources[name].path if out is not None and name in sources else None
        with extra():
            written[name] = str(rebuild_table(lake, name, out=target))
        if not json:
            print(f"{name}: {written[name]}")
    if json:
        print_json(written)


@app.command
def generate(
    out: Path, *, tables: int = 60, bases: int = 6, rows: int = 5000, seed: int = 0
) -> None:
    """Make a lake to try things on: copies, projections and filters, and tables that look alike.

    Example: steelyard data lake generate lake

    Args:
        out: folder for the tables.
        tables: how many of them.
        bases: tables that all others are made from.
        rows: rows of each of those.
        seed: seed of the choices; the same seed makes the same lake.
    """
    from steelyard.cli.data.lake.loading import extra
    from steelyard.errors import ConfigError

    for name, value in (("--bases", bases), ("--rows", rows)):
        if value < 1:
            raise ConfigError(f"{name} is {value}, but must be 1 or more")
    with extra():
        from steelyard.data.lake import synthesize
        from steelyard.data.lake.synthesis import base_tables

        synthesize(base_tables(bases, rows, seed), tables, seed).write(out)
    print(f"{tables} tables in {out}; next: steelyard data lake plan {out}")
