"""Gymnasium environments of a site."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env

from steelyard import catalog
from steelyard.errors import ConfigError
from steelyard.operate import environments
from steelyard.operate.environments import (
    BatteryEnv,
    CoolingEnv,
    DataCenterEnv,
    DataCenterVectorEnv,
    ShiftingEnv,
    SiteTask,
)
from steelyard.sim.datacenter import generated_year

TASK = SiteTask(
    spec=catalog.datacenter("free-cooled-1mw"),
    year=generated_year(0),
    load=np.full(35040, 0.6),
    steps=24,
)


@pytest.mark.parametrize("kind", [CoolingEnv, ShiftingEnv, BatteryEnv, DataCenterEnv])
def test_the_checker_has_nothing_to_say(kind):
    check_env(kind(TASK), skip_render_check=True)


def test_seeds_are_honoured_and_episodes_end_by_truncation():
    one, two = CoolingEnv(TASK), CoolingEnv(TASK)
    first, other = one.reset(seed=4)[0], two.reset(seed=4)[0]
    assert np.array_equal(first, other)
    assert not np.array_equal(first, two.reset(seed=5)[0])
    ends = [one.step(2)[2:4] for _ in range(24)]
    assert ends == [(False, False)] * 23 + [(False, True)]
    with pytest.raises(ConfigError, match="step 24 of 24"):
        one.step(1)


def test_a_batch_steps_as_single_sites_would():
    batch = DataCenterVectorEnv(TASK, 5)
    batch.reset(seed=1)
    moves = np.array([[2, 0, 2], [0, 1, 0], [1, 2, 1], [2, 2, 2], [0, 0, 0]])
    rewards = [batch.step(moves)[1] for _ in range(24)]
    starts = batch._episodes.center.drivers.first_step
    single = DataCenterEnv(TASK)
    for place in (0, 4):
        single.reset(seed=0)
        single._episodes.center = _at(int(starts[place]))
        got = [single.step(moves[place])[1] for _ in range(24)]
        assert got == pytest.approx([row[place] for row in rewards])
    _, reward, _, over, _ = batch.step(moves)
    assert not over.any() and not reward.any()


def _at(start):
    episodes = environments._Episodes(TASK, 1)

    class Fixed:
        def integers(self, low, high, count):
            return np.array([start])

    return episodes._drawn(Fixed())


def test_rewards_are_minus_carbon_less_heat():
    env = CoolingEnv(TASK)
    env.reset(seed=0)
    _, reward, _, _, told = env.step(1)
    assert reward == pytest.approx(-told["carbon_g"] / 1e3)
    for _ in range(8):
        _, reward, _, _, told = env.step(2)
    assert told["inlet_c"] > 27
    heat = told["inlet_c"] - 27
    assert reward == pytest.approx(-told["carbon_g"] / 1e3 - 10 * heat)


def test_the_older_reward_counts_overdue_work():
    from dataclasses import replace

    env = ShiftingEnv(replace(TASK, reward="sustaindc"))
    env.reset(seed=0)
    waits, runs = env.step(0)[1], env.step(2)[1]
    assert waits < 0 and runs < 0
    with pytest.raises(ConfigError, match="step 2 of 24"):
        env.step(7)
