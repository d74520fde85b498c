"""Measures how fast this machine reads and profiles tables, on tables made for it."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.catalog.scan_rates import FoldRate, ReadRate, ScanRates
from steelyard.cost.scan import FileWork
from steelyard.data.table.kinds import KINDS, arrow_type
from steelyard.data.table.profile import ProfileFold
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.table import DataTable
from steelyard.data.table.work import scan_work
from steelyard.data.table.writing import write_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["load_kernels", "measure_scan_rates"]

_FORMATS = {"csv": 12_000, "json lines": 1_500, "parquet": 65_536, "arrow": 65_536}
"""Formats, and the rows of a narrow table of each that take some milliseconds."""
_ENDS = {"csv": ".csv", "json lines": ".jsonl", "parquet": ".parquet", "arrow": ".arrow"}
_NARROW, _WIDE = 4, 400
_REPEATS = 3
_MOST_S = 12.0
"""Seconds after which each table is read once only."""
_FOLD_ROWS, _BATCHES = 40_000, 8
_FEW = 3
"""Different values of a column of few."""


def measure_scan_rates(
    tell: Callable[[str, float], None] = lambda _text, _share: None,
) -> ScanRates:
    """Measure rates on generated tables, in some seconds and at most 20.

    Args:
        tell: receives what is measured, and the share that is done.

    Returns:
        The rates, not stored yet.

    Raises:
        CapacityError: there is no room for a few megabytes of temporary files.
    """
    # Kernels that were never compiled here take longer than all measurements.
    tell("compiled kernels", 0.0)
    load_kernels()
    began_s = time.perf_counter()
    deadline_s = began_s + _MOST_S
    found: dict[str, ReadRate] = {}
    with tempfile.TemporaryDirectory(prefix="steelyard-scan-") as folder:
        for place, (format, rows) in enumerate(_FORMATS.items()):
            tell(f"reading {format}", 0.15 * place)
            found[format] = _read_rate(Path(folder), format, rows, deadline_s)
        overlap = _overlap(Path(folder), deadline_s)
    tell("profiling columns", 0.6)
    fold = _fold_rate(deadline_s)
    tell("start of a process", 0.9)
    return ScanRates(
        read=found,
        fold=fold,
        process_s=_process_s(),
        column_bytes=_column_bytes(),
        time_s=time.time(),
        duration_s=time.perf_counter() - began_s,
        overlap=overlap,
    )


def load_kernels() -> None:
    """Profile a few rows of each kind: what is compiled or loaded once is no part of a pass."""
    for kind in KINDS:
        DataTable.scan(_table(kind, 64, 1, 10**6)).fold(ProfileFold())


def _values(kind: str, rows: int, distinct: int, rng: np.random.Generator, width: int = 0) -> Any:
    """Return a column of a kind with about so many different values."""
    import pyarrow as pa

    drawn = rng.integers(0, distinct, rows)
    if kind == "text":
        return pa.array([f"v{value:0{width}d}" for value in drawn.tolist()])
    if kind == "number":
        return pa.array((drawn / 100 + 0.25).round(2))
    if kind == "yes or no":
        return pa.array(drawn % 2 == 0)
    if kind == "date":
        return pa.array((drawn % 20_000).astype(np.int32)).cast(pa.date32())
    if kind == "time":
        return pa.array(1_600_000_000_000_000 + drawn * 1_000_000).cast(arrow_type("time"))
    return pa.array(drawn)


def _table(kind: str, rows: int, columns: int, distinct: int, width: int = 0) -> "pa.Table":
    """Return a table of columns that are alike."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    return pa.table(
        {f"c{place}": _values(kind, rows, distinct, rng, width) for place in range(columns)}
    )


def _read_tables(rows: int) -> Iterator[tuple[str, "pa.Table"]]:
    """Yield tables that tell the parts of a time apart, each with its name."""
    for kind in KINDS:
        yield kind, _table(kind, rows, _NARROW, 10**6)
    yield "long text", _table("text", rows // 2, _NARROW, 10**6, width=60)
    # A column of few values is small in files that name each value once.
    yield "few", _table("number", rows, _NARROW, 2000)
    # Columns of many rows and columns leave the processor's caches before they are turned.
    yield "wide", _table("number", max(rows // 30, 100), _WIDE, 10**6)
    yield "wide and short", _table("number", max(rows // 150, 40), _WIDE, 10**6)
    yield "small", _table("number", 20, _NARROW, 10**6)


def _read_rate(folder: Path, format: str, rows: int, deadline_s: float) -> ReadRate:
    """Measure a format."""
    works, seconds = [], []
    for place, (_, rows_of_kind) in enumerate(_read_tables(rows)):
        path = folder / f"{place}{_ENDS[format]}"
        write_file(path, rows_of_kind.schema, rows_of_kind.to_batches())
        table = DataTable.scan(path)
        works.append(scan_work(table, is_profiled=False)[0])
        # What a type takes is known here, and estimated where only the size of a file is.
        works[-1] = replace(works[-1], rows=float(len(rows_of_kind)))
        seconds.append(_usual_s(lambda table=table: _read(table), deadline_s))
    names = [*KINDS, "part_s", "byte_s", "column_batch_s", "wide_value_s"]
    rates = _solved([item.read_amounts() for item in works], seconds, names)
    found = ReadRate(
        value_s={kind: rates[kind] for kind in KINDS},
        **{name: rates[name] for name in names if name not in KINDS},
    )
    if format in ("csv", "json lines"):
        found = _with_extras(folder, format, rows, found, deadline_s)
    return found


def _with_extras(
    folder: Path, format: str, rows: int, found: ReadRate, deadline_s: float
) -> ReadRate:
    """Add what compressed files and batches with misfits take more."""
    import gzip

    plain = folder / f"0{_ENDS[format]}"
    packed = plain.with_name(plain.name + ".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
    usual_s = _usual_s(lambda: _read(DataTable.scan(plain)), deadline_s)
    packed_s = _usual_s(lambda: _read(DataTable.scan(packed)), deadline_s)
    # One value of another kind makes the reader look at every value of the column in that batch.
    doubtful = plain.with_name("doubtful" + plain.suffix)
    words = {"csv": "x,x,x,x\n", "json lines": '{"c0":"x","c1":"x","c2":"x","c3":"x"}\n'}[format]
    doubtful.write_bytes(plain.read_bytes() + words.encode())
    doubtful_s = _usual_s(lambda: _read(DataTable.scan(doubtful)), deadline_s)
    return replace(
        found,
        unzip_byte_s=max(packed_s - usual_s, 0.0) / plain.stat().st_size,
        doubtful_value_s=max(doubtful_s - usual_s, 0.0) / (_NARROW * rows),
    )


def _read(table: DataTable) -> None:
    """Read all rows, and keep none."""
    quarantine = Quarantine()
    for part in table.partitions:
        for _ in table.read(part, quarantine):
            pass


def _overlap(folder: Path, deadline_s: float) -> float:
    """Return which share of the shorter one of reading and profiling goes on beside the other."""
    path = folder / "beside.csv"
    rows = _table("number", 40_000, _NARROW, 10**6)
    write_file(path, rows.schema, rows.to_batches())
    table = DataTable.scan(path)

    def profile() -> None:
        table.fold(ProfileFold())

    read_s = _usual_s(lambda: _read(table), deadline_s)
    both_s = _usual_s(profile, deadline_s)
    took_s = _usual_s(profile, deadline_s, clock=time.perf_counter)
    shorter_s = min(read_s, both_s - read_s)
    return min(max((both_s - took_s) / shorter_s, 0.0), 1.0) if shorter_s > 0 else 0.0


def _fold_rate(deadline_s: float) -> FoldRate:
    """Measure a profile of batches in memory."""
    samples = [
        (_table(kind, _FOLD_ROWS, _NARROW, few), float(few > _FEW))
        for kind in KINDS
        for few in (_FEW, 10**9)
    ]
    samples.append((_table("text", _FOLD_ROWS // 2, _NARROW, 10**6, width=60), 1.0))
    # States of many columns fall out of the processor's caches between one batch and the next.
    samples += [(_table("number", rows, _WIDE, 10**6), 1.0) for rows in (800, 4800, 600)]
    samples.append((_table("whole number", 4800, _WIDE, _FEW), 0.0))
    # One batch alone tells what the first values of a column take: counters and texts are filled.
    batches = [_BATCHES] * (len(samples) - 2) + [1, _BATCHES]
    amounts = [
        _in_memory(table, variety, count).fold_amounts()
        for (table, variety), count in zip(samples, batches, strict=True)
    ]
    seconds = [
        _usual_s(_profile_of(table, count), deadline_s)
        for (table, _), count in zip(samples, batches, strict=True)
    ]
    varied = [f"{kind}, varied" for kind in KINDS]
    rates = _solved(
        amounts, seconds, [*KINDS, *varied, "byte_s", "column_batch_s", "column_part_s"]
    )
    return FoldRate(
        value_s={kind: rates[kind] for kind in KINDS},
        varied_value_s={kind: rates[f"{kind}, varied"] for kind in KINDS},
        byte_s=rates["byte_s"],
        column_batch_s=rates["column_batch_s"],
        column_part_s=rates["column_part_s"]
        + _usual_s(_part_of(samples[-2][0]), deadline_s) / _WIDE,
    )


def _in_memory(table: "pa.Table", variety: float, batches: int) -> FileWork:
    """Return the work of profiling a table in memory."""
    work = scan_work(DataTable.scan(table))[0]
    is_text = str(table.schema.types[0]) == "string"
    # Each text has four bytes of offset beside its own.
    length = table.nbytes / len(table) / table.num_columns - 4 if is_text else 0.0
    columns = tuple(replace(item, variety=variety, text_bytes=length) for item in work.columns)
    return replace(work, columns=columns, batches=float(batches), parts=1)


def _profile_of(table: "pa.Table", count: int) -> Callable[[], None]:
    """Return a call that profiles a table in some batches from the beginning.

    A state that has met its values before is faster than one that meets them.
    """
    fold = ProfileFold()
    batches = table.to_batches(max_chunksize=-(-len(table) // count))

    def profile() -> None:
        state = fold.init(table.schema)
        for batch in batches:
            fold.update(state, batch)

    return profile


def _part_of(table: "pa.Table") -> Callable[[], None]:
    """Return a call that does what each part of a table adds: keep, read back, merge.

    Finishing is once for all parts; with few of them it counts, and with many it is little.
    """
    fold = ProfileFold()
    state = fold.init(table.schema)
    fold.update(state, table.to_batches()[0])

    def part() -> None:
        again = fold.of(table.schema, fold.sections(state))
        fold.merge(again, state)
        fold.finish(again)

    return part


def _usual_s(
    work: Callable[[], None],
    deadline_s: float,
    *,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Return the median time of some calls, the processor's: waiting for others is left out."""
    found = []
    for _ in range(_REPEATS):
        begin = clock()
        work()
        found.append(clock() - begin)
        if time.perf_counter() > deadline_s:
            break
    return float(np.median(found))


def _solved(
    amounts: Sequence[dict[str, float]], seconds: Sequence[float], names: Sequence[str]
) -> dict[str, float]:
    """Return rates, none negative."""
    from scipy.optimize import nnls

    # Divided by the times, errors count as shares; columns of one size solve well.
    rows = np.array([[item.get(name, 0.0) for name in names] for item in amounts])
    rows = rows / np.array(seconds)[:, None]
    scale = np.maximum(rows.max(axis=0), 1e-30)
    solved = nnls(rows / scale, np.ones(len(rows)))[0]
    return dict(zip(names, (solved / scale).tolist(), strict=True))


def _process_s() -> float:
    """Return the time that a fresh process takes until it could read."""
    begin = time.perf_counter()
    words = "import steelyard.data.table.folding, steelyard.data.table.profile, pyarrow.csv"
    subprocess.run([sys.executable, "-c", words], check=True, capture_output=True)
    return time.perf_counter() - begin


def _column_bytes() -> float:
    """Return the memory of the profile of one column of varied values."""
    import tracemalloc

    table = _table("number", 4096, _WIDE // 4, 10**9)
    tracemalloc.start()
    fold = ProfileFold()
    state = fold.init(table.schema)
    for batch in table.to_batches():
        fold.update(state, batch)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / table.num_columns
