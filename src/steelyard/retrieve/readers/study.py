"""What a store is worth to a reader, at every size, from one search; and the law of its size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.laws import Fit, RunTable, fit, law_named
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.retrieve.datastore import Candidates, Datastore, StudyCell, study_grid
from steelyard.retrieve.readers.copying import CopyingReader
from steelyard.retrieve.readers.reader import PassageReader
from steelyard.retrieve.readers.windows import ReadingWindows

__all__ = ["ReadingStudy", "Reads", "study_reading", "teach_copier"]

_SHARES = tuple(10.0 ** (place / 4 - 2) for place in range(9))
"""Sizes of stores, four a decade, as shares of the whole one."""
_LAW = "power_law_floor:store"


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadingStudy:
    """Losses of one reader over stores of many sizes.

    Attributes:
        cells: a store each, see `study_grid`; values are mean nats per predicted token.
        alone: mean nats per predicted token without a store.
        bits_per_nat: bits per byte of a mean loss of one nat per token.
        windows: windows of held-out text that were read.
    """

    cells: Sequence[StudyCell]
    alone: float
    bits_per_nat: float
    windows: int

    @property
    def filters(self) -> list[str]:
        """What was left out, by name, in order."""
        return list(dict.fromkeys(cell.filters for cell in self.cells))

    def losses(self, filters: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return losses by size.

        Args:
            filters: name of what was left out.

        Returns:
            Expected passages of each size, ascending, and the mean loss over its draws.
        """
        found: dict[float, list[float]] = {}
        for cell in self.cells:
            if cell.filters == filters:
                found.setdefault(cell.passages, []).append(cell.value)
        sizes = sorted(found)
        return np.array(sizes), np.array([float(np.mean(found[size])) for size in sizes])

    def law(self, filters: str) -> Fit:
        """Fit loss over passages, A / passages^alpha + E.

        Args:
            filters: name of what was left out.

        Returns:
            The fit.

        Raises:
            FitError: the losses do not allow a fit.

        Source: Shao et al. 2024 (arXiv 2407.12854), section 4: loss falls with the store's size.
        """
        sizes, losses = self.losses(filters)
        return fit(law_named(_LAW), RunTable.read({"store": sizes, "loss": losses}), "loss")

    def foreseen(self, filters: str, smallest: int = 6) -> Check:
        """Return what a law of the smallest sizes says of the whole store, beside its loss.

        Args:
            filters: name of what was left out.
            smallest: sizes that the law is fitted to.

        Returns:
            Forecast and measurement, nats per token.

        Raises:
            FitError: the losses do not allow a fit.
        """
        sizes, losses = self.losses(filters)
        table = RunTable.read({"store": sizes[:smallest], "loss": losses[:smallest]})
        said = fit(law_named(_LAW), table, "loss").predict({"store": sizes[-1:]}, extrapolate=True)
        first = said.first
        forecast = Forecast(
            quantity="eval.loss",
            value=first.value,
            low=first.low,
            high=first.high,
            provenance="fitted",
            source=f"law of stores of {sizes[0]:,.0f} to {sizes[smallest - 1]:,.0f} passages",
        )
        return Check(forecast, Measurement(quantity="eval.loss", value=float(losses[-1])))


class Reads(Protocol):
    """A reader, alone or with a copier beside it."""

    def losses(
        self, windows: ReadingWindows, found: Candidates | None = None
    ) -> NDArray[np.float64]:
        """Return mean nats per predicted token of each window [W]; None for no passages."""
        ...


def teach_copier(
    store: Datastore,
    reader: PassageReader,
    windows: ReadingWindows,
    *,
    candidates: int = 1000,
    k: int = 3,
) -> tuple[CopyingReader, ReadingWindows]:
    """Teach a copier beside a reader how far it is to be believed.

    Args:
        store: the whole store.
        reader: a decoder.
        windows: held-out text, of which the first half teaches.
        candidates: passages of each window, those of its own document among them.
        k: passages that the copier looks into.

    Returns:
        Both as one reader, and the other half of the windows.

    Raises:
        ConfigError: fewer than two windows.
    """
    if len(windows) < 2:
        raise ConfigError(
            f"{len(windows)} window of held-out text, but a copier learns from half of them",
            hint="give more held-out text",
        )
    # What teaches the copier whom to believe may not judge it.
    middle = len(windows) // 2
    first = windows.part(slice(middle))
    copier = CopyingReader(reader)
    copier.fit(first, store.search(first.queries, candidates).exclude(first.sources).top(k))
    return copier, windows.part(slice(middle, None))


def study_reading(
    store: Datastore,
    reader: Reads,
    windows: ReadingWindows,
    *,
    candidates: int = 1000,
    k: int = 3,
) -> ReadingStudy:
    """Read held-out text with the best passages of stores of every size.

    Args:
        store: the whole store; smaller ones are drawn from its answers.
        reader: a decoder, or one with a copier beside it.
        windows: held-out text; passages of a window's own document are left out.
        candidates: passages of each window that all stores choose among.
        k: passages that are read.

    Returns:
        The study, with all passages (filter "none") and without copies of the wanted text
        ("clean").

    Raises:
        ConfigError: windows longer than the model takes.
    """
    found = store.search(windows.queries, candidates).exclude(windows.sources)
    cells = study_grid(
        found,
        lambda top: reader.losses(windows, top),
        k=k,
        shares=_SHARES,
        filters={
            "none": lambda item: item,
            "clean": lambda item: item.decontaminate(windows.answers),
        },
    )
    return ReadingStudy(
        cells=cells,
        alone=float(reader.losses(windows).mean()),
        bits_per_nat=float(windows.bits_per_byte(np.ones(len(windows)))),
        windows=len(windows),
    )
