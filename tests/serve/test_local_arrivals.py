"""Arrivals inside windows: known bursts under known days, and public traces."""

import os
from pathlib import Path

import numpy as np
import pytest

from steelyard.serve.traces import gamma_gaps, read_rows
from steelyard.serve.traces.statistics.local import local_arrivals, local_variation

SHARED = Path(
    os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[2].parent / "shared")
)
TRACES = SHARED / "data" / "llm-traces"


def daily(variation, *, days=2.0, mean=0.5, depth=0.8, seed=0):
    """Gamma gaps in a time that runs as fast as the rate of a day."""
    generator = np.random.default_rng(seed)
    count = int(mean * days * 86_400)
    gaps = gamma_gaps(generator, count, rate_per_s=1.0, burstiness=1 / variation**2)
    grid = np.linspace(0.0, days * 86_400, 20_001)
    swing = depth * 86_400 / (2 * np.pi) * np.cos(2 * np.pi * grid / 86_400)
    return np.interp(np.cumsum(gaps), mean * (grid - swing + swing[0]), grid)


@pytest.mark.parametrize("variation", [0.5, 1.0, 2.0, 3.0])
def test_variation_of_bursts_under_a_day(variation):
    times = daily(variation)
    gaps = np.diff(times)
    found = local_arrivals(times)
    assert found.variation == pytest.approx(variation, rel=0.06)
    # The plain coefficient takes the shape of the day for bursts.
    assert gaps.std() / gaps.mean() > 1.15 * found.variation


@pytest.mark.parametrize("depth", [0.0, 0.4, 0.8])
def test_fullest_window_is_that_of_the_peak(depth):
    times = daily(1.0, depth=depth, mean=2.0)
    peak = 2.0 * (1 + depth)
    # Windows of 600 and more arrivals: the fullest of hundreds lies three deviations above.
    assert peak < local_arrivals(times).busiest_per_s < 1.15 * peak


def test_small_groups_are_not_taken_for_even():
    generator = np.random.default_rng(1)
    gaps = gamma_gaps(generator, 60_000, rate_per_s=1.0, burstiness=1 / 4)
    pace = np.repeat(generator.uniform(0.1, 10, 6000), 10)
    assert local_variation(gaps * pace, np.repeat(np.arange(6000), 10)) == pytest.approx(2, rel=0.1)
    assert local_variation(np.array([1.0, 2.0]), np.array([0, 1])) == 1.0


def test_short_traces_are_one_window():
    times = np.cumsum(np.tile([0.5, 1.5], 50))
    found = local_arrivals(times)
    assert found.busiest_per_s == pytest.approx(1.0, rel=0.02)
    assert found.variation == pytest.approx(0.5, rel=0.02)


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces")
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("azure2023_conv.csv.gz", 1.0, 1.1),
        # Noted in steps of three seconds, of which each holds ten requests.
        ("mooncake_conversation.jsonl.gz", 0.95, 1.25),
        # Drawn as Poisson.
        ("mooncake_synthetic.jsonl.gz", 0.95, 1.05),
    ],
)
def test_public_traces(name, low, high):
    times = np.array([row.arrival_s for row in read_rows(TRACES / name)])
    found = local_arrivals(times)
    mean = len(times) / (times[-1] - times[0])
    assert low < found.variation < high
    assert mean < found.busiest_per_s < 1.4 * mean
