"""What a store is worth to a reader, at every size, from one search; and the law of its size."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.laws import Fit, RunTable, fit, law_named
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.retrieve.datastore import Datastore, StudyCell, study_grid
from steelyard.retrieve.readers.copying import CopyingReader
from steelyard.retrieve.readers.reader import PassageReader
from steelyard.retrieve.readers.windows import ReadingWindows

__all__ = ["SHARES", "ReadingStudy", "study_reading"]

SHARES = tuple(10.0 ** (place / 4 - 2) for place in range(9))
"""Sizes of stores, four a decade, as shares of the whole one."""
_LAW = "power_law_floor:store"
_LOWER = 6
"""Sizes that the law is fitted to when it foresees the largest."""


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

    def foreseen(self, filters: str) -> Check:
        """Return what a law of the six smallest sizes says of the whole store, beside its loss.

        Args:
            filters: name of what was left out.

        Returns:
            Forecast and measurement, nats per token.

        Raises:
            FitError: the losses do not allow a fit.
        """
        sizes, losses = self.losses(filters)
        table = RunTable.read({"store": sizes[:_LOWER], "loss": losses[:_LOWER]})
        said = fit(law_named(_LAW), table, "loss").predict({"store": sizes[-1:]}, extrapolate=True)
        first = said.first
        forecast = Forecast(
            quantity="eval.loss",
            value=first.value,
            low=first.low,
            high=first.high,
            provenance="fitted",
            source=f"law of stores of {sizes[0]:,.0f} to {sizes[_LOWER - 1]:,.0f} passages",
        )
        return Check(forecast, Measurement(quantity="eval.loss", value=float(losses[-1])))


def study_reading(
    store: Datastore,
    reader: PassageReader,
    windows: ReadingWindows,
    *,
    candidates: int = 1000,
    k: int = 3,
    is_copying: bool = False,
) -> ReadingStudy:
    """Read held-out text with the best passages of stores of every size.

    Args:
        store: the whole store; smaller ones are drawn from its answers.
        reader: a decoder.
        windows: held-out text; passages of a window's own document are left out.
        candidates: passages of each window that all stores choose among.
        k: passages that are read.
        is_copying: whether the reader stays without passages and a copier looks into them; how far
            it is believed is learned on the first half of the windows, the other half is read.

    Returns:
        The study, with all passages ("all") and with neither copies of the wanted text nor nearly
        equal passages ("clean").

    Raises:
        ConfigError: fewer than two windows where a copier learns, or windows longer than the model.
    """
    measured: PassageReader | CopyingReader = reader
    if is_copying:
        if len(windows) < 2:
            raise ConfigError(
                f"{len(windows)} window of held-out text, but a copier learns from half of them",
                hint="give more held-out text",
            )
        # What teaches the copier whom to believe may not judge it.
        middle = len(windows) // 2
        fitting, windows = windows.part(slice(middle)), windows.part(slice(middle, None))
        known = store.search(fitting.queries, candidates).exclude(fitting.sources)
        measured = CopyingReader(reader)
        measured.fit(fitting, known.top(k))
    found = store.search(windows.queries, candidates).exclude(windows.sources)
    cells = study_grid(
        found,
        lambda top: measured.losses(windows, top),
        k=k,
        shares=SHARES,
        filters={
            "all": lambda item: item,
            "clean": lambda item: item.decontaminate(windows.answers).dedup(),
        },
    )
    alone = reader.losses(windows)
    return ReadingStudy(
        cells=cells,
        alone=float(alone.mean()),
        bits_per_nat=float(windows.bits_per_byte(np.ones(len(windows)))),
        windows=len(windows),
    )
