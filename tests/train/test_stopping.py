from dataclasses import replace

import numpy as np
import pytest

from steelyard import config as configs
from steelyard.cli import train as cli
from steelyard.errors import ConfigError, StoppedEarlyError
from steelyard.laws.curves import LearningRates
from steelyard.train.stopping import StopRule, forecast_final, parse_limit
from steelyard.train.trainer import train


def test_conditions_are_read_and_others_refused():
    assert parse_limit("eval.loss > 3.2") == 3.2 and parse_limit(" eval.loss>1e1 ") == 10
    for text in ("eval.loss < 3", "train.loss > 3", "eval.loss > x", "eval.loss > 0", ""):
        with pytest.raises(ConfigError, match="cannot be stopped by"):
            parse_limit(text)


def test_the_end_of_a_power_law_is_foreseen_from_a_third():
    rates = LearningRates.constant(1000, 1e-2, warmup=10)
    steps = np.arange(20, 1000, 20.0)
    losses = 2.0 + 4.0 * (steps + 1) ** -0.4
    seen = steps < 333
    found = forecast_final(rates, steps[seen], losses[seen])
    assert found is not None and found.least <= found.forecast.low
    said = found.forecast
    assert said.low < losses[-1] < said.high and said.high - said.low < 0.1
    # Where the rate is still to fall, the end may lie lower, by as much as is usual.
    cooled = forecast_final(
        LearningRates.trapezoid(1000, 1e-2, warmup=10), steps[seen], losses[seen]
    )
    assert cooled is not None and 0.05 < said.low - cooled.forecast.low < 0.35
    assert found.least - cooled.least > said.low - cooled.forecast.low
    # Units of the rate do not matter, and too early nothing is said.
    again = forecast_final(LearningRates(100 * rates.rates), steps[seen], losses[seen])
    assert again is not None and again.forecast.value == pytest.approx(said.value, rel=1e-3)
    assert forecast_final(rates, steps[:6], losses[:6]) is None


def test_a_run_is_stopped_where_it_cannot_reach_the_limit_and_goes_on_later(
    config, source, tmp_path
):
    plan = replace(config, steps=60, eval_every=3, checkpoint_every=0, cooldown_steps=6)
    whole = train(plan, source, tmp_path / "whole")
    rule = StopRule(plan, 0.5, tmp_path / "run")
    with pytest.raises(StoppedEarlyError, match=r"above 0\.5") as caught:
        train(plan, source, tmp_path / "run", on_step=rule)
    assert caught.value.exit_code == 1
    assert rule.latest and rule.latest.least < whole.eval_loss < rule.latest.forecast.high
    # What was asked of the first call is known to the next: it stops at its first evaluation.
    steps = []

    def note(now):
        steps.append(now.step)
        again(now)

    again = StopRule(plan, 0.5, tmp_path / "run")
    with pytest.raises(StoppedEarlyError):
        train(plan, source, tmp_path / "run", on_step=note)
    assert len(steps) == 3
    assert train(plan, source, tmp_path / "run").losses == whole.losses


def test_a_condition_needs_evaluations(config, data, tmp_path):
    recipe = tmp_path / "recipe.json"
    configs.dump(replace(config, eval_every=0), recipe)
    with pytest.raises(ConfigError, match="evaluated at its end only"):
        cli.run(recipe, data=data, out=tmp_path / "run", stop_if="eval.loss > 3")
