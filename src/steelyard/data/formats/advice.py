"""Which way to write a table is smallest and fastest: predicted from a sample and a calibration."""

import math
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog import StorageTier
from steelyard.data.formats.generator import generate
from steelyard.data.formats.options import OPTIONS, WriteOption, option, read_as, write_as
from steelyard.data.formats.physical import kind_of, stored_type
from steelyard.data.formats.writer import GROUP_ROWS
from steelyard.data.stages import hash_of
from steelyard.errors import ConfigError
from steelyard.files import read_json, writable_user_dir, write_json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FormatAdvice", "FormatCosts", "advise", "calibrate", "known_costs"]

_SAMPLES = (16_384, 65_536)
"""Rows of the two samples from which sizes are extrapolated."""
_BLOCK_ROWS = 4096
_DICTIONARY_BYTES = 1 << 20
"""Size at which Parquet's writer gives a dictionary up."""
_PLAIN = ("parquet plain none", "parquet none")
_KINDS = ("number", "flag", "text", "other")
_FEATURES = 3
"""Version of features and reader, so that costs of other ones are measured again."""
_CALIBRATION_ROWS = 131_072
_CALIBRATION_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class FormatCosts:
    """Seconds that reading takes on a machine, fitted.

    Attributes:
        seconds: by name of the option: per column, per row of each of the kinds (number, flag,
            text, other), per row of a column with missing values, per byte in memory, per byte of
            the file, [8].
    """

    seconds: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatAdvice:
    """What is predicted of an option.

    Attributes:
        option: its name.
        num_bytes: bytes of the file.
        scan_s: seconds to read all columns in one thread from memory.
        load_s: seconds to read all columns from the storage: requests, transfer and decoding.
        usd_per_month: dollars a month of keeping the file there, 0 for this machine.
    """

    option: str
    num_bytes: float
    scan_s: float
    load_s: float
    usd_per_month: float


def _features(column: "pa.ChunkedArray", rows: int, num_bytes: float) -> NDArray[np.float64]:
    """Return what the time of reading a column depends on, of a table of some rows."""
    kind = kind_of(stored_type(column.type))
    scale = rows / max(len(column), 1)
    per_kind = [rows if name == kind else 0 for name in _KINDS]
    if kind not in _KINDS:
        per_kind[-1] = rows
    missing = rows if column.null_count else 0
    return np.array([1.0, *per_kind, missing, column.nbytes * scale, num_bytes])


def calibrate(folder: Path | None = None) -> FormatCosts:
    """Measure on this machine how long each option takes to read columns of each kind.

    Args:
        folder: folder for files; a temporary one when it is left out.

    Returns:
        The costs; takes less than 20 s on two cores.
    """
    from scipy.optimize import nnls

    table = generate("core", _CALIBRATION_ROWS, np.random.default_rng(0))
    fitted: dict[str, tuple[float, ...]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for chosen in OPTIONS:
            path = Path(place) / "column"
            rows, seconds = [], []
            for name in table.column_names:
                one = table.select([name])
                for part in (one, one.slice(0, len(one) // 8)):
                    num_bytes = write_as(part, path, chosen)
                    rows.append(_features(part.column(0), len(part), num_bytes))
                    seconds.append(_fastest(path, chosen))
            features, measured = np.array(rows), np.array(seconds)
            # Relative errors count: a column that takes long must not outvote the others.
            weights = 1 / np.maximum(measured, 1e-4)
            found, _ = nnls(features * weights[:, None], measured * weights)
            fitted[chosen.name] = tuple(found.tolist())
        factors = _whole_factors(table, fitted, Path(place))
    return FormatCosts(
        {name: tuple(factors[name] * cost for cost in found) for name, found in fitted.items()}
    )


def _whole_factors(
    table: "pa.Table", fitted: Mapping[str, tuple[float, ...]], folder: Path
) -> dict[str, float]:
    """Return how much longer all columns take than the sum of single ones, by option.

    Options take turns: what is read after other work finds neither its memory nor the caches as it
    left them, as single columns do that are read again and again.
    """
    predicted, seconds = {}, {}
    for chosen in OPTIONS:
        write_as(table, folder / chosen.name, chosen)
        size = (folder / chosen.name).stat().st_size / table.num_columns
        every = [_features(column, len(table), size) for column in table.columns]
        predicted[chosen.name] = float(sum(every) @ np.array(fitted[chosen.name]))
        seconds[chosen.name] = []
    for turn in range(_CALIBRATION_ROUNDS + 1):
        for chosen in OPTIONS:
            began_s = time.perf_counter()
            read_as(folder / chosen.name, chosen)
            if turn:
                seconds[chosen.name].append(time.perf_counter() - began_s)
    return {name: float(np.median(found)) / predicted[name] for name, found in seconds.items()}


def known_costs() -> FormatCosts:
    """Return the costs of this machine, measured the first time and kept in the user's folder.

    Returns:
        The costs.
    """
    path = writable_user_dir() / f"format-costs-{_stamp()}.json"
    if path.is_file():
        kept = read_json(path)
        return FormatCosts({name: tuple(found) for name, found in kept.items()})
    found = calibrate()
    write_json(path, dict(found.seconds))
    return found


def _stamp() -> str:
    """Return what costs depend on: the machine, and what decodes."""
    import pyarrow as pa

    return hash_of(platform.node(), platform.machine(), pa.__version__, _FEATURES)[:12]


def _fastest(path: Path, chosen: WriteOption) -> float:
    """Return the least seconds of a few reads: others only make a read slower."""
    found = []
    for _ in range(_CALIBRATION_ROUNDS + 1):
        began_s = time.perf_counter()
        read_as(path, chosen)
        found.append(time.perf_counter() - began_s)
    return min(found[1:])


def _sampled(table: "pa.Table", rows: int) -> "pa.Table":
    """Return blocks of neighbouring rows from all over a table."""
    import pyarrow as pa

    if len(table) <= rows:
        return table
    starts = np.linspace(0, len(table) - _BLOCK_ROWS, rows // _BLOCK_ROWS).astype(int).tolist()
    return pa.concat_tables([table.slice(start, _BLOCK_ROWS) for start in starts]).combine_chunks()


def _distinct(column: "pa.ChunkedArray") -> float:
    """Return the number of distinct values."""
    from steelyard.data.sketch import HyperLogLog, hash_column

    kept = stored_type(column.type)
    sketch = HyperLogLog()
    for chunk in column.chunks:
        sketch.update(hash_column(chunk.cast(kept) if kept != chunk.type else chunk))
    return max(min(sketch.estimate(), len(column)), 1.0)


def _grown(
    sizes: Sequence[float],
    rows: Sequence[int],
    distinct: Sequence[float],
    wanted: tuple[int, float],
) -> float:
    """Return the bytes of more rows than were sampled.

    A column is codes, whose width grows with the logarithm of the distinct values, and the values.
    Both samples and two unknowns: bytes per bit of code, and bytes per distinct value.

    Args:
        sizes: bytes of the samples.
        rows: rows of the samples.
        distinct: values of the samples.
        wanted: rows, and distinct values among them.

    Returns:
        Bytes.
    """
    from scipy.optimize import nnls

    def parts(count: float, values: float) -> list[float]:
        return [count * np.log2(max(values, 1.0) + 1.0), values]

    matrix = np.array([parts(n, d) for n, d in zip(rows, distinct, strict=True)])
    weights = 1 / np.maximum(np.array(sizes), 1.0)
    found, _ = nnls(matrix * weights[:, None], np.array(sizes) * weights)
    return float(np.dot(parts(*wanted), found))


def _column_bytes(
    table: "pa.Table", name: str, options: Sequence[WriteOption], folder: Path
) -> dict[str, float]:
    """Predict the bytes of a column for each option."""
    whole = table.select([name])
    asked = options
    if any(item.format == "parquet" and item.dictionary for item in options):
        # Where a dictionary is given up, the rest is as plain as with these.
        options = list(dict.fromkeys([*options, *map(option, _PLAIN)]))
    samples = [_sampled(whole, rows) for rows in _SAMPLES if rows < len(table)] or [whole]
    empty = {item.name: write_as(whole.slice(0, 0), folder / "empty", item) for item in options}
    counts = [len(sample) for sample in samples]
    sizes = {
        item.name: [
            max(write_as(sample, folder / "sample", item) - empty[item.name], 1)
            for sample in samples
        ]
        for item in options
    }
    if counts == [len(table)]:
        return {item.name: float(sizes[item.name][0]) for item in asked}
    distinct = [_distinct(sample.column(0)) for sample in samples]
    total = _distinct(whole.column(0))
    found = {}
    for item in asked:
        if not item.dictionary:
            # Without a dictionary bytes follow rows.
            found[item.name] = sizes[item.name][-1] * len(table) / counts[-1]
            continue
        groups = max(1, -(-len(table) // GROUP_ROWS))
        per_group = (len(table) // groups, min(total, len(table) / groups))
        grown = groups * _grown(sizes[item.name], counts, distinct, per_group)
        found[item.name] = grown
        if item.format == "parquet":
            found[item.name] = _given_up(whole, grown, per_group, sizes, item, counts)
    return found


def _given_up(
    whole: "pa.Table",
    grown: float,
    per_group: tuple[int, float],
    sizes: Mapping[str, Sequence[float]],
    item: WriteOption,
    counts: Sequence[int],
) -> float:
    """Return the bytes of a Parquet column whose dictionary may become too large."""
    width = whole.column(0).nbytes / max(len(whole), 1)
    share = min(_DICTIONARY_BYTES / max(width * per_group[1], 1.0), 1.0)
    if share == 1.0:
        return grown
    plain = sizes["parquet plain none"][-1] * len(whole) / counts[-1]
    # What a compressor saves of a dictionary's values it saves of plain ones.
    saved = sizes[item.name][-1] / max(sizes["parquet none"][-1], 1)
    return share * grown + (1 - share) * plain * min(saved, 1.0)


def advise(
    table: "pa.Table",
    costs: FormatCosts,
    *,
    options: Sequence[WriteOption] = OPTIONS,
    tier: StorageTier | None = None,
) -> list[FormatAdvice]:
    """Predict size and time of a table for each option, the fastest to load first.

    Args:
        table: table in memory; at most 81,920 rows of it are encoded.
        costs: costs of this machine.
        options: which.
        tier: where the file is to be; this machine's memory when it is left out.

    Returns:
        One for each option.

    Raises:
        ConfigError: the table has no rows.
    """
    if not len(table):
        raise ConfigError("a table without rows has no best format")
    num_bytes = dict.fromkeys((item.name for item in options), 0.0)
    scan_s = dict(num_bytes)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for item in options:
            num_bytes[item.name] += write_as(table.slice(0, 0), folder / "empty", item)
        for name in table.column_names:
            for key, size in _column_bytes(table, name, options, folder).items():
                features = _features(table.column(name), len(table), size)
                num_bytes[key] += size
                scan_s[key] += float(features @ np.array(costs.seconds[key]))
    found = [_advice(item.name, num_bytes[item.name], scan_s[item.name], tier) for item in options]
    return sorted(found, key=lambda item: item.load_s)


def _advice(name: str, num_bytes: float, scan_s: float, tier: StorageTier | None) -> FormatAdvice:
    """Return what is predicted of an option; a scan asks for the footer and for the rest."""
    transfer_s = usd = 0.0
    if tier is not None:
        transfer_s = 2 * tier.first_byte_s + num_bytes / (tier.bytes_per_s or math.inf)
        usd = num_bytes / 1e9 * tier.usd_per_gb_month
    return FormatAdvice(
        option=name,
        num_bytes=num_bytes,
        scan_s=scan_s,
        load_s=scan_s + transfer_s,
        usd_per_month=usd,
    )
