"""`steelyard data table`: what tables in files hold, what looking costs, clean copies, and SQL."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import cyclopts

from steelyard.cli.data.scanned import Sources, kinds_of, names_of, scanned
from steelyard.cli.data.table_verbs import LATE_VERBS
from steelyard.cli.output import Switch, print_json, print_report
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table, Text
from steelyard.units import parse, pretty

if TYPE_CHECKING:
    from steelyard.data.table import DataTable, Folded, Quarantine
    from steelyard.data.table.sql import SqlAnswer

__all__ = ["app"]

app = cyclopts.App(name="table", help="Look at tables in files: CSV, JSON lines, Parquet, Arrow.")


for _place, _name, _help in LATE_VERBS:
    app.command(_place, name=_name, help=_help)


@app.command
def profile(
    *sources: Sources,
    types: str = "",
    workers: int = 1,
    journal: Path | None = None,
    memory: str = "",
    cluster: str = "",
    quarantine: Path | None = None,
    sketch: Path | None = None,
    dry_run: Switch = False,
    storage: str = "",
    outside: Switch = False,
    no_keep: Switch = False,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Profile every column in one pass: missing, distinct, quantiles, frequent values, problems.

    Example: steelyard data table profile 'sales/*.csv' --report profile.html

    Bytes, time, memory and dollars are forecast before the pass and checked after it. The first
    call measures for some seconds how fast this machine reads tables.

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        types: kinds of columns of text files, in place of what their values look like, such as
            "id=text, price=number".
        workers: processes that read parts of the files.
        journal: folder that keeps finished parts; after a kill the same line goes on there.
        memory: most bytes that rows and sketches may take, such as 200MB; refused where one part
            of the table does not fit.
        cluster: Ray address that parts are read on, such as auto; files must be found there too.
        quarantine: CSV file for the rows that were set aside, the first thousand of them.
        sketch: file that keeps what was found, which `steelyard data table drift` compares later
            without reading the table.
        dry_run: stop after the forecast; no rows are read, but for the first.
        storage: storage tier that the files are priced and timed in, such as s3-standard; where
            they lie when it is left out.
        outside: count the bytes as leaving the network of the storage's vendor.
        no_keep: enter nothing in the ledger.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.cli.data import scanning

    table = _scanned("profile", sources, kinds_of(types), workers)
    works, said = scanning.forecast_pass(table, storage, workers, leaves=outside, quiet=json)
    if dry_run:
        _print_forecast(table, works, said, json=json, report=report)
        return
    is_whole = not (journal and any(journal.glob("*.pack")))
    # Libraries are loaded before memory is measured: they are no part of the pass.
    from steelyard.cli.data.profile_page import profile_page, profile_values

    meter = scanning.PassMeter()
    passing = {"workers": workers, "journal": journal, "cluster": cluster}
    folded = _folded(table, passing | {"memory": memory or None}, quiet=json)
    took_s, read_bytes = meter.took_s, folded.quarantine.reads.num_bytes
    # Forecasts for storage elsewhere are of no pass that was made here, and a budget, a cluster or
    # parts that were read before make it another pass.
    is_usual = is_whole and not (storage or memory or cluster)
    checks = meter.checks(said, read_bytes, workers=workers, is_usual=is_usual)
    if is_whole and not no_keep:
        scanning.keep_checks(checks, workers)
    _leave(table, folded, quarantine, sketch)
    page = profile_page(table, folded, took_s, scanning.cost_sections(table, works, said, checks))
    values = profile_values(table, folded, took_s) | {
        "forecasts": scanning.plain_forecasts(said),
        "bytes_read": read_bytes,
    }
    print_report(page, json=json, html=report, values=values)


def _leave(
    table: "DataTable", folded: "Folded", quarantine: Path | None, sketch: Path | None
) -> None:
    """Write the files that were asked for."""
    if quarantine is not None:
        _write_bad(quarantine, folded.quarantine)
    if sketch is not None:
        from steelyard.data.table.sketch_file import TableSketch

        TableSketch.of(table, folded).write(sketch)


def _print_forecast(
    table: "DataTable", works: Any, said: Any, *, json: bool, report: Path | None
) -> None:
    """Print what a pass would take."""
    from steelyard.cli.data import scanning
    from steelyard.cli.data.profile_page import told_files

    rows = sum(work.rows for work in works)
    facts = [
        ("files", f"{len(table.files):,}, {pretty(table.num_bytes, 'byte')}", ""),
        ("rows", f"about {rows:,.0f}", ""),
        ("columns", f"{len(table.schema):,}", ""),
    ]
    problems = [f"{path} was left out: {why}" for path, why in table.unreadable.items()]
    lines = [Text(line) for line in (*problems, *table.drift)]
    page = Report(
        "Forecast of a profile",
        told_files(table) + ", rows not read but for the first",
        [Section("Table", [Facts(facts), *lines]), *scanning.cost_sections(table, works, said)],
    )
    values = {
        "rows": rows,
        "num_bytes": table.num_bytes,
        "drift": list(table.drift),
        "forecasts": scanning.plain_forecasts(said),
    }
    print_report(page, json=json, html=report, values=values)


@app.command
def clean(
    *sources: Sources,
    out: Path,
    types: str = "",
    missing: str = "",
    drop_duplicates: Switch = False,
    json: Switch = False,
) -> None:
    """Write the good rows to one file, and those set aside to a second beside it.

    Example: steelyard data table clean 'sales/*.csv' --out clean.parquet

    Texts lose blanks around them, and words for a missing value become missing. Rows written, left
    out and set aside add up to those of the files.

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        out: file of the good rows: .parquet, .arrow, .csv, .tsv or .jsonl, text also with .gz; rows
            set aside stand beside it in NAME.quarantine.csv.
        types: kinds of columns of text files, in place of what their values look like, such as
            "id=text, price=number".
        missing: more words for a missing value, between commas, such as "-, unknown".
        drop_duplicates: leave out rows that equal an earlier one in every column.
        json: print JSON instead of tables.
    """
    from dataclasses import asdict

    from steelyard.data.table.cleaning import clean as write_clean
    from steelyard.data.table.cleaning import quarantine_path

    table = _scanned("clean", sources, kinds_of(types), 1)
    words = names_of(missing)
    with progress("clean", quiet=json):
        found = write_clean(table, out, drop_duplicates=drop_duplicates, missing=words)
    values = asdict(found) | {"out": str(out), "quarantine": str(quarantine_path(out))}
    values["set_aside"] = found.quarantine.total
    if json:
        print_json(values)
        return
    from steelyard.cli.data.profile_page import quarantine_table, told_files

    names = ("read", "written", "set_aside", "duplicates", "trimmed", "emptied")
    heads = ("rows read", "written", "set aside", "duplicates left out", "texts trimmed")
    heads += ("texts that stood for nothing",)
    facts = [(head, f"{values[name]:,}", "") for head, name in zip(heads, names, strict=True)]
    sections = [Section("Rows", [Facts(facts), *map(Text, table.drift)])]
    if found.quarantine.total:
        sections.append(Section("Rows set aside", [quarantine_table(found.quarantine)]))
    Report(f"Clean copy in {out}", told_files(table), sections).print()


@app.command
def sql(
    query: str,
    *sources: Sources,
    out: Path | None = None,
    rows: int = 50,
    types: str = "",
    memory: str = "1 GB",
    threads: int = 1,
    timeout_s: float = 600.0,
    json: Switch = False,
) -> None:
    """Answer one SELECT over tables with DuckDB, which can read those tables and nothing else.

    Example: steelyard data table sql "select shop, sum(price) from sales group by shop" sales.csv

    A table is named as its file or folder; NAME=FILE names it otherwise.

    Args:
        query: one SELECT statement.
        *sources: files, patterns, folders and addresses, each a table; NAME=FILE gives a name.
        out: file for all rows of the answer, in the format of its name's end.
        rows: most rows that are printed.
        types: kinds of columns of text files, in place of what their values look like, such as
            "id=text, price=number".
        memory: most memory of DuckDB, such as "500 MB".
        threads: threads of DuckDB.
        timeout_s: seconds after which the query is stopped.
        json: print rows as JSON, one object each.
    """
    from steelyard.data.table.sql import query as answered

    if rows < 1 or threads < 1 or timeout_s <= 0:
        raise ConfigError("--rows and --threads must be 1 or more, --timeout-s above 0")
    tables = _views(sources, kinds_of(types))
    settings = {"memory_bytes": parse(memory, "byte", where="--memory"), "threads": threads}
    with answered(query, tables, timeout_s=timeout_s, **settings) as answer:
        if out is not None:
            from steelyard.data.table.writing import write_file

            written = write_file(out, answer.schema, answer)
            print_json(
                {"rows": written, "out": str(out), "set_aside": answer.set_aside}
            ) if json else print(f"{written:,} rows in {out}")
            return
        _print_answer(answer, rows, json=json)


def _views(sources: tuple[str, ...], kinds: dict[str, str]) -> "dict[str, DataTable]":
    """Look at each source as a table of its own."""
    from steelyard.data.table.sql import view_name

    found: dict[str, DataTable] = {}
    for source in sources:
        name, is_named, path = source.partition("=")
        # A path may hold such a sign; a name of SQL is a word.
        if not (is_named and name.isidentifier()):
            name, path = view_name(source), source
        if name in found:
            raise ConfigError(f"two tables are named {name!r}", hint=f"name one, as other={path}")
        found[name] = _scanned("sql", (path,), {}, 1)
    for name, table in found.items():
        own = {column: kind for column, kind in kinds.items() if column in table.kinds}
        if own:
            found[name] = _scanned("sql", tuple(item.path for item in table.files), own, 1)
    known = {column for table in found.values() for column in table.kinds}
    if unknown := [column for column in kinds if column not in known]:
        raise ConfigError(f"--types names {unknown[0]!r}, which no table of text has")
    return found


def _print_answer(answer: "SqlAnswer", most: int, *, json: bool) -> None:
    """Print the first rows of an answer."""
    shown: list[dict[str, Any]] = []
    is_cut = False
    for batch in answer:
        shown += batch.slice(0, most + 1 - len(shown)).to_pylist()
        if is_cut := len(shown) > most:
            break
    shown = shown[:most]
    if json:
        print_json({"rows": shown, "is_cut": is_cut, "set_aside": answer.set_aside})
        return
    names = answer.schema.names
    # A result may have two columns of one name, of which a row as a dict keeps the last.
    cells: list[list[Cell]] = [
        ["" if row[name] is None else str(row[name]) for name in names] for row in shown
    ]
    notes = [f"the first {most:,} rows; --rows shows more, --out writes all"] if is_cut else []
    if answer.set_aside:
        notes.append(f"{answer.set_aside:,} rows of the files are set aside and in no answer")
    blocks = [Table([Column(name) for name in names], cells), *map(Text, notes)]
    Report("Answer", f"{len(shown):,} rows", [Section("Rows", blocks)]).print()


def _scanned(
    verb: str, sources: tuple[str, ...], kinds: dict[str, str], workers: int
) -> "DataTable":
    """Look at the files of a verb."""
    if not sources:
        raise ConfigError(
            f"data table {verb} needs files", hint=f"steelyard data table {verb} 'sales/*.csv'"
        )
    if workers < 1:
        raise ConfigError(f"--workers is {workers}, but must be 1 or more")
    return scanned(sources, kinds)


def _folded(table: "DataTable", passing: dict[str, Any], *, quiet: bool) -> "Folded":
    """Profile the table with a bar of the bytes read; `passing` is what else `fold` is told."""
    from steelyard.data.table import ProfileFold

    total = float(sum(part.num_bytes for part in table.partitions)) or 1.0
    read = 0
    with progress("profile", total=total, quiet=quiet) as advance:

        def done(num_bytes: int) -> None:
            nonlocal read
            read += num_bytes
            advance(float(read), f"{pretty(read, 'byte')} of {pretty(total, 'byte')}")

        return table.fold(ProfileFold(), done=done, **passing)


def _write_bad(path: Path, quarantine: "Quarantine") -> None:
    """Write the rows that were set aside."""
    import csv

    from steelyard.files import atomic_path

    with atomic_path(path) as beside, beside.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "row", "field", "value", "reason"])
        writer.writerows(quarantine.rows)
