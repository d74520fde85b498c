import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.units import UNITS, parse, pretty, pretty_duration

READ = [
    ("80 GB", "byte", 80e9),
    ("80G", "byte", 80e9),
    ("40 GiB/s", "byte/s", 40 * 2**30),
    ("200 Gbit/s", "byte/s", 25e9),
    ("200 Gbps", "byte/s", 25e9),
    ("1e21FLOP", "FLOP", 1e21),
    ("1e22 FLOP", "FLOP", 1e22),
    ("9 EFLOP", "FLOP", 9e18),
    ("1 PFLOP/s-day", "FLOP", 8.64e19),
    ("3 PF-days", "FLOP", 3 * 8.64e19),
    ("3 PFLOP/s", "FLOP/s", 3e15),
    ("312 TFLOPS", "FLOP/s", 312e12),
    ("70B", "parameter", 70e9),
    ("124M params", "parameter", 124e6),
    ("20B tokens", "token", 20e9),
    ("1.5 trillion tokens", "token", 1.5e12),
    ("3 weeks", "s", 3 * 604800),
    ("2 Hours", "s", 7200),
    ("1.5 ms", "s", 1.5e-3),
    ("1.5 kW", "W", 1500),
    ("1,500 W", "W", 1500),
    ("350 mW", "W", 0.35),
    ("12 MWh", "J", 43.2e9),
    ("2 t", "g", 2e6),
    ("2 tCO2e", "g", 2e6),
    ("300 kg CO2e", "g", 3e5),
    ("$2.5M", "USD", 2.5e6),
    ("200 USD", "USD", 200),
    ("$1,234.5", "USD", 1234.5),
    ("300 g/kWh", "g/J", 300 / 3.6e6),
    ("0.12 $/kWh", "USD/J", 0.12 / 3.6e6),
    ("3.6 $/h", "USD/s", 1e-3),
    ("20 ms/token", "s/token", 0.02),
    ("41 %", "fraction", 0.41),
    ("0.41", "fraction", 0.41),
    (".5", "s", 0.5),
    ("-3e2 W", "W", -300),
    (450, "W", 450),
]


@pytest.mark.parametrize(("text", "unit", "value"), READ)
def test_parse_reads(text, unit, value):
    assert parse(text, unit) == pytest.approx(value, rel=1e-12)


REFUSED = [
    ("", "s"),
    ("fast", "s"),
    ("3 m", "s"),
    ("3 parsecs", "s"),
    ("e5", "s"),
    (".", "s"),
    ("nan", "s"),
    ("inf", "W"),
    ("1e400", "W"),
    ("1,5 GB", "byte"),
    ("80 GB", "s"),
    ("80 GiW", "W"),
    ("10m", "token"),
    ("10 mB", "byte"),
    ("$5", "W"),
    ("5 BW", "W"),
    ("1 GB GB", "byte"),
    (True, "s"),
    ("1 2 s", "s"),
    ("5 kkW", "W"),
]


@pytest.mark.parametrize(("text", "unit"), REFUSED)
def test_parse_refuses_with_the_place_and_an_example(text, unit):
    with pytest.raises(
        ConfigError, match=r"^--budget: .*" + ("" if text == "" else r"\b")
    ) as caught:
        parse(text, unit, where="--budget")
    assert caught.value.hint
    assert caught.value.exit_code == 2


PRINTED = [
    (3.35e12, "byte/s", "3.35 TB/s"),
    (999.7, "byte", "1 kB"),
    (0, "W", "0 W"),
    (1e21, "FLOP", "1 ZFLOP"),
    (0.0124, "s", "12.4 ms"),
    (100, "s", "100 s"),
    (5400, "s", "90 min"),
    (14760, "s", "4.1 h"),
    (18 * 86400, "s", "18 days"),
    (1e9, "s", "31.7 years"),
    (0.02, "s/token", "20 ms/token"),
    (0.41, "fraction", "41 %"),
    (1.8342, "nat/token", "1.834 nats/token"),
    (7e10, "parameter", "70B parameters"),
    (1.4e12, "token", "1.4T tokens"),
    (950, "token/s", "950 tokens/s"),
    (43.2e9, "J", "12 MWh"),
    (120, "J", "120 J"),
    (2.5e5, "g", "250 kg"),
    (3e6, "g", "3 t"),
    (1234567, "USD", "$1,234,567"),
    (-12.5, "USD", "-$12.5"),
    (300 / 3.6e6, "g/J", "300 g/kWh"),
    (16384, "count", "16,384"),
    (2.5, "1", "2.5"),
    (math.inf, "s", "inf"),
    (math.nan, "byte", "nan"),
]


@pytest.mark.parametrize(("value", "unit", "text"), PRINTED)
def test_pretty_prints(value, unit, text):
    assert pretty(value, unit) == text


def test_pretty_duration_prints_infinity():
    assert pretty_duration(math.inf) == "inf"


@given(st.sampled_from(UNITS), st.floats(1e-8, 1e24) | st.floats(-1e24, -1e-8))
@example("token/s", 999_500_000.0)
@example("request/s", 2e9)
@example("site/s", 3e9)
def test_what_pretty_prints_parse_reads(unit, value):
    if unit == "count":
        value = round(value)
    assert parse(pretty(value, unit), unit) == pytest.approx(value, rel=6e-3)


@given(st.sampled_from(UNITS), st.floats(allow_nan=False, allow_infinity=False))
def test_a_bare_number_is_in_the_base_unit(unit, value):
    assert parse(value, unit) == value


@settings(max_examples=50)
@given(st.text(max_size=12), st.sampled_from(UNITS))
def test_any_text_is_read_or_refused(text, unit):
    try:
        assert math.isfinite(parse(text, unit))
    except ConfigError as error:
        assert error.hint
