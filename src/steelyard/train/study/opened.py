"""A study on its way: priced first, then trained cell by cell, in the same processes."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from steelyard import files
from steelyard.config import convert, to_plain
from steelyard.errors import ConfigError
from steelyard.quantity import Forecast
from steelyard.runs.host import describe_machine
from steelyard.train.pace import RunPace
from steelyard.train.study.cells import Cell, study_cells
from steelyard.train.study.in_process import InProcess
from steelyard.train.study.price import cell_seconds, forecast_time, probe
from steelyard.train.study.processes import CellTrainer, TrainProcesses
from steelyard.train.study.recipe import StudyRecipe
from steelyard.train.study.runner import (
    Advance,
    CellOutcome,
    CellRunner,
    StudyOutcome,
    is_finished,
)

__all__ = ["OpenStudy", "price_study", "run_study"]


class OpenStudy:
    """A study whose folder and processes are held: to price it, to run it, or both.

    Attributes:
        cells: all its cells.
    """

    def __init__(
        self,
        recipe: StudyRecipe,
        data: Path,
        directory: Path,
        *,
        jobs: int = 0,
        in_process: bool = False,
    ) -> None:
        """Say what is studied; nothing is started before `with`.

        Args:
            recipe: the study.
            data: folder of token shards, as `data.text.prepare` wrote it.
            directory: the study's folder: a folder per model, one per run in it.
            jobs: cells at once; 0 for as many as the cores allow at the recipe's `threads` each,
                one where it leaves `threads` open.
            in_process: train in this process, one cell after another, whatever `jobs` says.

        Raises:
            ConfigError: lengths that some model cannot have, or fewer than 0 jobs.
        """
        self.cells = study_cells(recipe)
        self._data, self._directory = Path(data), Path(directory)
        self._jobs = 1 if in_process else _places(recipe, jobs)
        self._in_process = in_process
        self._held = ExitStack()

    def __enter__(self) -> "OpenStudy":
        """Take the folder, start the processes and time a few steps of each kind of cell.

        Returns:
            This study.

        Raises:
            DataError: too little data.
            StoreError: another process works on this study.
        """
        with ExitStack() as held:
            held.enter_context(files.exclusive(self._directory))
            self._trainer, self._pool = self._places_to_train(held)
            self._paces = probe(
                self.cells, self._directory, self._trainer, self._pool, jobs=self._jobs
            )
            self._held = held.pop_all()
        return self

    def _places_to_train(self, held: ExitStack) -> tuple[CellTrainer, Executor]:
        """Return what trains cells, and what runs as many at once as there are jobs."""
        if self._in_process:
            here = InProcess(self._data)
            return here, here
        processes = held.enter_context(TrainProcesses(self._data))
        # One pool to the end: Linux ends a child with the thread that started it.
        pool = held.enter_context(ThreadPoolExecutor(self._jobs))
        if self._left():
            # What a process loads before its first run is no part of a run.
            list(pool.map(lambda _: processes.warm(), range(self._jobs)))
        return processes, pool

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.__exit__(kind, error, trace)

    def price(self) -> tuple[Forecast, list[Cell]]:
        """Forecast what is left, from a few steps of each kind of cell.

        Returns:
            Wall time of the cells that are not finished, and those cells.
        """
        left = self._left()
        return forecast_time(left, self._paces, jobs=self._jobs), left

    def run(
        self,
        *,
        on_cell: "Callable[[CellOutcome], None]" = lambda outcome: None,
        advance: Advance = lambda done, words: None,
    ) -> StudyOutcome:
        """Train every cell, or go on where an earlier call was stopped.

        A cell whose loss diverges is noted and does not stop the others.

        Args:
            on_cell: told each outcome when it is there, those of earlier calls too, trunks left
                out.
            advance: told the share of the work that is done, and a few words.

        Returns:
            Every cell's outcome.

        Raises:
            ConfigError: the folder holds another study's runs.
            DataError: a damaged checkpoint.
            CapacityError: the disk is full.
            BackendError: a cell's process died without a word.
        """
        path = self._directory / "study.json"
        books = _open_books(path, self.cells, self._paces, self._jobs)
        files.write_json(path, to_plain(books))  # so that a kill leaves the forecast
        begin_s = time.perf_counter()
        try:
            runner = CellRunner(
                self.cells,
                self._data,
                self._directory,
                self._trainer,
                cell_seconds(self.cells, self._paces),
                on_cell=on_cell,
                advance=advance,
            )
            found = runner.until_done(self._pool, self._jobs)
        finally:
            books = replace(books, wall_s=books.wall_s + time.perf_counter() - begin_s)
            files.write_json(path, to_plain(books))
        return StudyOutcome(
            cells=tuple(item for item in found if not item.cell.is_trunk),
            trunks=tuple(item for item in found if item.cell.is_trunk),
            forecast=books.forecast,
            wall_s=books.wall_s,
        )

    def _left(self) -> list[Cell]:
        """Return the cells that are not finished."""
        return [cell for cell in self.cells if not is_finished(self._directory, cell)]


def run_study(
    recipe: StudyRecipe,
    data: Path,
    directory: Path,
    *,
    jobs: int = 0,
    in_process: bool = False,
    on_cell: "Callable[[CellOutcome], None]" = lambda outcome: None,
    advance: Advance = lambda done, words: None,
) -> StudyOutcome:
    """Train every cell of a study; arguments, result and errors of `OpenStudy` and its `run`."""
    with OpenStudy(recipe, data, directory, jobs=jobs, in_process=in_process) as study:
        return study.run(on_cell=on_cell, advance=advance)


def price_study(
    recipe: StudyRecipe, data: Path, directory: Path, *, jobs: int = 0
) -> tuple[Forecast, list[Cell]]:
    """Forecast what is left of a study; arguments and errors of `OpenStudy`.

    Args:
        recipe: the study.
        data: folder of token shards.
        directory: the study's folder; the timed steps are kept there.
        jobs: cells at once.

    Returns:
        Wall time of the cells that are not finished, and those cells.
    """
    with OpenStudy(recipe, data, directory, jobs=jobs) as study:
        return study.price()


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


def _open_books(path: Path, cells: list[Cell], paces: Mapping[str, RunPace], jobs: int) -> _Books:
    """Read the books, or begin them with a forecast of the cells that are not finished."""
    names = [cell.folder for cell in cells]
    if path.exists():
        kept = convert(files.read_json(path), _Books, where=str(path))
        # A recipe that has grown since is forecast, and its time counted, from now on.
        if kept.cells == names:
            return kept
    left = [cell for cell in cells if not is_finished(path.parent, cell)]
    return _Books(names, forecast_time(left, paces, jobs=jobs))
