"""Aggregates with noise, paid from a budget that is kept on disk and never overdrawn."""

import math
import secrets
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.governance.audit import hash_entry
from steelyard.data.governance.noise import RandBelow, discrete_gaussian, discrete_laplace
from steelyard.data.table.columns import columns_of, is_number
from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.files import exclusive, read_json, write_json

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["NoisyAnswer", "PrivacyLedger", "noisy_aggregate"]

_FILE = "privacy.json"
_GRID = 1 << 20
"""Steps of the finest sum within one person's part."""


class PrivacyLedger:
    """What may still be told of a table, kept in a folder.

    A question is paid before it is answered: a crash between the two costs budget, never privacy.
    Losses add up (basic composition).

    Attributes:
        folder: holds the ledger.

    Source: Dwork and Roth 2014, "The algorithmic foundations of differential privacy", theorem
        3.16.
    """

    def __init__(self, folder: Path) -> None:
        """Open a ledger, or name where it will be."""
        self.folder = folder

    def begin(self, epsilon: float, delta: float = 0.0) -> None:
        """Set the budget, once.

        Args:
            epsilon: most privacy loss in all, above 0.
            delta: most chance of a larger one in all, 0 to below 1.

        Raises:
            ConfigError: a budget that is none, or there is one already.
        """
        if not (0 < epsilon < math.inf and 0 <= delta < 1):
            raise ConfigError(
                f"a budget of epsilon {epsilon:g} and delta {delta:g}",
                hint="give an epsilon above 0, such as 1, and a delta of 0 to below 1",
            )
        with exclusive(self.folder):
            if (self.folder / _FILE).exists():
                raise ConfigError(
                    f"{self.folder} has a budget already",
                    hint="a budget is set once: what was told cannot be taken back",
                )
            self._write({"epsilon": epsilon, "delta": delta, "spent": []})

    def _write(self, state: dict[str, Any]) -> None:
        write_json(self.folder / _FILE, state | {"hash": hash_entry(state)})

    def _read(self) -> dict[str, Any]:
        path = self.folder / _FILE
        if not path.exists():
            raise ConfigError(
                f"{self.folder} has no budget",
                hint=f"steelyard data govern budget {self.folder} --epsilon 1",
            )
        state = read_json(path)
        # One changed digit could give back what was spent.
        if not isinstance(state, dict) or state.pop("hash", "") != hash_entry(state):
            raise DataError(
                f"the ledger {path} was changed or is damaged", hint="restore it from a copy"
            )
        return state

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What was paid: epsilon, delta, question and time of each."""
        return list(self._read()["spent"])

    @property
    def budget(self) -> tuple[float, float]:
        """Epsilon and delta in all."""
        state = self._read()
        return float(state["epsilon"]), float(state["delta"])

    @property
    def left(self) -> tuple[float, float]:
        """Epsilon and delta that are not spent."""
        return _left(self._read())

    def spend(self, epsilon: float, delta: float = 0.0, what: str = "") -> None:
        """Pay for a question.

        Args:
            epsilon: privacy loss, above 0.
            delta: chance of a larger one.
            what: the question.

        Raises:
            ConfigError: a loss that is none.
            CapacityError: the budget does not hold it; nothing is paid.
        """
        if not (0 < epsilon < math.inf and 0 <= delta < 1):
            raise ConfigError(
                f"a loss of epsilon {epsilon:g} and delta {delta:g}",
                hint="give an epsilon above 0, such as 0.1, and a delta of 0 to below 1",
            )
        # The lock would make the folder of a ledger that there is not.
        self._read()
        with exclusive(self.folder):
            state = self._read()
            left = _left(state)
            # Tenths do not add up exactly in floats; a part in 10^12 is no privacy.
            if epsilon > left[0] * (1 + 1e-12) or delta > left[1] * (1 + 1e-12):
                raise CapacityError(
                    f"the privacy budget of {self.folder} has epsilon {left[0]:.4g} and delta "
                    f"{left[1]:.3g} left, and the question takes {epsilon:g} and {delta:g}",
                    hint="ask for less: an exhausted budget is the end of answers",
                )
            entry = {"epsilon": epsilon, "delta": delta, "what": what, "time_s": time.time()}
            self._write(state | {"spent": [*state["spent"], entry]})


def _left(state: dict[str, Any]) -> tuple[float, float]:
    """Return what is left of a ledger's state."""
    spent = [math.fsum(item[name] for item in state["spent"]) for name in ("epsilon", "delta")]
    return max(state["epsilon"] - spent[0], 0.0), max(state["delta"] - spent[1], 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyAnswer:
    """An aggregate with noise.

    Attributes:
        what: the question.
        value: the answer.
        low: lower end of the 80 % interval of the noise.
        high: upper end.
        epsilon: privacy loss that was paid.
        delta: chance of a larger one that was paid.
    """

    what: str
    value: float
    low: float
    high: float
    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class _PeopleFold:
    """A `Fold` of the sum of a column within bounds, and of rows, in whole steps of a grid."""

    column: str
    low: float
    high: float
    step: float

    @property
    def name(self) -> str:
        return f"bounded sum of {self.column}"

    def init(self, schema: "pa.Schema") -> NDArray[np.int64]:
        if self.column and self.column not in schema.names:
            names = ", ".join(schema.names)
            raise ConfigError(f"no column {self.column!r}", hint=f"columns are {names}")
        if self.column and not is_number(schema.field(self.column).type):
            raise ConfigError(f"column {self.column!r} has no numbers to add up")
        return np.zeros(2, np.int64)

    def update(self, state: NDArray[np.int64], batch: "pa.RecordBatch") -> None:
        state[1] += len(batch)
        if self.column:
            place = batch.schema.get_field_index(self.column)
            values = columns_of(batch).numbers(place)
            # A missing value adds nothing, as if its row were not there.
            bounded = np.clip(np.where(np.isnan(values), 0.0, values), self.low, self.high)
            steps = np.rint(bounded / self.step)
            state[0] += int(np.where(np.isnan(values), 0.0, steps).sum())

    def merge(self, state: NDArray[np.int64], later: NDArray[np.int64]) -> None:
        state += later

    def finish(self, state: NDArray[np.int64]) -> tuple[int, int]:
        return int(state[0]), int(state[1])

    def sections(self, state: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return {"sums": state}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        return np.array(sections["sums"])


def noisy_aggregate(
    table: "DataTable",
    ledger: PrivacyLedger,
    epsilon: float,
    *,
    column: str = "",
    bounds: tuple[float, float] | None = None,
    delta: float = 0.0,
    rows_each: int = 1,
    draw: RandBelow = secrets.randbelow,
) -> NoisyAnswer:
    """Count the rows of a table or add up a column, with noise that hides every person.

    The budget is paid before the table is read. Without delta the noise is Laplace's, with it
    Gauss's, both discrete on a grid of a millionth of one row's part.

    Args:
        table: the table; filter it before to count a part of it.
        ledger: pays.
        epsilon: privacy loss, above 0; with delta below 1.
        column: column of numbers to add up; empty to count rows.
        bounds: smallest and largest value of a row; others are moved there. They must not come
            from the table itself.
        delta: chance of a larger loss, for Gaussian noise.
        rows_each: most rows of one person.
        draw: source of randomness.

    Returns:
        The answer with the 80 % interval of its noise.

    Raises:
        ConfigError: no such column, no bounds, or a loss that is none.
        CapacityError: the budget is exhausted.

    Source: Dwork et al. 2006 (Laplace); Dwork and Roth 2014, theorem A.1 (Gauss, epsilon below 1).
    """
    if column and (bounds is None or not -math.inf < bounds[0] < bounds[1] < math.inf):
        raise ConfigError("a sum needs two bounds", hint="such as bounds=(0, 100)")
    if delta and not epsilon < 1:
        raise ConfigError("Gaussian noise is for an epsilon below 1", hint="leave delta out")
    if rows_each < 1:
        raise ConfigError(f"{rows_each} rows of a person, but it must be 1 or more")
    low, high = bounds or (0.0, 1.0)
    step = max(abs(low), abs(high)) / _GRID if column else 1.0
    fold = _PeopleFold(column, low, high, step)
    fold.init(table.schema)
    what = f"sum of {column} in [{low:g}, {high:g}]" if column else "rows"
    ledger.spend(epsilon, delta, what)
    total, rows = table.fold(fold).results[fold.name]
    part = (_GRID if column else 1) * rows_each
    exact = total if column else rows
    if delta:
        deviation = math.sqrt(2 * math.log(1.25 / delta)) * part / epsilon
        noise = discrete_gaussian(Fraction(deviation) ** 2, draw)
        reach = 1.2815515655446004 * deviation
    else:
        noise = discrete_laplace(Fraction(part) / Fraction(epsilon), draw)
        reach = part / epsilon * math.log(5)
    value, apart = (exact + noise) * step, reach * step
    return NoisyAnswer(
        what=what,
        value=value,
        low=value - apart,
        high=value + apart,
        epsilon=epsilon,
        delta=delta,
    )
