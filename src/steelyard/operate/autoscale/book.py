"""What controllers forecast of a demand, checked against the demand that came."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.config import dump, load
from steelyard.operate.forecast.bookkeeping import CheckedStep, SaidSteps, enter

if TYPE_CHECKING:
    from steelyard.runs.store import RunStore

__all__ = ["ForecastBook", "checked_steps"]

_QUANTITY = "operate.demand"
_MOST_WAITING = 100


def _mark(source: str) -> str:
    """Return a short mark of a source, for keys and names of files."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def checked_steps(
    forecasts: Iterable[SaidSteps], demand: np.ndarray, *, start_s: float, source: str
) -> list[CheckedStep]:
    """Pair forecasts of one demand with what came.

    Args:
        forecasts: what was said.
        demand: [n] observed load of each step.
        start_s: time of the first.
        source: where the demand comes from. With the time of its first step it is a forecast's key
            in the ledger, so that a demand that is replayed again counts once.

    Returns:
        The steps that came.
    """
    found: list[CheckedStep] = []
    for item in forecasts:
        key = f"{_mark(source)}:{item.first_s:.0f}"
        found += item.checked(demand, start_s=start_s, source=source, key=key, quantity=_QUANTITY)
    return found


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What the file of a book holds."""

    forecasts: tuple[SaidSteps, ...] = ()


class ForecastBook:
    """The forecasts that a controller decides on: kept until their steps came, then checked.

    Those that wait lie in a file of the store, written before the controller acts on them: after
    one that was killed, the next of the same source checks them.
    """

    def __init__(self, store: "RunStore", source: str) -> None:
        """Open the book of a source.

        Args:
            store: the run store, in whose ledger the pairs are entered.
            source: where the demand comes from.

        Raises:
            ConfigError: its file is not that of a book.
        """
        self._store, self._source = store, source
        self._path = store.folder / "waiting" / f"{_mark(source)}.json"
        self._waiting = load(self._path, _Waiting).forecasts if self._path.exists() else ()

    def keep(self, said: SaidSteps) -> None:
        """Write a forecast down; one of the same first step gives way to it.

        Args:
            said: the forecast.

        Raises:
            CapacityError: the disk is full.
        """
        others = [item for item in self._waiting if item.first_s != said.first_s]
        # Of a source that never goes on the steps never come.
        self._write([*others, said][-_MOST_WAITING:])

    def settle(self, demand: np.ndarray, *, start_s: float) -> list[CheckedStep]:
        """Check what waits against what came, and enter it in the ledger.

        Args:
            demand: [n] observed load of each step.
            start_s: time of the first.

        Returns:
            The steps that came.
        """
        found = checked_steps(self._waiting, demand, start_s=start_s, source=self._source)
        enter(self._store, found)
        # One whose last step is still to come is checked again then: in the ledger it counts once.
        rest = [item for item in self._waiting if _end_s(item) > start_s + _lasts_s(item, demand)]
        if len(rest) < len(self._waiting):
            self._write(rest)
        return found

    def _write(self, waiting: Sequence[SaidSteps]) -> None:
        """Replace the file."""
        dump(_Waiting(tuple(waiting)), self._path)
        self._waiting = tuple(waiting)


def _end_s(said: SaidSteps) -> float:
    """Return when the last step of a forecast ends."""
    return said.first_s + len(said.value) * said.step_s


def _lasts_s(said: SaidSteps, demand: np.ndarray) -> float:
    """Return how long a demand of a forecast's steps lasts, and half a step for rounding."""
    return (len(demand) + 0.5) * said.step_s
