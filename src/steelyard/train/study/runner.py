"""One call of a study: which cells have begun, how far they are, and what became of them."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import DivergedError
from steelyard.quantity import Forecast
from steelyard.train.result import RESULT_FILE, OnStep, Progress, TrainResult
from steelyard.train.study.cells import Cell
from steelyard.train.study.in_process import InProcess
from steelyard.train.study.order import CellOrder
from steelyard.train.study.processes import CellTrainer

__all__ = ["Advance", "CellOutcome", "CellRunner", "StudyOutcome", "is_finished"]

_LOOK_EVERY_S = 0.3
"""Time between two looks at checkpoints that branches wait for."""

Advance = Callable[[float, str], None]


class _StoppedError(Exception):
    """Ends a cell's process because the study ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellOutcome:
    """A cell that has ended.

    Attributes:
        cell: the run.
        result: what it measured; None where it has none.
        failure: why there is no result; empty where there is one.
    """

    cell: Cell
    result: TrainResult | None = None
    failure: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyOutcome:
    """A study that has ended.

    Attributes:
        cells: outcomes in the study's order, trunks left out.
        trunks: outcomes of the trunks, with the losses of their averages by step.
        forecast: wall time as it was forecast before the first cell began.
        wall_s: wall time of all calls together; cells that a call was stopped in are counted up to
            there.
    """

    cells: tuple[CellOutcome, ...]
    trunks: tuple[CellOutcome, ...]
    forecast: Forecast
    wall_s: float

    @property
    def results(self) -> list[TrainResult]:
        """Results of the cells that have one."""
        return [item.result for item in self.cells if item.result is not None]


def is_finished(directory: Path, cell: Cell) -> bool:
    """Return whether an earlier call brought a cell to its end.

    Args:
        directory: the study's folder.
        cell: one of its cells.

    Returns:
        Whether its folder holds a result.
    """
    return (directory / cell.folder / RESULT_FILE).exists()


class CellRunner:
    """One call of a study: which cells have begun, and how far they are."""

    def __init__(
        self,
        cells: list[Cell],
        data: Path,
        directory: Path,
        trainer: CellTrainer,
        seconds: Mapping[str, float],
        *,
        on_cell: Callable[[CellOutcome], None] = lambda outcome: None,
        advance: Advance = lambda done, words: None,
    ) -> None:
        """Stand before the first cell.

        Args:
            cells: the study.
            data: folder of token shards.
            directory: the study's folder.
            trainer: what trains.
            seconds: what each cell takes, by its folder; only their proportions count.
            on_cell: told each outcome, trunks left out.
            advance: told the share of the work that is done, and a few words.
        """
        self.cells = cells
        self.data = data
        self.directory = directory
        self.trainer = trainer
        self.on_cell = on_cell
        self.advance = advance
        self.seconds = seconds
        self.order = CellOrder(cells, seconds)
        self.outcomes: dict[str, CellOutcome] = {}
        self.shares: dict[str, float] = {}
        self.words = ""
        self.stopping = threading.Event()
        self.teller = threading.current_thread()

    def until_done(self, pool: Executor, jobs: int) -> list[CellOutcome]:
        """Begin cells as places and checkpoints come free, until all have ended.

        Progress is told by the thread that made this runner, which must be the one that calls.

        Args:
            pool: runs `jobs` at once.
            jobs: cells at once.

        Returns:
            Outcomes of all cells, trunks too, in the study's order.
        """
        self._collect()
        running: dict[Future[CellOutcome], Cell] = {}
        try:
            while self._begin(pool, running, jobs) or running:
                ended, _ = wait(running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                for future in ended:
                    del running[future]
                    self._keep(future.result())
                self._tell()
        finally:
            # Runs that still go on are ended, so that the pool can close.
            self.stopping.set()
        return [
            self.outcomes.get(cell.folder) or CellOutcome(cell=cell, failure="its trunk diverged")
            for cell in self.cells
        ]

    def _collect(self) -> None:
        """Take the results of cells that an earlier call finished."""
        here = InProcess(self.data)
        for cell in self.cells:
            if is_finished(self.directory, cell):
                # A finished folder answers at once, or says that it holds another run.
                self._keep(CellOutcome(cell=cell, result=self._run(cell, here)))

    def _keep(self, outcome: CellOutcome) -> None:
        """Note a cell that has ended."""
        self.outcomes[outcome.cell.folder] = outcome
        self.shares[outcome.cell.folder] = 1.0
        if not outcome.cell.is_trunk:
            self.on_cell(outcome)

    def _begin(self, pool: Executor, running: "dict[Future[CellOutcome], Cell]", jobs: int) -> bool:
        """Begin what may begin; return whether anything did."""
        begun = {*self.outcomes, *(cell.folder for cell in running.values())}
        found = False
        while len(running) < jobs and (cell := self.order.next(begun, self._has_start)):
            begun.add(cell.folder)
            running[pool.submit(self._train, cell)] = cell
            found = True
        return found

    def _has_start(self, cell: Cell) -> bool:
        """Return whether the trunk has written what a branch starts from."""
        # The scalars are written after the tensors: with them the checkpoint is complete.
        return (self.directory / cell.start_file).with_suffix(".json").exists()

    def _train(self, cell: Cell) -> CellOutcome:
        """Train one cell, and say how far it is."""

        def on_step(now: Progress) -> None:
            if self.stopping.is_set():
                raise _StoppedError
            self.shares[cell.folder] = (now.step - cell.start) / cell.steps
            self.words = f"{cell.folder} loss {now.loss:.3f}"
            # A cell that trains in the teller's own thread leaves nobody else to tell.
            if threading.current_thread() is self.teller:
                self._tell()

        try:
            result = self._run(cell, self.trainer, on_step)
        except DivergedError as error:
            return CellOutcome(cell=cell, failure=str(error))
        return CellOutcome(cell=cell, result=result)

    def _run(self, cell: Cell, trainer: CellTrainer, on_step: OnStep | None = None) -> TrainResult:
        """Train one cell from where it starts."""
        return trainer.train(
            cell.config,
            self.directory / cell.folder,
            pool=cell.pool,
            start_from=self.directory / cell.start_file if cell.start else None,
            on_step=on_step,
        )

    def _tell(self) -> None:
        """Report how much is done, by forecast time."""
        done = sum(share * self.seconds[folder] for folder, share in self.shares.items())
        count = sum(folder in self.outcomes for folder in self.seconds)
        words = f"{count} of {len(self.cells)} runs, {self.words}"
        self.advance(min(done / sum(self.seconds.values()), 1.0), words)
