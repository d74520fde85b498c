"""The finished runs of a study in a store of their own, where laws and pages find them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.config import to_plain
from steelyard.runs.stages import Stages
from steelyard.train.study.runner import CellOutcome

if TYPE_CHECKING:
    from steelyard.runs.store import RunStore

__all__ = ["cell_keeper"]


def cell_keeper(out: Path) -> Callable[[CellOutcome], None]:
    """Return what writes each finished run of a study into its store, once.

    Args:
        out: the study's folder; the store is `runs` in it.

    Returns:
        An `on_cell` of the study; runs without a result are left out.
    """

    @cache
    def opened() -> "RunStore":
        from steelyard.runs.store import RunStore

        return RunStore(out / "runs")

    def keep(outcome: CellOutcome) -> None:
        result, config = outcome.result, outcome.cell.config
        # A run that diverged has no loss to fit a law to.
        if result is None:
            return

        def work() -> str:
            plain = to_plain(config) | {"pool": outcome.cell.pool}
            name, store = outcome.cell.folder, opened()
            # Without a connection that stays, SQLite would fold its log in after every write.
            with (
                store.database.read(),
                store.create("train", plain, seed=config.seed, name=name) as run,
            ):
                run.measure(*result.measurements())
                run.artifact("model", result.model)
            return run.id

        name = outcome.cell.folder.replace("/", "-")
        Stages(out / "stages").run(name, [result.steps, result.eval_loss], str, work)

    return keep
