"""Splits of layers over stages: against all splits, and against the closed form."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.stages import proportional_layers, split_layers, timed_split

_TIMES = st.lists(st.floats(0.1, 9.0), min_size=1, max_size=12)
_SPEEDS = st.lists(st.floats(0.2, 4.0), min_size=1, max_size=4)


def _all_splits(layers, stages):
    """List every way to cut layers into stages."""
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        edges = (0, *cuts, layers)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


@given(_TIMES, _SPEEDS, st.integers(1, 20))
def test_no_split_is_faster(times, speeds, micro_batches):
    """The dynamic program finds what trying all splits finds."""
    speeds = speeds[: len(times)]
    how = {"speeds": speeds, "micro_batches": micro_batches}
    best = min(
        timed_split(split, times, **how).step_s for split in _all_splits(len(times), len(speeds))
    )
    found = split_layers(times, **how)
    assert found.step_s == pytest.approx(best, rel=1e-9)
    assert sum(found.layers) == len(times)
    closed = timed_split(proportional_layers(len(times), speeds), times, **how)
    assert found.step_s <= closed.step_s * (1 + 1e-9)


@given(_TIMES, st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31))
def test_memory_limits_hold(times, stages, micro_batches, seed):
    """Where limits rule splits out, the best of the others is found, and no other."""
    rng = np.random.default_rng(seed)
    stages = min(stages, len(times))
    states, saved = rng.uniform(1, 3, (2, len(times)))
    limits = rng.uniform(2, 3 * len(times), stages)
    memory = {"state_bytes": states, "saved_bytes": saved, "memory_bytes": limits}

    def held(split):
        edges = np.cumsum((0, *split))
        return [
            states[a:b].sum() + min(stages - k, micro_batches) * saved[a:b].sum()
            for k, (a, b) in enumerate(itertools.pairwise(edges))
        ]

    how = {"speeds": [1.0] * stages, "micro_batches": micro_batches}
    allowed = [s for s in _all_splits(len(times), stages) if (held(s) <= limits).all()]
    if not allowed:
        with pytest.raises(InfeasibleError, match="no split"):
            split_layers(times, **how, **memory)
        return
    found = split_layers(times, **how, **memory)
    assert found.memory_bytes == pytest.approx(held(found.layers))
    best = min(timed_split(split, times, **how).step_s for split in allowed)
    assert found.step_s == pytest.approx(best)


def test_faster_devices_take_more_layers():
    """Two stages of 197 and 160 TFLOP/s: the measured speeds of Holmes' table 1."""
    even = timed_split([16, 16], [1.0] * 32, speeds=[197, 160], micro_batches=32)
    found = split_layers([1.0] * 32, speeds=[197, 160], micro_batches=32)
    assert found.layers == (18, 14)
    assert proportional_layers(32, [197, 160]) == (18, 14)
    assert found.step_s < even.step_s


def test_wrong_input_is_named_at_once():
    """Every wrong list is named."""
    with pytest.raises(ConfigError) as caught:
        split_layers([1.0, -1.0], speeds=[1.0, 0.0, 2.0], memory_bytes=[1.0])
    for word in ("speeds", "layer_s", "2 layers do not fill 3 stages", "memory_bytes"):
        assert word in str(caught.value)
    with pytest.raises(ConfigError, match="do not share 3 layers"):
        timed_split([1, 1], [1.0] * 3, speeds=[1.0, 1.0])
    with pytest.raises(ConfigError, match="do not fill"):
        proportional_layers(1, [1.0, 1.0])
