"""`steelyard data govern`: what may be told of tables, what was made of them, and erasure."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cyclopts

from steelyard.cli.data.scanned import Sources, kinds_of, names_of, scanned
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.data.governance import Lineage
    from steelyard.data.governance.bias import Rate

__all__ = ["app"]

app = cyclopts.App(
    name="govern",
    help="Check anonymity, answer with noise on a budget, erase keys, audit, find bias.",
)
# Commands that load late say here what they are, and their example: the list of commands would not.
app.command(
    "steelyard.cli.data.asking:budget",
    name="budget",
    help="Set the privacy budget of a ledger, once; or show what is left of it.\n\n"
    "Example: steelyard data govern budget people.ledger --epsilon 1",
)
app.command(
    "steelyard.cli.data.asking:ask",
    name="ask",
    help="Count rows or add up a column with noise that hides every person, paid from a budget."
    "\n\n"
    "Example: steelyard data govern ask people.csv --ledger people.ledger --epsilon 0.1",
)


@app.command
def tags(*sources: Sources, out: Path | None = None, types: str = "", json: Switch = False) -> None:
    """Suggest which columns name people, alone or together, and which are sensitive.

    Example: steelyard data govern tags people.csv --out tags.json

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        out: JSON file for the tags, to be looked at and changed by hand.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of a table.
    """
    from steelyard.data.governance import suggest_tags
    from steelyard.data.table import ProfileFold

    table = scanned(sources, kinds_of(types))
    found = suggest_tags(table.fold(ProfileFold()).results["profile"])
    if out is not None:
        found.save(out)
    rows: list[list[Cell]] = [[name, tag] for name, tag in found.columns.items()]
    block = Table([Column("column"), Column("tag")], rows)
    note = Text("Suggested by names and by how many values differ: look at them.")
    page = Report("Tags", f"{len(rows)} columns", [Section("Columns", [block, note])])
    print_report(page, json=json, html=None, values={"columns": found.columns})


@app.command
def check(
    *sources: Sources,
    by: str = "",
    tags: Path | None = None,
    k: int = 5,
    sensitive: str = "",
    types: str = "",
    memory: str = "",
    workers: int = 1,
    json: Switch = False,
) -> None:
    """Check that each combination of quasi-identifiers stands for at least k rows.

    The exit status is 1 where it does not.

    Example: steelyard data govern check people.csv --by age,zip,sex --sensitive diagnosis --k 5

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        by: quasi-identifiers, separated by commas.
        tags: file of `steelyard data govern tags`, in place of those.
        k: rows that a combination should have at least.
        sensitive: column of which one value alone should not stand in a group.
        types: kinds of columns of text files, such as "id=text, price=number".
        memory: most bytes of the pass, such as 200MB.
        workers: processes.
        json: print JSON instead of tables.
    """
    from dataclasses import asdict

    from steelyard.data.governance import ColumnTags, check_anonymity

    columns = names_of(by)
    if tags is not None:
        columns = columns or ColumnTags.open(tags).tagged("quasi-identifier")
        sensitive = sensitive or next(iter(ColumnTags.open(tags).tagged("sensitive")), "")
    if not columns:
        raise ConfigError("no quasi-identifier is named", hint="give --by age,zip or --tags FILE")
    table = scanned(sources, kinds_of(types))
    given = {"sensitive": sensitive, "memory": memory or None, "workers": workers}
    found = check_anonymity(table, columns, k, **given)
    facts = [
        ("rows", f"{found.rows:,}", ""),
        ("combinations", f"{found.groups:,}", f"the smallest of {found.smallest:,} rows"),
        (f"of fewer than {k} rows", f"{found.small_groups:,}", f"{found.small_rows:,} rows"),
    ]
    if sensitive:
        words = f"all rows have one {sensitive}"
        facts.append((words, f"{found.told_groups:,}", f"{found.told_rows:,} rows"))
    rows: list[list[Cell]] = [
        [*(str(values[name]) for name in columns), f"{count:,}"] for values, count in found.examples
    ]
    heads = [*(Column(name) for name in columns), Column("rows", align="right")]
    sections = [Section("Groups", [Facts(facts)])]
    if rows:
        sections.append(Section("Smallest groups", [Table(heads, rows)]))
    verdict = "holds" if found.holds else "does not hold"
    page = Report(f"{k}-anonymity {verdict}", ", ".join(columns), sections)
    print_report(page, json=json, html=None, values=asdict(found) | {"holds": found.holds})
    if not found.holds:
        sys.exit(1)


@app.command
def erase(
    lineage: Path,
    *,
    column: str,
    keys: str,
    reason: str = "",
    yes: Switch = False,
    json: Switch = False,
) -> None:
    """Take the rows of some keys out of all tables that a lineage knows.

    Outputs that lack the column are made again of what is left. Run it again after a kill.

    Example: steelyard data govern erase lineage --column customer --keys 4711 --yes

    Args:
        lineage: folder of the lineage, as `steelyard data table transform --lineage` keeps it.
        column: column of the key.
        keys: keys, separated by commas.
        reason: why, for the audit.
        yes: do it; without this the tables are only named.
        json: print JSON instead of tables.
    """
    from dataclasses import asdict

    from steelyard.data.governance import AuditLog, Lineage
    from steelyard.data.governance import erase as erased

    known = _known(Lineage(lineage))
    if not yes:
        roots = known.roots()
        named = [*roots, *(item.output for item in known.derived(roots))]
        rows: list[list[Cell]] = [[path] for path in named]
        note = Text("Nothing was touched: --yes erases.")
        page = Report(
            "Erasure",
            f"{len(named)} tables",
            [Section("Tables", [Table([Column("file")], rows), note])],
        )
        print_report(page, json=json, html=None, values={"tables": named, "done": False})
        return
    log = AuditLog(lineage / "audit.jsonl")
    found = erased(known, column, names_of(keys), audit=log, reason=reason)
    told = [(path, f"{count:,} rows went") for path, count in found.rows.items()]
    told += [(path, "made again") for path in found.rebuilt]
    told += [(path, "removed") for path in found.removed]
    shown: list[list[Cell]] = [[path, what] for path, what in told]
    lines = [Text(f"{path} has learned from these rows: fit it again") for path in found.learned]
    block = Table([Column("file"), Column("what")], shown)
    page = Report("Erased", column, [Section("Tables", [block, *lines])])
    print_report(page, json=json, html=None, values=asdict(found) | {"done": True})


@app.command
def lineage(folder: Path, *, json: Switch = False) -> None:
    """List what was made of what, and which outputs were changed since.

    Example: steelyard data govern lineage lineage

    Args:
        folder: folder of the lineage.
        json: print JSON instead of a table.
    """
    from dataclasses import asdict

    from steelyard.data.governance import Lineage

    known = _known(Lineage(folder))
    records, changed = known.records, known.changed()
    rows: list[list[Cell]] = [
        [path, ", ".join(item.inputs), item.key[:16], "changed" if path in changed else ""]
        for path, item in records.items()
    ]
    heads = [Column("output"), Column("made of"), Column("key"), Column("since")]
    page = Report("Lineage", f"{len(rows)} outputs", [Section("Outputs", [Table(heads, rows)])])
    values = {"records": [asdict(item) for item in records.values()], "changed": changed}
    print_report(page, json=json, html=None, values=values)


def _known(found: "Lineage") -> "Lineage":
    """Return a lineage that knows an output, and refuse one that knows none: a wrong folder."""
    if not found.records:
        raise ConfigError(
            f"{found.folder} holds no lineage",
            hint="steelyard data table transform with --lineage FOLDER keeps one",
        )
    return found


@app.command
def audit(log: Path, *, json: Switch = False) -> None:
    """Show an audit log, if no line of it was changed or dropped.

    Example: steelyard data govern audit lineage/audit.jsonl

    Args:
        log: the file.
        json: print JSON instead of a table.
    """
    import datetime

    from steelyard.data.governance import AuditLog

    if not log.is_file():
        raise ConfigError(f"no file {log}", hint="name a file such as LINEAGE/audit.jsonl")
    entries = AuditLog(log).entries()
    rows: list[list[Cell]] = [
        [
            f"{item['number']}",
            datetime.datetime.fromtimestamp(item["time_s"], datetime.UTC).isoformat(" ", "seconds"),
            item["user"],
            item["action"],
            ", ".join(f"{name} {value}" for name, value in item["about"].items()),
        ]
        for item in entries
    ]
    heads = [Column(name) for name in ("line", "time", "user", "action", "about")]
    page = Report("Audit", f"{len(rows)} lines, unbroken", [Section("Lines", [Table(heads, rows)])])
    print_report(page, json=json, html=None, values={"entries": entries})


@app.command
def bias(
    *sources: Sources,
    by: str,
    truth: str,
    prediction: str,
    positive: str,
    types: str = "",
    json: Switch = False,
) -> None:
    """Say how a prediction fares on each value of a column.

    Example: steelyard data govern bias scored.csv --by sex --truth hired --prediction predicted
    --positive yes

    Args:
        *sources: files with truth and prediction side by side.
        by: column of the slices.
        truth: column of what is so.
        prediction: column of what was predicted.
        positive: the class of which being chosen matters.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of a table.
    """
    from dataclasses import asdict

    from steelyard.data.governance import score_slices

    table = scanned(sources, kinds_of(types))
    found = score_slices(table, by=by, truth=truth, prediction=prediction, positive=positive)

    def told(rate: "Rate") -> str:
        return f"{rate.value:.1%} ({rate.low:.1%} to {rate.high:.1%})" if rate.rows else ""

    rows: list[list[Cell]] = [
        [item.name, f"{item.rows:,}", *map(told, (item.chosen, item.found, item.wrong, item.right))]
        for item in found
    ]
    heads = [Column(by), Column("rows", align="right")]
    words = ("chosen", "found", "wrongly named", "right")
    heads += [Column(word, align="right") for word in words]
    lines = [Text(f"{item.name}: {line}") for item in found for line in item.findings]
    block = Table(heads, rows, caption="with 80 % intervals")
    page = Report("Slices", f"{prediction} against {truth}", [Section("Rates", [block, *lines])])
    values: dict[str, Any] = {"slices": [_plain(asdict(item)) for item in found]}
    print_report(page, json=json, html=None, values=values)


def _plain(value: Any) -> Any:
    """Return values without NaN, which JSON has not."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and value != value else value
