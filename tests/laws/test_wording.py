"""Parameters that the runs leave free are said to be free, wherever they are printed."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from steelyard import laws
from steelyard.cli.laws.pages import fit_page
from steelyard.laws.fitting.estimate import NOT_DETERMINED, Estimate, is_determined
from steelyard.laws.fitting.wording import ends_words, parameter_words
from steelyard.laws.pictures.report import fit_report
from steelyard.runs.wording import number_text


@pytest.fixture(scope="module")
def ladder():
    """A ladder of small models, whose losses hardly depend on their size."""
    size = np.repeat([6e4, 1.7e5, 4.3e5], 4)
    tokens = np.tile([3e4, 4.9e4, 7.7e4, 1.23e5], 3)
    noise = np.exp(0.012 * np.random.default_rng(3).standard_normal(12))
    return {"parameters": size, "tokens": tokens}, (3 + 1500 / tokens**0.6) * noise


@pytest.fixture(scope="module")
def free(ladder):
    return laws.fit(laws.kaplan(), *ladder, bootstrap=laws.Bootstrap(count=100), prior=None)


def text_of(report) -> str:
    out = io.StringIO()
    report.print(Console(file=out, width=120))
    return out.getvalue()


@pytest.mark.parametrize(
    ("low", "high", "known"),
    [
        (1.0, 999.0, True),
        (1.0, 1001.0, False),
        (2e-9, 4e31, False),
        (0.0, 1.0, False),
        (1.0, np.inf, False),
        (-3.0, 4000.0, True),
        (0.0, 0.0, True),
    ],
)
def test_an_interval_of_three_orders_says_nothing(low, high, known) -> None:
    assert is_determined(low, high) is known
    assert Estimate(low, low, high).is_determined is known


def test_a_free_parameter_is_not_quoted_and_a_known_one_is(free) -> None:
    low, high = free.interval("Nc")
    assert high > 1e3 * low
    assert parameter_words(free, "Nc")[1] == NOT_DETERMINED
    value, interval = parameter_words(free, "alpha_D")
    assert " – " in interval
    assert float(value) == pytest.approx(free.params["alpha_D"], rel=1e-3)


def test_without_bootstraps_the_curvature_says_it(ladder) -> None:
    fitted = laws.fit(laws.kaplan(), *ladder, bootstrap=laws.Bootstrap(count=0), prior=None)
    assert parameter_words(fitted, "Nc")[1] == NOT_DETERMINED
    assert parameter_words(fitted, "alpha_D")[1] == ""


def test_a_bound_that_holds_the_samples_together_makes_nobody_certain() -> None:
    size, tokens = np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 4))
    columns = {"parameters": size.ravel(), "tokens": tokens.ravel()}
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(size.size))
    loss = (1.7 + 410 / columns["tokens"] ** 0.28) * noise
    fitted = laws.fit(
        laws.chinchilla(), columns, loss, bootstrap=laws.Bootstrap(count=20), prior=None
    )
    assert {"A", "alpha"} & set(fitted.at_bounds)
    for name in ("A", "alpha"):
        assert parameter_words(fitted, name)[1] == NOT_DETERMINED
    assert " – " in parameter_words(fitted, "beta")[1]


def test_an_exponent_is_judged_by_the_values_its_law_allows(free) -> None:
    exponent = next(item for item in free.law.parameters if item.name == "alpha_D")
    index = free.law.names.index("alpha_D")
    samples = free.samples.copy()
    samples[:, index] = np.linspace(exponent.low, exponent.high, len(samples))
    wide = replace(free, samples=samples)
    assert parameter_words(wide, "alpha_D")[1] == NOT_DETERMINED


def test_every_page_of_a_fit_uses_the_same_words(free) -> None:
    profiles = [free.profile("Nc")]
    ends = [number_text(end) for end in free.interval("Nc")]
    for page in (fit_page(free, profiles), fit_report(free, holdout=False)):
        text = text_of(page)
        row = next(line for line in text.splitlines() if line.startswith("Nc"))
        assert NOT_DETERMINED in row
        assert not any(end in text for end in ends)


def test_values_and_ends_get_digits_until_they_differ() -> None:
    assert ends_words(1.5, 1.2, 1.9) == ("1.500", "1.200 – 1.900")
    assert ends_words(1.50001, 1.49999, 1.9) == ("1.50001", "1.49999 – 1.90000")
    assert ends_words(5.0, 5.0, 5.0) == ("5", "")
    assert ends_words(8.478e8, 2.061e-9, 4.048e31) == ("847,800,000", NOT_DETERMINED)
