"""Ways to write a table, and what each costs when it is done: bytes and seconds."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.formats.steelpack import Steelpack
from steelyard.data.formats.writer import write_steelpack
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["OPTIONS", "MeasuredOption", "WriteOption", "bench", "option", "read_as", "write_as"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOption:
    """A format with its settings.

    Attributes:
        format: "steelpack", "parquet", "arrow" or "orc".
        compression: "none", "snappy" or "zstd"; for steelpack "auto", "never" or "always".
        dictionary: whether columns may be kept in dictionaries.
    """

    format: str
    compression: str
    dictionary: bool = True

    @property
    def name(self) -> str:
        """Words for people, and what `option` reads."""
        plain = "" if self.dictionary else " plain"
        return f"{self.format}{plain} {self.compression}"


OPTIONS = (
    WriteOption(format="steelpack", compression="auto"),
    WriteOption(format="steelpack", compression="never"),
    WriteOption(format="steelpack", compression="always"),
    WriteOption(format="parquet", compression="none", dictionary=False),
    WriteOption(format="parquet", compression="none"),
    WriteOption(format="parquet", compression="snappy"),
    WriteOption(format="parquet", compression="zstd"),
    WriteOption(format="arrow", compression="none", dictionary=False),
    WriteOption(format="arrow", compression="zstd", dictionary=False),
    WriteOption(format="orc", compression="none"),
    WriteOption(format="orc", compression="zstd"),
)
"""Options that are compared."""


def option(name: str) -> WriteOption:
    """Return an option by its name.

    Args:
        name: such as "parquet zstd".

    Returns:
        The option.

    Raises:
        ConfigError: there is none of that name.
    """
    for item in OPTIONS:
        if item.name == name:
            return item
    raise ConfigError(
        f"no option {name!r}", hint=f"options are {', '.join(item.name for item in OPTIONS)}"
    )


def write_as(table: "pa.Table", path: Path, chosen: WriteOption) -> int:
    """Write a table.

    Args:
        table: table in memory.
        path: the file.
        chosen: how.

    Returns:
        Bytes of the file.
    """
    import pyarrow as pa
    from pyarrow import orc, parquet

    if chosen.format == "steelpack":
        write_steelpack(table.to_batches(), path, schema=table.schema, compress=chosen.compression)
    elif chosen.format == "parquet":
        parquet.write_table(
            table, path, compression=chosen.compression, use_dictionary=chosen.dictionary
        )
    elif chosen.format == "orc":
        # Without the threshold its writer keeps no dictionary at all.
        threshold = 0.8 if chosen.dictionary else 0.0
        compression = "uncompressed" if chosen.compression == "none" else chosen.compression
        orc.write_table(
            table, str(path), compression=compression, dictionary_key_size_threshold=threshold
        )
    else:
        compression = None if chosen.compression == "none" else chosen.compression
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, table.schema, options=options) as writer,
        ):
            writer.write_table(table, max_chunksize=1 << 20)
    return path.stat().st_size


def read_as(path: Path, chosen: WriteOption, columns: Sequence[str] | None = None) -> "pa.Table":
    """Read a table in one thread.

    Args:
        path: the file.
        chosen: how it was written.
        columns: names; all when they are left out.

    Returns:
        The table.
    """
    import pyarrow as pa
    from pyarrow import orc, parquet

    names = None if columns is None else list(columns)
    if chosen.format == "steelpack":
        return Steelpack.open(path).read(names)
    if chosen.format == "parquet":
        return parquet.read_table(path, columns=names, use_threads=False)
    if chosen.format == "orc":
        return orc.ORCFile(str(path)).read(names)
    with pa.memory_map(str(path)) as source:
        wanted = None
        if names is not None:
            schema = pa.ipc.open_file(source).schema
            wanted = [schema.get_field_index(name) for name in names]
            source.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        table = pa.ipc.open_file(source, options=options).read_all()
    return _touched(table) if chosen.compression == "none" else table


def _touched(table: "pa.Table") -> "pa.Table":
    """Read every page of a mapped table, as decoding would."""
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is not None and buffer.size:
                    int(np.frombuffer(buffer, np.uint8)[::4096].sum())
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOption:
    """What an option cost.

    Attributes:
        option: its name.
        num_bytes: bytes of the file.
        write_s: seconds to write it.
        scan_s: seconds to read all columns into Arrow in one thread, median.
        select_s: seconds to read the thousandth part of the rows by a range of one column, median.
        take_s: seconds to read 1,000 single rows, median.
    """

    option: str
    num_bytes: int
    write_s: float
    scan_s: float
    select_s: float
    take_s: float


def bench(
    table: "pa.Table",
    folder: Path,
    rng: np.random.Generator,
    *,
    options: Sequence[WriteOption] = OPTIONS,
    rounds: int = 3,
) -> list[MeasuredOption]:
    """Write a table in several ways and time each; they take turns, files are in the page cache.

    Args:
        table: table in memory.
        folder: folder for the files, which stay.
        rng: source of the rows that are taken.
        options: which.
        rounds: timed ones, after one that is not.

    Returns:
        One for each option.

    Raises:
        ConfigError: the table has no rows or no options are given.
    """
    if not len(table) or not options:
        raise ConfigError("nothing to measure: no rows or no options")
    rows = np.sort(rng.choice(len(table), min(1000, len(table)), replace=False))
    ranged = _range_of(table)
    paths, sizes, writes = [], [], []
    for place, chosen in enumerate(options):
        path = folder / f"{place}.{chosen.format}"
        began_s = time.perf_counter()
        sizes.append(write_as(table, path, chosen))
        writes.append(time.perf_counter() - began_s)
        paths.append(path)
    seconds: list[dict[str, list[float]]] = [{"scan": [], "select": [], "take": []} for _ in paths]
    for turn in range(rounds + 1):
        for place, chosen in enumerate(options):
            for kind, work in _works(paths[place], chosen, rows, ranged).items():
                began_s = time.perf_counter()
                work()
                if turn:
                    seconds[place][kind].append(time.perf_counter() - began_s)
    return [
        MeasuredOption(
            option=chosen.name,
            num_bytes=sizes[place],
            write_s=writes[place],
            scan_s=float(np.median(seconds[place]["scan"])),
            select_s=float(np.median(seconds[place]["select"])),
            take_s=float(np.median(seconds[place]["take"])),
        )
        for place, chosen in enumerate(options)
    ]


def _range_of(table: "pa.Table") -> tuple[str, Any, Any] | None:
    """Return a column of numbers and a range that holds about a thousandth of the rows."""
    import pyarrow as pa

    from steelyard.data.arrow import compute

    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            levels = compute().quantile(column, [0.5, 0.501], interpolation="nearest").to_pylist()
            if None not in levels:
                return name, levels[0], levels[1]
    return None


def _works(
    path: Path, chosen: WriteOption, rows: np.ndarray, ranged: tuple[str, Any, Any] | None
) -> dict[str, Callable[[], Any]]:
    """Return what is timed."""
    works: dict[str, Callable[[], Any]] = {"scan": lambda: read_as(path, chosen)}
    if chosen.format == "steelpack":
        works["take"] = lambda: Steelpack.open(path).take(rows)
    else:
        works["take"] = lambda: read_as(path, chosen).take(rows)
    if ranged:
        works["select"] = lambda: _select(path, chosen, *ranged)
    else:
        works["select"] = works["scan"]
    return works


def _select(path: Path, chosen: WriteOption, name: str, low: Any, high: Any) -> "pa.Table":
    """Read the rows of a range."""
    import pyarrow as pa
    from pyarrow import parquet

    if chosen.format == "steelpack":
        return Steelpack.open(path).select({name: (low, high)})
    if chosen.format == "parquet":
        filters = [(name, ">=", low), (name, "<=", high)]
        return parquet.read_table(path, filters=filters, use_threads=False)
    from steelyard.data.arrow import compute

    pc, table = compute(), read_as(path, chosen)
    column = table.column(name)
    kind = column.type
    above = pc.greater_equal(column, pa.scalar(low, kind))
    return table.filter(pc.and_(above, pc.less_equal(column, pa.scalar(high, kind))))
