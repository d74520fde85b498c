from dataclasses import replace

import pytest

from steelyard.errors import ConfigError
from steelyard.train import TrainResult, study
from steelyard.train.trainer import train


def test_branches_equal_runs_made_alone_and_cost_less(config, source, tmp_path):
    config = replace(config, eval_every=0, checkpoint_every=0)
    steps_seen = []
    lengths = [36, 30]
    results = study.run_ladder_rung(
        config,
        lengths,
        source,
        tmp_path / "rung",
        cooldown_fraction=1 / 3,
        on_step=steps_seen.append,
    )
    assert [result.steps for result in results] == [30, 36]
    for result in results:
        cooldown = result.steps // 3
        alone = train(
            replace(config, steps=result.steps, cooldown_steps=cooldown),
            source,
            tmp_path / f"alone-{result.steps}",
        )
        assert result.losses == alone.losses and result.eval_loss == alone.eval_loss
    trunk = TrainResult.load(tmp_path / "rung" / "trunk")
    assert trunk
    spent = trunk.tokens_run + sum(result.tokens_run for result in results)
    assert (
        spent
        == study.ladder_tokens(config, lengths, cooldown_fraction=1 / 3)
        == len(steps_seen) * config.tokens_per_step
    )
    assert (
        study.run_ladder_rung(config, lengths, source, tmp_path / "rung", cooldown_fraction=1 / 3)
        == results
    )


def test_interrupted_rung_goes_on(config, source, tmp_path):
    config = replace(config, eval_every=0, checkpoint_every=2)
    whole = study.run_ladder_rung(config, [14, 20], source, tmp_path / "whole")
    seen = 0

    def stop(progress) -> None:
        nonlocal seen
        seen += 1
        if seen % 11 == 0:
            raise InterruptedError

    for _ in range(20):
        try:
            parts = study.run_ladder_rung(
                config, [14, 20], source, tmp_path / "parts", on_step=stop
            )
            break
        except InterruptedError:
            continue
    else:
        pytest.fail("the rung never finished")
    assert [part.losses for part in parts] == [item.losses for item in whole]


def test_cost_follows_the_paper(config):
    # Ratios 10, 20, 30 cost 0.60 of separate runs with 20 % cooldowns; {10, 15, 20, 25} with 10 %
    # cost 0.42 (Haegele et al. 2024, arXiv 2405.18392).
    config = replace(config, warmup_steps=0)
    for lengths, fraction, expected in (
        ([1000, 2000, 3000], 0.2, 0.60),
        ([1000, 2000, 3000], 0.1, 0.55),
        ([1000, 1500, 2000, 2500], 0.1, 0.42),
    ):
        spent = study.ladder_tokens(config, lengths, cooldown_fraction=fraction)
        assert spent / (sum(lengths) * config.tokens_per_step) == pytest.approx(expected, abs=0.006)


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
        study.branches(lengths, cooldown_fraction=fraction, warmup_steps=2)
