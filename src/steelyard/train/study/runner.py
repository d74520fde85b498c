"""Run the cells of a study, several at once, each in a process of its own."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard import files
from steelyard.config import convert, to_plain
from steelyard.data.shards import TokenShards
from steelyard.errors import ConfigError, DivergedError
from steelyard.quantity import Forecast
from steelyard.runs.host import describe_machine
from steelyard.train.result import RESULT_FILE, Progress, TrainResult
from steelyard.train.study.cells import Cell, study_cells
from steelyard.train.study.order import CellOrder
from steelyard.train.study.price import CellPace, forecast_time, probe
from steelyard.train.study.processes import TrainProcesses
from steelyard.train.study.recipe import StudyRecipe

__all__ = ["CellOutcome", "StudyOutcome", "price_study", "run_study"]

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
        forecast: wall time as it was forecast before the first cell began.
        wall_s: wall time of all calls together; cells that a call was stopped in are counted up to
            there.
    """

    cells: tuple[CellOutcome, ...]
    forecast: Forecast
    wall_s: float

    @property
    def results(self) -> list[TrainResult]:
        """Results of the cells that have one."""
        return [item.result for item in self.cells if item.result is not None]


def run_study(
    recipe: StudyRecipe,
    data: Path,
    directory: Path,
    *,
    jobs: int = 0,
    on_cell: "Callable[[CellOutcome], None]" = lambda outcome: None,
    advance: Advance = lambda done, words: None,
) -> StudyOutcome:
    """Train every cell of a study, or go on where an earlier call was stopped.

    A cell whose loss diverges is noted and does not stop the others.

    Args:
        recipe: the study.
        data: folder of token shards, as `data.text.prepare` wrote it.
        directory: the study's folder: a folder per model, one per run in it.
        jobs: cells at once; 0 for as many as the cores allow at the recipe's `threads` each, one
            where it leaves `threads` open.
        on_cell: told each outcome when it is there, those of earlier calls too, trunks left out.
        advance: told the share of the work that is done, and a few words.

    Returns:
        Every cell's outcome.

    Raises:
        ConfigError: lengths that some model cannot have, or the folder holds another study's runs.
        DataError: too little data, or a damaged checkpoint.
        StoreError: another process works on this study.
        CapacityError: the disk is full.
        BackendError: a cell's process died without a word.
    """
    cells, directory = study_cells(recipe), Path(directory)
    at_once = _places(recipe, jobs)
    with (
        files.exclusive(directory),
        TrainProcesses(data) as processes,
        ThreadPoolExecutor(at_once) as pool,
    ):
        # One pool to the end: Linux ends a child with the thread that started it.
        paces = probe(cells, directory, processes, pool, jobs=at_once)
        path = directory / "study.json"
        books = _open_books(path, cells, paces, at_once)
        begin_s = time.perf_counter()
        try:
            study = _Cells(cells, data, directory, processes, paces, on_cell, advance)
            outcomes = study.until_done(pool, at_once)
        finally:
            books = replace(books, wall_s=books.wall_s + time.perf_counter() - begin_s)
            files.write_json(path, to_plain(books))
    return StudyOutcome(cells=tuple(outcomes), forecast=books.forecast, wall_s=books.wall_s)


def price_study(
    recipe: StudyRecipe, data: Path, directory: Path, *, jobs: int = 0
) -> tuple[Forecast, list[Cell]]:
    """Forecast what is left of a study, from a few steps of each of its models.

    Args:
        recipe: the study.
        data: folder of token shards.
        directory: the study's folder; the timed steps are kept there.
        jobs: cells at once, as for `run_study`.

    Returns:
        Wall time of the cells that are not finished, and those cells.

    Raises:
        ConfigError: lengths that some model cannot have, or fewer than 0 jobs.
        DataError: too little data.
        StoreError: another process works on this study.
    """
    cells, directory = study_cells(recipe), Path(directory)
    at_once = _places(recipe, jobs)
    with (
        files.exclusive(directory),
        TrainProcesses(data) as processes,
        ThreadPoolExecutor(at_once) as pool,
    ):
        paces = probe(cells, directory, processes, pool, jobs=at_once)
    left = [cell for cell in cells if not _is_finished(directory, cell)]
    return forecast_time(left, paces, jobs=at_once), left


def _is_finished(directory: Path, cell: Cell) -> bool:
    """Return whether an earlier call brought a cell to its end."""
    return (directory / cell.folder / RESULT_FILE).exists()


def _places(recipe: StudyRecipe, jobs: int) -> int:
    """Return how many cells run at once: those asked for, or what the cores allow."""
    if jobs < 0:
        raise ConfigError(f"{jobs} jobs cannot run", hint="give 1 or more, or 0 for the cores' own")
    if jobs:
        return jobs
    cores = int(describe_machine()["cores"])
    return max(cores // recipe.train.threads, 1) if recipe.train.threads else 1


@dataclass(frozen=True, slots=True)
class _Books:
    """What a study remembers from call to call: its cells, their forecast, and the time spent."""

    cells: list[str]
    forecast: Forecast
    wall_s: float = 0.0


def _open_books(path: Path, cells: list[Cell], paces: dict[str, CellPace], jobs: int) -> _Books:
    """Read the books, or begin them with a forecast of the cells that are not finished."""
    names = [cell.folder for cell in cells]
    if path.exists():
        kept = convert(files.read_json(path), _Books, where=str(path))
        # A recipe that has grown since is forecast, and its time counted, from now on.
        if kept.cells == names:
            return kept
    left = [cell for cell in cells if not _is_finished(path.parent, cell)]
    return _Books(names, forecast_time(left, paces, jobs=jobs))


class _Cells:
    """One call of a study: which cells have begun, and how far they are."""

    def __init__(
        self,
        cells: list[Cell],
        data: Path,
        directory: Path,
        processes: TrainProcesses,
        paces: Mapping[str, CellPace],
        on_cell: Callable[[CellOutcome], None],
        advance: Advance,
    ) -> None:
        """Stand before the first cell."""
        self.cells = cells
        self.data = data
        self.directory = directory
        self.processes = processes
        self.on_cell = on_cell
        self.advance = advance
        self.seconds = {
            cell.folder: paces[cell.config.architecture.name].seconds(cell) for cell in cells
        }
        self.order = CellOrder(cells, self.seconds)
        self.outcomes: dict[str, CellOutcome] = {}
        self.shares: dict[str, float] = {}
        self.words = ""
        self.stopping = threading.Event()

    def until_done(self, pool: ThreadPoolExecutor, jobs: int) -> list[CellOutcome]:
        """Begin cells as places and checkpoints come free, until all have ended."""
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
            if not cell.is_trunk
        ]

    def _collect(self) -> None:
        """Take the results of cells that an earlier call finished."""
        finished = [cell for cell in self.cells if _is_finished(self.directory, cell)]
        if not finished:
            return
        from steelyard.train.trainer import train

        source = TokenShards(self.data)
        for cell in finished:
            start = self.directory / cell.start_file if cell.start else None
            # A finished folder answers at once, or says that it holds another run.
            result = train(cell.config, source, self.directory / cell.folder, start_from=start)
            self._keep(CellOutcome(cell=cell, result=result))

    def _keep(self, outcome: CellOutcome) -> None:
        """Note a cell that has ended."""
        self.outcomes[outcome.cell.folder] = outcome
        self.shares[outcome.cell.folder] = 1.0
        if not outcome.cell.is_trunk:
            self.on_cell(outcome)

    def _begin(
        self, pool: ThreadPoolExecutor, running: "dict[Future[CellOutcome], Cell]", jobs: int
    ) -> bool:
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
        """Train one cell in a process of its own."""

        def on_step(now: Progress) -> None:
            if self.stopping.is_set():
                raise _StoppedError
            self.shares[cell.folder] = (now.step - cell.start) / cell.steps
            self.words = f"{cell.folder} loss {now.loss:.3f}"

        start = self.directory / cell.start_file if cell.start else None
        try:
            result = self.processes.train(
                cell.config,
                self.directory / cell.folder,
                start_from=start,
                on_step=on_step,
            )
        except DivergedError as error:
            return CellOutcome(cell=cell, failure=str(error))
        return CellOutcome(cell=cell, result=result)

    def _tell(self) -> None:
        """Report how much is done, by forecast time."""
        done = sum(share * self.seconds[folder] for folder, share in self.shares.items())
        count = sum(folder in self.outcomes for folder in self.seconds)
        words = f"{count} of {len(self.cells)} runs, {self.words}"
        self.advance(min(done / sum(self.seconds.values()), 1.0), words)
