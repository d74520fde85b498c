"""How fast this machine searches and builds indexes of vectors: what forecasts of both rest on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from steelyard.catalog.measured import load_measured, store_measured
from steelyard.config import load

__all__ = ["SearchRates", "load_search_rates", "reference_search_rates", "store_search_rates"]

_NAME = "search-rates"

_REFERENCE = Path(__file__).parent / "data" / "search_rates.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRates:
    """What `steelyard retrieve calibrate` found on generated indexes.

    Units of work are those that `cost.vector_search` counts: numbers of centers that are compared,
    entries of tables, bytes of codes, rows, values that are put on heaps.

    Attributes:
        query_s: seconds per unit of each part of a query on one thread, by kind of index.
        build_s: seconds per unit of each part of a build, with the threads of the calibration.
        query_relative: half-width of the 80 % interval of a query's time as a fraction of it, by
            kind: what indexes that the fit did not see were off.
        build_relative: the same of a build's time.
        threads: threads that a build used.
        native: whether searches ran in native code.
        time_s: when, seconds since 1970 (UTC).
        duration_s: time the calibration took.
    """

    query_s: Mapping[str, Mapping[str, float]]
    build_s: Mapping[str, float]
    query_relative: Mapping[str, float]
    build_relative: float
    threads: int
    native: bool
    time_s: float
    duration_s: float


def store_search_rates(rates: SearchRates) -> Path:
    """Store rates as those of this machine, replacing older ones.

    Args:
        rates: what was measured.

    Returns:
        The file that was written.
    """
    return store_measured(_NAME, rates)


def load_search_rates() -> SearchRates | None:
    """Read the stored rates.

    Returns:
        The rates, None where there are none.

    Raises:
        CalibrationError: the stored file is damaged.
    """
    return load_measured(
        _NAME,
        SearchRates,
        what="rates of searches are",
        hint="run `steelyard retrieve calibrate` to measure them again",
    )


def reference_search_rates() -> SearchRates:
    """Return rates of the machine that the package was made on: proportions for one not measured.

    Returns:
        The rates.
    """
    return load(_REFERENCE, SearchRates)
