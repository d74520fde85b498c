"""The tuner of layouts: it finds, it learns from failures, and it takes answers in any order."""

import numpy as np
import pytest

from steelyard.errors import ConfigError
from steelyard.plan.tuner import LayoutTuner


def _grid():
    """Return a smooth hill with a region in which everything fails."""
    side = np.linspace(0, 1, 20)
    settings = np.array([(a, b) for a in side for b in side])
    values = np.exp(-8 * np.square(settings - (0.7, 0.3)).sum(axis=1))
    return settings, np.where(settings.sum(axis=1) > 1.4, 0.0, values)


def test_it_finds_the_hill_and_leaves_failures_alone():
    settings, values = _grid()
    found, failed = [], []
    for seed in range(5):
        tuner, asked = LayoutTuner(settings, seed=seed), []
        while len(asked) < 40:
            # Three at a time, answered in the reverse order.
            batch = [tuner.ask() for _ in range(3)]
            assert len(set(batch)) == 3
            for place in reversed(batch):
                tuner.tell(place, float(values[place]) or None)
            asked += batch
        assert len(set(asked)) == len(asked)
        found.append(values[tuner.best] / values.max())
        failed.append((values[asked[:10]] == 0).mean() - (values[asked[-10:]] == 0).mean())
    assert min(found) > 0.95
    assert np.mean(failed) > 0


def test_it_ends_and_refuses_nonsense():
    tuner = LayoutTuner([[1.0], [2.0], [3.0]], first=2)
    assert tuner.best is None
    asked = [tuner.ask() for _ in range(3)]
    assert sorted(asked) == [0, 1, 2]
    assert tuner.ask() is None
    tuner.tell(asked[0], None)
    assert tuner.best is None
    tuner.tell(asked[1], 2.0)
    assert tuner.best == asked[1]
    for wrong in ((3, 1.0), (0, 0.0), (0, float("nan"))):
        with pytest.raises(ConfigError):
            tuner.tell(*wrong)
    with pytest.raises(ConfigError, match="no finite numbers"):
        LayoutTuner([[np.inf]])
    with pytest.raises(ConfigError, match="first is 1"):
        LayoutTuner([[1.0]], first=1)
