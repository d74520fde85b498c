"""Makes tables whose columns have given properties."""

import csv
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.properties import ColumnProperties
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PRESETS", "generate", "preset"]

PRESETS = ("core", "bi", "classic", "geo", "log", "ml")
"""Names of the workloads."""
_SYLLABLES = (
    "ka",
    "ne",
    "to",
    "ri",
    "so",
    "mu",
    "la",
    "vi",
    "pe",
    "du",
    "sha",
    "ron",
    "tel",
    "ing",
)
_WORDS = 4096
_LEAST_RANGE = 1.0


@cache
def _listed() -> tuple[tuple[str, ColumnProperties], ...]:
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str}
    raw = Path(__file__).with_name("presets.csv").read_text()
    rows = csv.DictReader(line for line in raw.splitlines() if not line.startswith("#"))
    types = {
        item.name: kinds[str(getattr(item.type, "__name__", item.type))]
        for item in fields(ColumnProperties)
    }
    return tuple(
        (row["preset"], ColumnProperties(**{name: kind(row[name]) for name, kind in types.items()}))
        for row in rows
    )


def preset(name: str) -> list[ColumnProperties]:
    """Return the columns of a workload, as they were measured on real tables.

    Args:
        name: one of `PRESETS`.

    Returns:
        Twenty columns.

    Raises:
        ConfigError: there is no such workload.

    Source: Zeng et al. 2023, arXiv 2304.05028, table 3 (the six workloads; the numbers here are
        those of other real tables, by our own profile).
    """
    if name not in PRESETS:
        raise ConfigError(f"no workload {name!r}", hint=f"workloads are {', '.join(PRESETS)}")
    return [item for owner, item in _listed() if owner == name]


def generate(
    columns: str | Sequence[ColumnProperties], rows: int, rng: np.random.Generator
) -> "pa.Table":
    """Make a table with columns of given properties.

    Args:
        columns: name of a workload, or properties such as `profile` returns.
        rows: their number.
        rng: source of chance.

    Returns:
        Integers as int64, floating point numbers as float64, texts and Booleans.

    Raises:
        ConfigError: there is no such workload, or rows are less than 1.
    """
    import pyarrow as pa

    if rows < 1:
        raise ConfigError(f"{rows} rows, but there must be 1 or more")
    chosen = preset(columns) if isinstance(columns, str) else columns
    made = {}
    for place, item in enumerate(chosen):
        name = item.name if item.name not in made else f"{item.name} {place}"
        values = _column(item, rows, rng)
        mask = rng.random(rows) < item.null_ratio if item.null_ratio else None
        made[name] = pa.array(values, mask=mask)
    return pa.table(made)


def _column(item: ColumnProperties, rows: int, rng: np.random.Generator) -> NDArray[Any]:
    """Return a column without missing values."""
    count = max(1, round(item.distinct_ratio * rows))
    domain = _domain(item, count, rng)
    codes = _codes(item, len(domain), rows, rng)
    # Runs are repeated rows; the rest of the order is made by sorting.
    lengths = max(item.repetition, 1.0)
    if item.sortedness < 1 and lengths > 1.5:
        starts = rng.random(rows) < 1 / lengths
        starts[0] = True
        codes = codes[np.flatnonzero(starts)][np.cumsum(starts) - 1]
    return domain[_sorted_to(codes, item.sortedness, lengths, rng)]


def _codes(
    item: ColumnProperties, count: int, rows: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return places in the domain with the frequencies of the class."""
    if item.skew == "uniform" and count > rows / 2:
        return rng.permutation(max(count, rows))[:rows] % count
    weights = np.ones(count)
    if item.skew in ("zipf", "hotspot"):
        weights = 1.0 / np.arange(1, count + 1) ** item.zipf
    if item.skew in ("hotspot", "binary") and count > 1:
        weights[1:] *= (1 - item.top_share) / weights[1:].sum()
        weights[0] = item.top_share
    edges = np.cumsum(weights / weights.sum())
    codes = np.minimum(np.searchsorted(edges, rng.random(rows)), count - 1)
    # Which value is frequent has nothing to do with its size.
    return rng.permutation(count)[codes]


def _sorted_to(
    codes: NDArray[np.int64], sortedness: float, repetition: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return codes in the wanted order: all sorted, and as many put at random places as needed."""
    if sortedness <= 0.02:
        return codes
    # Equal neighbours count as in order already.
    equal = 1 - 1 / max(repetition, 1.0)
    missing = min(max((1 - sortedness) / max(1 - equal, 1e-9), 0.0), 1.0)
    if missing >= 0.98:
        return codes
    found = np.sort(codes)
    moved = np.flatnonzero(rng.random(len(codes)) < 1 - np.sqrt(1 - missing))
    found[moved] = found[rng.permutation(moved)]
    return found


def _domain(item: ColumnProperties, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Return distinct values in their order."""
    if item.kind == "flag":
        return np.array([False, True])[: max(min(count, 2), 1)]
    if item.kind == "text":
        return np.sort(_texts(count, max(item.size, 1.0), rng))
    scale = max(item.size, _LEAST_RANGE)
    if item.kind == "integer":
        wide = rng.integers(0, max(int(2 * scale), 2 * count, 2), 2 * count + 16)
        found = np.unique(wide)
        return found[np.sort(rng.permutation(len(found))[:count])]
    drawn = rng.lognormal(np.log(max(item.size, 1e-9)) - 0.125, 0.5, 2 * count + 16)
    if 0 <= item.digits <= 14:
        # A domain too large for its digits needs a wider range, as it does for integers.
        least = count / 10.0**item.digits
        drawn = np.round(drawn * max(1.0, least / max(item.size, 1e-9)), item.digits)
    found = np.unique(drawn)
    return found[np.sort(rng.permutation(len(found))[:count])]


def _texts(count: int, size: float, rng: np.random.Generator) -> NDArray[np.str_]:
    """Return distinct texts of words, of which some are much more frequent than others."""
    words = np.array(
        [
            "".join(rng.choice(_SYLLABLES, rng.integers(1, 4)))
            for _ in range(min(_WORDS, max(count, 16)))
        ]
    )
    weights = 1.0 / np.arange(1, len(words) + 1)
    found: NDArray[np.str_] = np.zeros(0, "U1")
    # A number of a few digits makes words distinct; short texts are such numbers alone.
    digits = len(str(count))
    pieces = max(round((size - digits) / 5.5), 0)
    picked = rng.choice(words, (count, pieces), p=weights / weights.sum())
    for piece in range(pieces):
        found = (
            picked[:, piece]
            if piece == 0
            else np.char.add(np.char.add(found, " "), picked[:, piece])
        )
    numbers = np.char.zfill(rng.permutation(count).astype("U"), min(digits, max(int(size), 1)))
    return np.char.add(np.char.add(found, "-"), numbers) if pieces else numbers
