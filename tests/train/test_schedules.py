from dataclasses import replace

import pytest

from steelyard.config import convert, to_plain
from steelyard.errors import ConfigError
from steelyard.laws.forms.schedules import multipliers
from steelyard.laws.forms.schedules.schedule_rates import LearningRates
from steelyard.train.config import TrainConfig
from steelyard.train.schedules import for_config
from steelyard.train.trainer import open_session


@pytest.mark.parametrize(
    ("schedule", "cooldown", "same"),
    [
        ("1-sqrt", 5, LearningRates.trapezoid(20, 3e-3, 4, 0.25)),
        ("linear", 5, LearningRates.trapezoid(20, 3e-3, 4, 0.25, "linear")),
        ("1-sqrt", 0, LearningRates.constant(20, 3e-3, 4)),
        ("cosine", 0, LearningRates.cosine(20, 3e-3, 4)),
    ],
)
def test_a_run_follows_the_rates_a_law_is_told(config, source, schedule, cooldown, same):
    run = replace(
        config,
        steps=20,
        warmup_steps=4,
        cooldown_steps=cooldown,
        schedule=schedule,
        learning_rate=3e-3,
        checkpoint_at=(),
    )
    session = open_session(run, source)
    assert [session.rate(step) for step in range(20)] == same.rates.tolist()


def test_a_trapezoid_of_no_cooldown_is_constant(config):
    flat = for_config(replace(config, steps=9, warmup_steps=2, cooldown_steps=0, checkpoint_at=()))
    assert (flat == multipliers.constant(9, warmup=2)).all()


def test_a_run_follows_multipliers_of_its_own(config, source):
    own = tuple(multipliers.trapezoid(9, warmup=2, cooldown=4, shape="1-square").tolist())
    run = replace(
        config,
        steps=9,
        warmup_steps=0,
        cooldown_steps=0,
        checkpoint_at=(),
        schedule=own,
        learning_rate=0.5,
    )
    assert [open_session(run, source).rate(step) for step in range(9)] == [0.5 * x for x in own]
    for wrong in ({"steps": 10}, {"warmup_steps": 1}, {"schedule": (0.0,) * 9}):
        with pytest.raises(ConfigError, match="multipliers for"):
            replace(run, **wrong)
    with pytest.raises(ConfigError, match="multipliers for"):
        replace(run, schedule=(1.5, *own[1:]))


def test_a_recipe_may_hold_multipliers(config):
    plain = to_plain(replace(config, steps=3, warmup_steps=0, cooldown_steps=0, checkpoint_at=()))
    read = convert(plain | {"schedule": [1, 0.5, 0.25]}, TrainConfig)
    assert read.schedule == (1, 0.5, 0.25)
