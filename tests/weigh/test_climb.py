"""The ladder as a study: which cells it has, and what a kill leaves of it."""

from dataclasses import replace

import pytest

from steelyard.data import text
from steelyard.data.shards import TokenShards
from steelyard.errors import DivergedError
from steelyard.laws import RunTable
from steelyard.runs.store import RunStore
from steelyard.train.study import InProcess, study_cells
from steelyard.weigh import ladder as ladders
from steelyard.weigh import training
from steelyard.weigh.ladder import Ladder
from steelyard.weigh.settings import QuickstartConfig

RUNGS = Ladder(
    rungs=((32, 1),), target=(64, 2), branch_steps=(20, 32), target_steps=32, expected_s=0.0
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> TokenShards:
    folder = tmp_path_factory.mktemp("text")
    book = " ".join(f"the {n} weighs {n * 7919 % 1000} and {n * n % 97}" for n in range(20000))
    (folder / "book.txt").write_text(book)
    text.prepare([folder / "book.txt"], folder / "data", vocab_size=400, seed=0)
    return TokenShards(folder / "data")


@pytest.fixture
def config(tmp_path, monkeypatch) -> QuickstartConfig:
    monkeypatch.setattr(training, "_EVAL_TOKENS", 4 * ladders.SEQUENCE_LENGTH)
    monkeypatch.setattr(training, "BATCH_SIZE", 1)
    return QuickstartConfig(out=tmp_path / "out", threads=1)


def results(config):
    return sorted(path.parent for path in (config.out / "ladder").rglob("result.json"))


def test_a_stopped_ladder_goes_on_from_the_cells_that_are_done(
    shards, config, tmp_path, monkeypatch
):
    whole = training.climb(RUNGS, shards, replace(config, out=tmp_path / "whole"), lambda *_: None)
    train, begun = InProcess.train, []

    def stopped_in_the_third(self, run, directory, **options):
        begun.append(directory)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return train(self, run, directory, **options)

    monkeypatch.setattr(InProcess, "train", stopped_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        training.climb(RUNGS, shards, config, lambda *_: None)
    done = {path: (path / "result.json").stat().st_mtime_ns for path in results(config)}
    assert len(done) == 2
    monkeypatch.setattr(InProcess, "train", train)
    parts = training.climb(RUNGS, shards, config, lambda *_: None)
    assert (
        done.items()
        <= {path: (path / "result.json").stat().st_mtime_ns for path in results(config)}.items()
    )
    assert [item.loss for item in parts] == [item.loss for item in whole]
    assert [item.steps for item in parts] == [20, 32]
    # Kept once each, where laws find them.
    table = RunTable.from_store(RunStore.existing(config.out / "ladder" / "runs"))
    assert sorted(table["loss"]) == sorted(item.loss for item in whole)


def test_a_rung_that_diverges_ends_the_ladder_with_its_name(shards, config, monkeypatch):
    def diverge(self, run, directory, **options):
        raise DivergedError("the loss of step 3 is nan")

    monkeypatch.setattr(InProcess, "train", diverge)
    with pytest.raises(DivergedError, match=r"32x1/trunk: the loss of step 3"):
        training.climb(RUNGS, shards, config, lambda *_: None)


@pytest.mark.parametrize("steps", [(30, 48, 75, 120), (225, 360, 567, 900)])
def test_cells_are_the_rungs_as_they_train_alone(config, steps):
    rungs = ((32, 2), (96, 3), (512, 8))
    ladder = replace(RUNGS, rungs=rungs, branch_steps=steps)
    cells = study_cells(training.ladder_recipe(ladder, config))
    for cell in cells:
        shape = (cell.config.architecture.hidden_size, cell.config.architecture.num_layers)
        alone = training.rung_config(shape, steps[-1], config, cooled=False)
        own = {"steps": alone.steps, "cooldown_steps": 0, "checkpoint_at": ()}
        assert replace(cell.config, **own) == alone
    lengths = [cell.config.steps for cell in cells if not cell.is_trunk]
    assert lengths == [*steps] * len(rungs)
