"""What reading a table once takes: bytes, seconds, memory and dollars, before it is read.

Source: sums of measured rates per part, byte, value and batch (`catalog.scan_rates`); prices of
`catalog.storage`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steelyard.catalog.scan_rates import FoldRate, ReadRate, ScanRates
from steelyard.catalog.storage import StorageTier
from steelyard.cost.past_errors import past_width
from steelyard.quantity import Check, Forecast

__all__ = [
    "FORECASTER",
    "READ_AHEAD_COLUMNS",
    "ColumnWork",
    "FileWork",
    "TierPrice",
    "forecast_scan",
    "tier_price",
]

FORECASTER = "cost.scan"
"""Name of these forecasts in the ledger."""
READ_AHEAD_COLUMNS = 32
"""Most columns of a table of which one process reads a batch while it looks at another."""
_ASSUMED_SPREAD = {"scan.bytes_read": 0.01, "scan.duration": 0.15, "scan.peak_memory": 0.3}
"""Standard deviation of the logarithm before forecasts were checked here."""
_TEXT_COPIES, _VALUE_COPIES = 8.0, 2.5
"""Bytes per byte of text, and per byte of values of columns, that a batch takes: itself, the one
that is read ahead, and hashes and floats of its columns."""
_PROCESS_BYTES, _COLUMNAR_BYTES = 24e6, 21e6
"""What kernels and Arrow's pools bring in with a first scan, and more with one of Parquet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnWork:
    """A column that is read.

    Attributes:
        kind: "whole number", "number", "yes or no", "date", "time" or "text".
        text_bytes: mean length of a value's text; 0 where it is not text in the file.
        variety: 0 where a few values come again and again, 1 where nearly all differ.
        doubtful: share of the batches that hold a value of another kind.
    """

    kind: str
    text_bytes: float = 0.0
    variety: float = 1.0
    doubtful: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FileWork:
    """Files of one format and the same columns, taken together.

    Attributes:
        format: "csv", "tsv", "json lines", "parquet", "arrow" or "frame".
        is_packed: whether files are compressed as a whole.
        parts: parts that are opened.
        num_bytes: bytes that are read.
        requests: reads that ask for them.
        text_bytes: bytes that are decoded: of text, or of the columns that are read.
        rows: rows.
        batches: batches they come in.
        columns: columns that are read.
        is_profiled: whether they are profiled, or only read.
    """

    format: str
    is_packed: bool = False
    parts: int
    num_bytes: float
    requests: float
    text_bytes: float
    rows: float
    batches: float
    columns: tuple[ColumnWork, ...]
    is_profiled: bool = True

    @property
    def is_wide(self) -> bool:
        """Whether batches of its columns are read one after another, and leave the caches."""
        return len(self.columns) > READ_AHEAD_COLUMNS

    def read_amounts(self) -> dict[str, float]:
        """Return what the times of reading are proportional to, by field of `ReadRate`."""
        found = {
            "part_s": float(self.parts),
            "byte_s": self.text_bytes,
            "unzip_byte_s": self.text_bytes if self.is_packed else 0.0,
            "column_batch_s": len(self.columns) * self.batches,
            "doubtful_value_s": self.rows * sum(item.doubtful for item in self.columns),
            "wide_value_s": self.rows * len(self.columns) if self.is_wide else 0.0,
        }
        for item in self.columns:
            found[item.kind] = found.get(item.kind, 0.0) + self.rows
        return found

    def fold_amounts(self) -> dict[str, float]:
        """Return what the times of profiling are proportional to, by field of `FoldRate`."""
        found = {
            "byte_s": self.rows
            * sum(item.text_bytes for item in self.columns if item.kind == "text"),
            "column_batch_s": len(self.columns) * self.batches,
            "column_part_s": float(len(self.columns) * self.parts),
        }
        for item in self.columns:
            found[item.kind] = found.get(item.kind, 0.0) + self.rows
            varied = f"{item.kind}, varied"
            found[varied] = found.get(varied, 0.0) + self.rows * item.variety
        return found


def _seconds(rate: ReadRate | FoldRate, amounts: Mapping[str, float]) -> float:
    """Return the sum of amounts times their rates."""
    total = 0.0
    for name, amount in amounts.items():
        kind, _, varied = name.partition(", ")
        if varied and isinstance(rate, FoldRate):
            total += amount * rate.varied_value_s[kind]
        elif name in rate.value_s:
            total += amount * rate.value_s[name]
        else:
            total += amount * getattr(rate, name)
    return total


def _processor_s(work: FileWork, rates: ScanRates) -> tuple[float, float]:
    """Return the processor times of reading some files and of profiling them."""
    # A frame is in memory already, and cut into batches as record batches of files are.
    # Steelpack's columns are decoded as Parquet's are, and no slower.
    known = {"frame": "arrow", "tsv": "csv", "steelpack": "parquet"}
    read_s = _seconds(rates.read[known.get(work.format, work.format)], work.read_amounts())
    return read_s, _seconds(rates.fold, work.fold_amounts()) if work.is_profiled else 0.0


def _storage_s(works: Sequence[FileWork], tier: StorageTier | None) -> float:
    """Return the time that one connection takes; nothing where the rate is unknown."""
    if tier is None:
        return 0.0
    taken = sum(item.requests for item in works) * tier.first_byte_s
    return taken + sum(item.num_bytes for item in works) / (tier.bytes_per_s or math.inf)


def _peak_bytes(works: Sequence[FileWork], rates: ScanRates, workers: int) -> float:
    """Return the most memory beyond what the process held before."""
    columns = max(len(item.columns) for item in works)
    parts = sum(item.parts for item in works)
    # Merging keeps a run of each power of two; workers send some parts at a time.
    kept = 2 + math.log2(max(parts, 1)) + (4 * workers if workers > 1 else 0)
    profiled = columns * rates.column_bytes * kept if works[0].is_profiled else 0.0
    return _PROCESS_BYTES + profiled + max(_batch_bytes(item) for item in works)


def _batch_bytes(work: FileWork) -> float:
    """Return the memory of a batch, and of what is buffered of the file."""
    batches = max(work.batches, 1.0)
    if work.format in ("csv", "tsv", "json lines"):
        return _TEXT_COPIES * work.text_bytes / batches
    width = sum(8.0 if item.kind != "text" else 4.0 + item.text_bytes for item in work.columns)
    # Of each column of a row group at most so much is read ahead.
    buffered = min(work.num_bytes / batches, len(work.columns) * float(1 << 20))
    loose = _COLUMNAR_BYTES if work.format == "parquet" else 0.0
    return _VALUE_COPIES * width * work.rows / batches + buffered + loose


def forecast_scan(
    works: Sequence[FileWork],
    rates: ScanRates,
    *,
    tier: StorageTier | None = None,
    leaves: bool = False,
    workers: int = 1,
    core_share: float = 1.0,
    past: Sequence[Check] = (),
) -> list[Forecast]:
    """Forecast one pass over a table.

    Args:
        works: its files, at least one.
        rates: rates of this machine.
        tier: where the files lie, None for files in memory's cache of this machine.
        leaves: whether the bytes leave the network of the tier's vendor.
        workers: processes.
        core_share: share of a core that a process gets beside what else runs, above 0 to 1.
        past: checked forecasts of this function on this machine, oldest first.

    Returns:
        scan.bytes_read, scan.duration, scan.peak_memory and scan.cost, whose 80 % intervals follow
        from earlier errors.
    """
    parts = sum(item.parts for item in works)
    used = min(workers, parts) or 1
    parts_s = zip(*(_processor_s(item, rates) for item in works), strict=True)
    read_s, fold_s = (sum(item) / core_share for item in parts_s)
    read_s += _storage_s(works, tier)
    # One process reads a batch while it looks at the one before; several share the cores.
    is_ahead = workers == 1 and not any(item.is_wide for item in works)
    beside_s = rates.overlap * min(read_s, fold_s) if is_ahead else 0.0
    # Parts are dealt out one by one: the last round is not full.
    share = math.ceil(parts / used) / max(parts, 1)
    start_s = rates.process_s if workers > 1 else 0.0
    duration_s = start_s + (read_s + fold_s - beside_s) * share
    num_bytes = sum(item.num_bytes for item in works)
    values = {
        "scan.bytes_read": num_bytes,
        "scan.duration": duration_s,
        "scan.peak_memory": _peak_bytes(works, rates, workers),
    }
    found = []
    for name, value in values.items():
        own = [item for item in past if item.forecast.quantity == name]
        width = math.expm1(past_width(own, assumed_spread=_ASSUMED_SPREAD[name]))
        source = "rates of generated tables on this machine"
        if name == "scan.bytes_read":
            source = "sizes of the files and of the parts of them that are read"
        found.append(
            Forecast.about(name, value, relative=width, provenance="derived", source=source)
        )
    requests = sum(item.requests for item in works)
    usd = tier.read_usd(num_bytes, requests, leaves=leaves) if tier else 0.0
    source = f"prices of {tier.name}, {tier.price_date}" if tier and usd else "files of one's own"
    cost = Forecast.about("scan.cost", usd, relative=0.02, provenance="derived", source=source)
    return [*found, cost]


@dataclass(frozen=True, kw_only=True, slots=True)
class TierPrice:
    """What a table would cost in a tier.

    Attributes:
        tier: catalog name.
        usd_per_month: dollars a month of keeping it.
        scan_usd: dollars of reading it once within the vendor's network.
        out_usd: dollars of reading it once from outside.
        storage_s: time of one connection.
    """

    tier: str
    usd_per_month: float
    scan_usd: float
    out_usd: float
    storage_s: float


def tier_price(works: Sequence[FileWork], num_bytes: float, tier: StorageTier) -> TierPrice:
    """Return what a table would cost in a tier.

    Args:
        works: what one pass reads.
        num_bytes: size of the files.
        tier: where they would lie.

    Returns:
        Its prices.
    """
    requests = sum(item.requests for item in works)
    read = sum(item.num_bytes for item in works)
    return TierPrice(
        tier=tier.name,
        usd_per_month=num_bytes / 1e9 * tier.usd_per_gb_month,
        scan_usd=tier.read_usd(read, requests, leaves=False),
        out_usd=tier.read_usd(read, requests, leaves=True),
        storage_s=_storage_s(works, tier),
    )
