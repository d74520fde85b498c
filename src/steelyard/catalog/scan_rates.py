"""How fast this machine reads tables and looks at their columns: what `cost.scan` rests on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from steelyard.catalog.measured import load_measured, measured_path, store_measured

__all__ = ["FoldRate", "ReadRate", "ScanRates", "load_scan_rates", "store_scan_rates"]

_NAME = "scan-rates"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRate:
    """Processor time of reading one format; the parts of a sum.

    Attributes:
        part_s: seconds for each part that is opened.
        byte_s: seconds for each byte of text, or of columns as they are stored.
        unzip_byte_s: seconds for each byte of text that is decompressed first.
        column_batch_s: seconds for each column of each batch.
        value_s: seconds for each value, by kind of column.
        doubtful_value_s: more of each value in a batch where one value is not of its column's kind.
        wide_value_s: more of each value of a table of many columns.
    """

    part_s: float = 0.0
    byte_s: float = 0.0
    unzip_byte_s: float = 0.0
    column_batch_s: float = 0.0
    value_s: Mapping[str, float]
    doubtful_value_s: float = 0.0
    wide_value_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldRate:
    """Processor time of profiling columns; the parts of a sum.

    Attributes:
        byte_s: seconds for each byte of text.
        column_batch_s: seconds for each column of each batch.
        column_part_s: seconds to pack and merge the states of each column of each part.
        value_s: seconds for each value of a column of few values, by kind.
        varied_value_s: more of each value where nearly all differ.
    """

    byte_s: float = 0.0
    column_batch_s: float = 0.0
    column_part_s: float = 0.0
    value_s: Mapping[str, float]
    varied_value_s: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanRates:
    """What a calibration of at most 20 s found on generated tables.

    Attributes:
        read: rates of reading, by format.
        fold: rates of a profile.
        process_s: time until another process can read.
        column_bytes: memory of the profile of one column.
        time_s: when, seconds since 1970 (UTC).
        duration_s: time the calibration took.
        overlap: share of the shorter one of reading and profiling that goes on beside the other, on
            a core that is free.
    """

    read: Mapping[str, ReadRate]
    fold: FoldRate
    process_s: float
    column_bytes: float
    time_s: float
    duration_s: float
    overlap: float = 0.0


def store_scan_rates(rates: ScanRates) -> Path:
    """Store rates as those of this machine, replacing older ones.

    Args:
        rates: what was measured.

    Returns:
        The file that was written.
    """
    return store_measured(_NAME, rates)


def load_scan_rates() -> ScanRates | None:
    """Read the stored rates.

    Returns:
        The rates, None where there are none.

    Raises:
        CalibrationError: the stored file is damaged.
    """
    return load_measured(
        _NAME,
        ScanRates,
        what="rates of scans are",
        hint=f"delete {measured_path(_NAME)}: the next profile measures them again",
    )
