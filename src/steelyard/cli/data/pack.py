"""`steelyard data pack`: tables as steelpack files, what is in them, and which format fits."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from steelyard.cli.output import Switch, print_report
from steelyard.errors import BackendError, ConfigError, DataError
from steelyard.runs.report import Column, Facts, Report, Section, Table
from steelyard.units import pretty

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["app"]

app = cyclopts.App(
    name="pack", help="Keep tables as steelpack files, look into them, choose a format."
)
_Sources = Annotated[
    str,
    cyclopts.Parameter(help="Files, patterns such as 'sales/*.csv', and folders."),
]
"""The help of arguments that may be many stands here: it is not read from a docstring."""
_MOST_ROWS = 1_000_000


@app.command
def convert(
    *sources: _Sources,
    out: Path,
    compress: str = "auto",
    json: Switch = False,
) -> None:
    """Write tables in files as one steelpack file, row group by row group.

    Example: steelyard data pack convert 'sales/*.csv' --out sales.steelpack

    Args:
        *sources: files, patterns such as 'sales/*.csv', and folders.
        out: the file to write; an older one stays until all is written.
        compress: texts by zstd: "auto" for dictionaries where that saves a fifth, "never" or
            "always".
        json: print JSON instead of a table.
    """
    from steelyard.data.table import Quarantine

    table, quarantine = _scanned(sources, "convert"), Quarantine()
    from steelyard.data.formats import write_steelpack

    batches = (batch for part in table.partitions for batch in table.read(part, quarantine))
    rows = write_steelpack(batches, out, schema=table.schema, compress=compress)
    values = {
        "out": str(out),
        "rows": rows,
        "set_aside": quarantine.total,
        "bytes_before": table.num_bytes,
        "bytes": out.stat().st_size,
    }
    facts = Facts(
        [
            ("rows", f"{rows:,}", ""),
            ("set aside", f"{quarantine.total:,}", ""),
            ("before", pretty(table.num_bytes, "byte"), ""),
            ("now", pretty(values["bytes"], "byte"), str(out)),
        ]
    )
    page = Report("Steelpack", "what was written", [Section("File", [facts])])
    print_report(page, json=json, values=values)


@app.command
def show(file: Path, *, check: Switch = False, json: Switch = False) -> None:
    """Show rows, columns and encodings of a steelpack file; nothing but heads is read.

    Example: steelyard data pack show sales.steelpack --check

    Args:
        file: a steelpack file.
        check: read every byte; damaged ones are named with the last whole row group.
        json: print JSON instead of tables.
    """
    _with_arrow()
    from steelyard.data.formats import Steelpack

    table = Steelpack.open(file)
    if check:
        _refuse_damage(table)
    columns = table.told()
    values = {
        "file": str(file),
        "bytes": file.stat().st_size,
        "rows": table.rows,
        "row_groups": table.groups,
        "checked": bool(check),
        "columns": columns,
    }
    facts = Facts(
        [
            ("rows", f"{table.rows:,}", ""),
            ("row groups", f"{table.groups:,}", ""),
            ("bytes", pretty(values["bytes"], "byte"), ""),
        ]
    )
    heads = [
        Column("column"),
        Column("type"),
        Column("kept as"),
        Column("dictionary", align="right", rank=1),
        Column("missing", align="right", rank=1),
        Column("bytes", align="right"),
    ]
    rows = [
        [
            item["name"],
            item["type"],
            ", ".join(item["encodings"]),
            f"{item['distinct']:,}" if item["distinct"] else "",
            f"{item['nulls']:,}",
            pretty(item["bytes"], "byte"),
        ]
        for item in columns
    ]
    sections = [Section("File", [facts]), Section("Columns", [Table(heads, rows)])]
    print_report(Report("Steelpack", str(file), sections), json=json, values=values)


def _refuse_damage(table: Any) -> None:
    """Refuse a file with damaged bytes."""
    damaged = table.pack.damaged()
    if damaged:
        last = table.last_good_group()
        told = f"row groups 0 to {last} are whole" if last >= 0 else "no row group is whole"
        raise DataError(
            f"{table.pack.where} is damaged in {', '.join(damaged[:5])}; {told}",
            hint="write it again from its source",
        )


@app.command
def advise(
    *sources: _Sources,
    storage: str = "",
    verify: Switch = False,
    json: Switch = False,
) -> None:
    """Predict size and reading time of a table in each format, from a sample of its rows.

    Example: steelyard data pack advise 'sales/*.csv' --storage s3-standard

    Args:
        *sources: files, patterns such as 'sales/*.csv', and folders.
        storage: storage tier that the file is to be in, such as s3-standard; this machine's memory
            when it is left out.
        verify: write the table in each format as well, and show what was measured.
        json: print JSON instead of tables.
    """
    table, rows = _in_memory(sources, "advise")
    from steelyard.catalog import storage_tier
    from steelyard.data.formats.advice import advise as advise_on
    from steelyard.data.formats.advice import known_costs

    tier = storage_tier(storage) if storage else None
    found = advise_on(table, known_costs(), tier=tier)
    measured = {item.option: item for item in _measured(table)} if verify else {}
    columns = [
        Column("option"),
        Column("bytes", align="right"),
        Column("decode", align="right"),
        Column("load", align="right"),
    ]
    if measured:
        columns += [Column("bytes measured", align="right"), Column("measured", align="right")]
    listed, values = [], []
    for item in found:
        cells = [
            item.option,
            pretty(item.num_bytes, "byte"),
            pretty(item.scan_s, "s"),
            pretty(item.load_s, "s"),
        ]
        value: dict[str, Any] = {
            "option": item.option,
            "num_bytes": item.num_bytes,
            "scan_s": item.scan_s,
            "load_s": item.load_s,
            "usd_per_month": item.usd_per_month,
        }
        if measured:
            real = measured[item.option]
            cells += [pretty(real.num_bytes, "byte"), pretty(real.scan_s, "s")]
            value |= {"num_bytes_measured": real.num_bytes, "scan_s_measured": real.scan_s}
        listed.append(cells)
        values.append(value)
    note = f"predicted for {rows:,} rows; the fastest to load from the storage stands first"
    page = Report("Formats", note, [Section("Options", [Table(columns, listed)])])
    print_report(page, json=json, values={"rows": rows, "options": values})


@app.command
def bench(
    *sources: _Sources,
    preset: str = "",
    rows: int = 200_000,
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Write a table in each format and measure size, scan, selection and single rows.

    Example: steelyard data pack bench --preset core --rows 100000

    Args:
        *sources: files, patterns such as 'sales/*.csv', and folders; none with --preset.
        preset: a generated workload: core, bi, classic, geo, log or ml.
        rows: rows of the generated workload.
        seed: seed of what is drawn.
        json: print JSON instead of tables.
    """
    if bool(sources) == bool(preset):
        raise ConfigError("data pack bench needs files or --preset, and not both")
    if preset:
        _with_arrow()
        import numpy as np

        from steelyard.data.formats import generate

        table = generate(preset, rows, np.random.default_rng(seed))
    else:
        table, _ = _in_memory(sources, "bench")
    found = _measured(table, seed)
    heads = ("bytes", "write", "scan", "select", "take")
    columns = [Column("option"), *(Column(head, align="right") for head in heads)]
    listed = [
        [
            item.option,
            pretty(item.num_bytes, "byte"),
            *(
                pretty(value, "s")
                for value in (item.write_s, item.scan_s, item.select_s, item.take_s)
            ),
        ]
        for item in found
    ]
    from dataclasses import asdict

    note = f"{len(table):,} rows; one thread, files in the page cache, medians"
    page = Report("Formats", note, [Section("Measured", [Table(columns, listed)])])
    values = {"rows": len(table), "seed": seed, "options": [asdict(item) for item in found]}
    print_report(page, json=json, values=values)


def _with_arrow() -> None:
    """Refuse to go on without Arrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise BackendError(
            "tables in files are read with Arrow, which is not installed",
            hint="pip install 'steelyard[data]'",
        ) from error


def _scanned(sources: tuple[str, ...], verb: str) -> "DataTable":
    """Look at the files."""
    if not sources:
        raise ConfigError(
            f"data pack {verb} needs files", hint=f"steelyard data pack {verb} 'sales/*.csv'"
        )
    _with_arrow()
    from steelyard.data.table import DataTable

    return DataTable.scan(*sources)


def _in_memory(sources: tuple[str, ...], verb: str) -> "tuple[pa.Table, int]":
    """Return the first rows of a table, at most a million, and their number."""
    import pyarrow as pa

    table = _scanned(sources, verb)
    from steelyard.data.table import Quarantine

    quarantine: Quarantine = Quarantine()
    held, rows = [], 0
    for part in table.partitions:
        for batch in table.read(part, quarantine):
            held.append(batch.slice(0, _MOST_ROWS - rows))
            rows += len(held[-1])
            if rows >= _MOST_ROWS:
                break
        if rows >= _MOST_ROWS:
            break
    return pa.Table.from_batches(held, table.schema).combine_chunks(), rows


def _measured(table: "pa.Table", seed: int = 0) -> list[Any]:
    """Measure every option on a table."""
    import numpy as np

    from steelyard.data.formats.options import bench as measure

    with tempfile.TemporaryDirectory() as folder:
        return measure(table, Path(folder), np.random.default_rng(seed))
