"""The largest model of a study, forecast from the others."""

import math
from types import SimpleNamespace

import pytest

from steelyard.weigh.held_out import forecast_largest


def runs(offsets):
    """Return results of three sizes and four lengths whose seeds are off by so much in ln loss."""
    found = []
    for place, parameters in enumerate((1e5, 2e5, 4e5)):
        for tokens in (2e5, 4e5, 8e5, 1.6e6):
            clean = 1.5 + 60 / parameters**0.4 + 40 / tokens**0.3
            for seed, off in enumerate(offsets):
                sign = 1 if (place + seed) % 2 else -1
                loss = clean * math.exp(sign * off)
                found.append(
                    SimpleNamespace(
                        parameters=int(parameters), tokens=int(tokens), eval_loss=loss, seed=seed
                    )
                )
    return found


@pytest.fixture(scope="module")
def quiet():
    return forecast_largest(runs([0.0]))


def test_runs_of_a_law_are_foretold(quiet):
    assert quiet and abs(quiet.relative_error) < 0.01 and "unknown" in quiet.forecast.source


def test_scatter_of_seeds_widens_the_interval(quiet):
    wide = forecast_largest(runs([0.02, 0.02]))
    assert quiet and wide and wide.covered and wide.measurement.count == 2
    narrow = math.log(quiet.forecast.high / quiet.forecast.low)
    # Two sizes a factor 2 apart, one more beyond: shares 2 and -1, of two seeds each, and the
    # largest model's own two.
    scatter = 0.02 * math.sqrt(2) * math.sqrt((2**2 + 1) / 2 + 1 / 2)
    found = math.log(wide.forecast.high / wide.forecast.low)
    assert found > 0.999 * 2 * 1.2816 * scatter > narrow
    assert "seeds 4.9% apart" in wide.forecast.source


def test_one_smaller_size_foretells_nothing():
    assert forecast_largest([item for item in runs([0.0]) if item.parameters > 1e5]) is None
