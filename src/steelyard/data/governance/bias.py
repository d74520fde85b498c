"""How a prediction fares on slices of a table: who is chosen, missed, or named wrongly."""

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["Rate", "SliceFold", "SliceScores", "score_slices"]

_MOST = 65_536
_Z80 = 1.2815515655446004
_FOUR_FIFTHS = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share of some rows.

    Attributes:
        value: the share, NaN of no rows.
        low: lower end of its 80 % interval.
        high: upper end.
        rows: rows that it is a share of.
    """

    value: float
    low: float
    high: float
    rows: int

    @classmethod
    def of(cls, count: int, rows: int) -> "Rate":
        """Return the share of some rows with Wilson's interval.

        Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
        """
        if not rows:
            return cls(value=math.nan, low=0.0, high=1.0, rows=0)
        share, square = count / rows, _Z80**2
        middle = (share + square / (2 * rows)) / (1 + square / rows)
        reach = _Z80 * math.sqrt(share * (1 - share) / rows + square / (4 * rows * rows))
        reach /= 1 + square / rows
        return cls(value=share, low=middle - reach, high=middle + reach, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceScores:
    """One slice.

    Attributes:
        name: value of the column; "(all)" for all rows.
        rows: its rows.
        chosen: share that is predicted to be of the class.
        found: share of those of the class that are predicted so.
        wrong: share of others that are predicted so.
        right: share that is predicted rightly.
        findings: rates that differ from those of the other rows beyond chance, in words.
    """

    name: str
    rows: int
    chosen: Rate
    found: Rate
    wrong: Rate
    right: Rate
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SliceFold:
    """A `Fold` of how often each slice, truth and prediction meet.

    Attributes:
        columns: slice, truth and prediction.
    """

    columns: tuple[str, str, str]

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"slices of {', '.join(self.columns)}"

    def init(self, schema: "pa.Schema") -> Counter[str]:
        """Return the state before any row."""
        if missing := [name for name in self.columns if name not in schema.names]:
            names = ", ".join(schema.names)
            raise ConfigError(f"no column {missing[0]!r}", hint=f"columns are {names}")
        return Counter()

    def update(self, state: Counter[str], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        import pyarrow as pa

        names = ["slice", "truth", "prediction"]
        arrays = [batch[name].cast(pa.string()) for name in self.columns]
        table = pa.table(dict(zip(names, arrays, strict=True)))
        for row in table.group_by(names).aggregate([([], "count_all")]).to_pylist():
            state[json.dumps([row[name] for name in names])] += row["count_all"]
        if len(state) > _MOST:
            raise CapacityError(
                f"{self.columns[0]!r} has too many values for slices", hint="bin it before"
            )

    def merge(self, state: Counter[str], later: Counter[str]) -> None:
        """Take in the state of rows that come later."""
        state.update(later)

    def finish(self, state: Counter[str]) -> Counter[tuple[str | None, ...]]:
        """Return rows by slice, truth and prediction."""
        return Counter({tuple(json.loads(key)): count for key, count in sorted(state.items())})

    def sections(self, state: Counter[str]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        raw = json.dumps(sorted(state.items())).encode()
        return {"counts": np.frombuffer(raw, np.uint8)}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> Counter[str]:
        """Return the state of such arrays."""
        return Counter(dict(json.loads(sections["counts"].tobytes())))


def score_slices(
    table: "DataTable", *, by: str, truth: str, prediction: str, positive: str
) -> list[SliceScores]:
    """Say how a prediction fares on each value of a column, in one pass.

    Args:
        table: has truth and prediction side by side.
        by: column of the slices.
        truth: column of what is so.
        prediction: column of what was predicted.
        positive: the class, as text, of which being chosen matters.

    Returns:
        All rows, then slices, the largest first.

    Raises:
        ConfigError: no such column or class.
        CapacityError: there are too many slices.

    Source: Hardt et al. 2016, arXiv 1610.02413 (equal rates of found and wrong); the four-fifths
        rule of the Uniform Guidelines on Employee Selection Procedures, 1978.
    """
    fold = SliceFold((by, truth, prediction))
    found = table.fold(fold).results[fold.name]
    if positive not in {item for _, *pair in found for item in pair}:
        known = sorted({str(item) for _, *pair in found for item in pair})[:10]
        raise ConfigError(f"no class {positive!r}", hint=f"classes are {', '.join(known)}")
    sizes: Counter[str | None] = Counter()
    for (name, *_), count in found.items():
        sizes[name] += count
    scores = [_scored("(all)", found, positive)]
    for name, _ in sizes.most_common():
        own = Counter({key: count for key, count in found.items() if key[0] == name})
        others = found - own
        told = "(missing)" if name is None else name
        scores.append(_scored(told, own, positive, _scored("", others, positive)))
    return scores


def _scored(
    name: str,
    found: Counter[tuple[str | None, ...]],
    positive: str,
    others: SliceScores | None = None,
) -> SliceScores:
    """Return the rates of some rows."""
    cells: Counter[tuple[bool, bool]] = Counter()
    right = 0
    for (_, truth, predicted), count in found.items():
        cells[truth == positive, predicted == positive] += count
        right += count if truth == predicted else 0
    rows = cells.total()
    hits, misses = cells[True, True], cells[True, False]
    false, rest = cells[False, True], cells[False, False]
    made = SliceScores(
        name=name,
        rows=rows,
        chosen=Rate.of(hits + false, rows),
        found=Rate.of(hits, hits + misses),
        wrong=Rate.of(false, false + rest),
        right=Rate.of(right, rows),
    )
    if others is None or not others.rows:
        return made
    fields = {item: getattr(made, item) for item in SliceScores.__slots__ if item != "findings"}
    return SliceScores(**fields, findings=tuple(_findings(made, others)))


def _findings(own: SliceScores, others: SliceScores) -> list[str]:
    """Return rates whose intervals do not meet those of the other rows."""
    words = {"chosen": "chosen", "found": "found", "wrong": "wrongly named", "right": "right"}
    told = []
    for rate, word in words.items():
        mine, theirs = getattr(own, rate), getattr(others, rate)
        if mine.rows and theirs.rows and (mine.high < theirs.low or mine.low > theirs.high):
            told.append(f"{word} {mine.value:.1%}, others {theirs.value:.1%}")
    if others.chosen.value > 0 and own.chosen.high < _FOUR_FIFTHS * others.chosen.low:
        told.append("chosen less than four fifths as often as others")
    return told
