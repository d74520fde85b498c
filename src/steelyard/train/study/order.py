"""Which cell of a study begins next, and how long the whole takes: one rule for both."""

from collections.abc import Callable, Collection, Mapping, Sequence

from steelyard.sim.loop import EventLoop
from steelyard.train.study.cells import Cell

__all__ = ["CellOrder", "makespan"]


class CellOrder:
    """Begins the cells that most depends on first.

    A branch may begin as soon as its trunk has written the checkpoint it starts from, while the
    trunk goes on.
    """

    def __init__(self, cells: Sequence[Cell], seconds: Mapping[str, float]) -> None:
        """Rank the cells.

        Args:
            cells: all cells of the study.
            seconds: what each takes, by folder; only their proportions count.
        """
        longest: dict[str, float] = {}
        for cell in cells:
            if cell.trunk:
                longest[cell.trunk] = max(longest.get(cell.trunk, 0.0), seconds[cell.folder])
        self._ranked = sorted(
            cells, key=lambda cell: -(seconds[cell.folder] + longest.get(cell.folder, 0.0))
        )

    def next(self, begun: Collection[str], has_start: Callable[[Cell], bool]) -> Cell | None:
        """Return the cell to begin now.

        Args:
            begun: folders of cells that run, are done or have failed.
            has_start: whether the checkpoint that a cell starts from is there.

        Returns:
            The cell; None while none may begin.
        """
        return next(
            (
                cell
                for cell in self._ranked
                if cell.folder not in begun and (not cell.start or has_start(cell))
            ),
            None,
        )


def makespan(
    cells: Sequence[Cell], seconds: Mapping[str, float], step_s: Mapping[str, float], *, jobs: int
) -> float:
    """Return how long a study takes when `jobs` cells run at once.

    Args:
        cells: all cells.
        seconds: what each takes, by folder.
        step_s: seconds of one of its steps, by folder.
        jobs: cells at once, at least 1.

    Returns:
        Seconds from the first begin to the last end; 0 without cells.
    """
    loop, order = EventLoop(), CellOrder(cells, seconds)
    begun: set[str] = set()
    written: set[str] = set()
    free = jobs

    def begin() -> None:
        nonlocal free
        while free and (cell := order.next(begun, lambda item: item.start_file in written)):
            begun.add(cell.folder)
            free -= 1
            loop.after(seconds[cell.folder], end)
            # A trunk's evaluation and its start are counted before its first step.
            before_s = seconds[cell.folder] - cell.steps * step_s[cell.folder]
            for step in cell.config.checkpoint_at if cell.is_trunk else ():
                path = f"{cell.folder}/step-{step:08d}.safetensors"
                loop.after(before_s + step * step_s[cell.folder], lambda path=path: write(path))

    def write(path: str) -> None:
        written.add(path)
        begin()

    def end() -> None:
        nonlocal free
        free += 1
        begin()

    begin()
    return loop.run()
