import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.quantity import QUANTITIES, Check, Forecast, Measurement, check, quantity
from steelyard.units import UNITS


def forecast(value=2.0, low=1.0, high=3.0, name="train.step_time", provenance="fitted"):
    return Forecast(
        quantity=name, value=value, low=low, high=high, provenance=provenance, source="test"
    )


@pytest.mark.parametrize("item", QUANTITIES.values(), ids=QUANTITIES)
def test_every_quantity_is_defined(item):
    assert item.unit in UNITS
    assert item.better in ("lower", "higher", "neither")
    assert item.definition.endswith(".")
    assert item.name.count(".") == 1


def test_an_unknown_name_gets_near_names():
    with pytest.raises(ConfigError, match=r"'train\.steptime'") as caught:
        quantity("train.steptime")
    assert "train.step_time" in caught.value.hint


@pytest.mark.parametrize("low_high", [(2.1, 3.0), (1.0, 1.9), (math.nan, 3.0), (1.0, math.nan)])
def test_an_interval_must_hold_its_value(low_high):
    with pytest.raises(ConfigError, match="must hold"):
        forecast(low=low_high[0], high=low_high[1])


def test_forecast_and_measurement_refuse_what_is_not_a_number():
    with pytest.raises(ConfigError, match="must hold"):
        forecast(value=math.inf, high=math.inf)
    with pytest.raises(ConfigError, match="not finite"):
        Measurement(quantity="eval.loss", value=math.nan)
    with pytest.raises(ConfigError, match="provenance 'guessed'"):
        forecast(provenance="guessed")
    with pytest.raises(ConfigError, match="unknown quantity"):
        Measurement(quantity="eval.lost", value=1.0)


@given(st.floats(-1e9, 1e9), st.floats(0, 10))
def test_an_interval_about_a_value_holds_it(value, relative):
    made = Forecast.about(
        "eval.loss", value, relative=relative, provenance="derived", source="test"
    )
    assert made.low <= value <= made.high
    assert made.unit == "nat/token"


@pytest.mark.parametrize("relative", [-0.1, -1.0, math.nan, math.inf])
def test_a_negative_half_width_is_refused(relative):
    with pytest.raises(ConfigError, match="half-width"):
        Forecast.about("eval.loss", 1.0, relative=relative, provenance="derived", source="test")


def test_check_pairs_by_name_in_the_order_of_the_forecasts():
    forecasts = [forecast(), forecast(name="eval.loss"), forecast(name="train.mfu")]
    measurements = [
        Measurement(quantity="eval.loss", value=9.0),
        Measurement(quantity="eval.loss", value=2.5),
    ]
    measurements += [
        Measurement(quantity="train.step_time", value=4.0),
        Measurement(quantity="serve.ttft", value=1.0),
    ]
    checks = check(forecasts, measurements)
    assert [item.forecast.quantity for item in checks] == ["train.step_time", "eval.loss"]
    assert [item.measurement.value for item in checks] == [4.0, 2.5]
    assert [item.covered for item in checks] == [False, True]
    assert [item.relative_error for item in checks] == [-0.5, pytest.approx(-0.2)]


def test_relative_error_of_a_measured_zero():
    zero = Measurement(quantity="train.step_time", value=0.0)
    assert Check(forecast(), zero).relative_error == math.inf
    assert Check(forecast(value=0, low=-1, high=1), zero).relative_error == 0.0
    assert Check(forecast(value=-1, low=-1, high=1), zero).relative_error == -math.inf
