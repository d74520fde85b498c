"""One model at several lengths: its branches, their cost, and a study stopped again and again."""

from dataclasses import replace

import pytest

from steelyard.data.shards import TokenShards
from steelyard.errors import ConfigError
from steelyard.train.study import (
    InProcess,
    OpenStudy,
    StudyRecipe,
    branches,
    run_study,
    rung_cells,
)
from steelyard.train.trainer import train


@pytest.fixture
def recipe(config, data) -> StudyRecipe:
    vocab_size = TokenShards(data).vocab_size
    base = replace(
        config,
        architecture=replace(config.architecture, vocab_size=vocab_size),
        steps=36,
        cooldown_steps=0,
        eval_every=0,
        checkpoint_every=2,
    )
    return StudyRecipe(train=base, lengths=(30 / 36, 1.0), cooldown_fractions=(1 / 3,))


def test_branches_equal_runs_made_alone_and_cost_less(recipe, data, tmp_path):
    found = run_study(recipe, data, tmp_path / "study", in_process=True)
    assert [result.steps for result in found.results] == [30, 36]
    for result in found.results:
        config = replace(recipe.train, steps=result.steps, cooldown_steps=result.steps // 3)
        alone = train(config, TokenShards(data), tmp_path / f"alone-{result.steps}")
        assert result.losses == alone.losses and result.eval_loss == alone.eval_loss
    ran = [item.result.tokens_run for item in (*found.trunks, *found.cells)]
    # The trunk ends where the last branch begins.
    assert sum(ran) == (24 + 10 + 12) * recipe.train.tokens_per_step
    again = run_study(recipe, data, tmp_path / "study", in_process=True)
    assert again.results == found.results


def test_a_study_stopped_again_and_again_ends_as_one_that_was_not(recipe, data, tmp_path):
    whole = run_study(recipe, data, tmp_path / "whole", in_process=True)
    seen, told = 0, []

    def stop(done: float, words: str) -> None:
        nonlocal seen
        seen += 1
        told.append((done, words))
        if seen % 11 == 0:
            raise InterruptedError

    for _ in range(20):
        try:
            with OpenStudy(recipe, data, tmp_path / "parts", in_process=True) as study:
                parts = study.run(advance=stop)
            break
        except InterruptedError:
            continue
    else:
        pytest.fail("the study never finished")
    assert [part.losses for part in parts.results] == [item.losses for item in whole.results]
    # Told between the steps of a cell, not only between cells.
    assert any("cooldown-000036 loss" in words for _, words in told) and told[-1][0] == 1.0


def test_in_process_tells_each_step_and_raises_what_work_raises(recipe, data, tmp_path):
    steps = []
    here = InProcess(data, on_step=lambda config, now: steps.append((config.steps, now.step)))
    result = here.train(replace(recipe.train, steps=3), tmp_path / "run")
    assert steps == [(3, 1), (3, 2), (3, 3)] and result.steps == 3
    assert here.submit(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(ZeroDivisionError):
        here.submit(divmod, 7, 0)


def test_cost_follows_the_paper(config):
    # Ratios 10, 20, 30 cost 0.60 of separate runs with 20 % cooldowns; {10, 15, 20, 25} with 10 %
    # cost 0.42 (Haegele et al. 2024, arXiv 2405.18392).
    config = replace(config, warmup_steps=0)
    for lengths, fraction, expected in (
        ([1000, 2000, 3000], 0.2, 0.60),
        ([1000, 2000, 3000], 0.1, 0.55),
        ([1000, 1500, 2000, 2500], 0.1, 0.42),
    ):
        cells = rung_cells(config, lengths, cooldown_fractions=(fraction,))
        spent = sum(cell.steps for cell in cells)
        assert spent / sum(lengths) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize(
    ("lengths", "fraction", "words"),
    [
        ([], 0.2, "at least one"),
        ([5], 0, "must lie"),
        ([11], 0.2, "no room"),
        ([0], 0.5, "no room"),
    ],
)
def test_impossible_branches_are_refused(lengths, fraction, words):
    with pytest.raises(ConfigError, match=words):
        branches(lengths, cooldown_fraction=fraction, warmup_steps=2)
