from dataclasses import replace

import pytest

from steelyard.laws.forms.schedules import multipliers
from steelyard.laws.forms.schedules.schedule_rates import LearningRates
from steelyard.train.schedules import for_config
from steelyard.train.session import Session


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
    session = Session(run, source)
    assert [session.rate(step) for step in range(20)] == same.rates.tolist()


def test_a_trapezoid_of_no_cooldown_is_constant(config):
    flat = for_config(replace(config, steps=9, warmup_steps=2, cooldown_steps=0, checkpoint_at=()))
    assert (flat == multipliers.constant(9, warmup=2)).all()
