"""A budget split by several forms: the best of their mean, and an interval none is outside of."""

import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.errors import FitError
from steelyard.laws.decisions.allocate import Limits
from steelyard.laws.decisions.forecasting.allocate_together import allocate_together
from steelyard.laws.decisions.forecasting.forecast import ensemble
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.chinchilla import chinchilla, kaplan
from steelyard.laws.forms.powers import monomial

BUDGET = 1e21
FEW = Bootstrap(count=40)
FORMS = (chinchilla(), kaplan(), monomial("parameters", "tokens"))


def study():
    size, tokens = np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 4))
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(size.shape))
    loss = (1.7 + 400 / size**0.34 + 410 / tokens**0.28) * noise
    return {"parameters": size.ravel(), "tokens": tokens.ravel(), "loss": loss.ravel()}


@pytest.fixture(scope="module")
def found():
    return ensemble(study(), "loss", FORMS)


def test_the_best_size_is_where_the_forms_mean_is_least_and_its_interval_holds_each_form(found):
    said = allocate_together(found, BUDGET, bootstrap=FEW)
    best = said.allocation
    assert [form.name for form in said.forms] == ["chinchilla", "kaplan"]
    assert sum(form.weight for form in said.forms) == pytest.approx(1)
    assert set(said.left_out) == {FORMS[2].name, "largest run"}
    assert 6 * best.parameters.value * best.tokens.value == pytest.approx(BUDGET)
    assert best.parameters.low < said.forms[0].parameters < best.parameters.high
    assert best.tokens.low < said.forms[0].tokens < best.tokens.high
    # Of the true law the best size is 1.9e9.
    assert best.parameters.low < 1.9e9 < best.parameters.high
    entrants = found.rolling.entrants
    weights = np.where(
        [item.name in ("chinchilla", "kaplan") for item in entrants], found.stacked.weights, 0.0
    )
    sizes = best.parameters.value * np.array([0.97, 1.0, 1.03])
    means = weights @ found.rolling.ask({"parameters": sizes, "tokens": BUDGET / (6 * sizes)})
    assert means.argmin() == 1


def test_limits_hold_all_forms_back(found):
    limits = Limits(max_parameters=5e8, unique_tokens=1e11)
    best = allocate_together(found, BUDGET, limits=limits, bootstrap=FEW).allocation
    assert best.binding == ("max_parameters",)
    assert best.parameters.value == pytest.approx(5e8)
    assert best.epochs is not None
    assert best.epochs.value == pytest.approx(best.tokens.value / 1e11)


def test_what_tells_no_split_is_refused(found):
    with pytest.raises(FitError, match="cannot train one parameter"):
        allocate_together(found, 0.0)
    with pytest.raises(FitError, match="two decades beyond"):
        allocate_together(found, 1e27, bootstrap=FEW)
    points = study()
    with pytest.raises(FitError, match="trades size against data"):
        allocate_together(ensemble(points, "loss", FORMS[2:]), BUDGET)
    samples = {"samples": points["tokens"], "loss": points["loss"]}
    with pytest.raises(FitError, match="over parameters and tokens, given samples"):
        allocate_together(ensemble(samples, "loss"), BUDGET)


def test_the_verb_takes_a_table_in_place_of_a_law(tmp_path, capsys):
    points = study()
    file = tmp_path / "runs.csv"
    rows = [",".join(map(repr, map(float, row))) for row in zip(*points.values(), strict=True)]
    file.write_text("\n".join(["n,tokens,loss", *rows]) + "\n")

    def call(*words, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["laws", "allocate", "--flops", "1e21FLOP", *map(str, words)])
        captured = capsys.readouterr()
        assert (stop.value.code or 0) == code, captured.err
        return captured.err if code else captured.out

    said = json.loads(call("--runs", file, "--parameters", "n", "--json"))
    assert said["forms"][0]["weight"] >= said["forms"][-1]["weight"]
    assert said["parameters"]["low"] < said["parameters"]["value"] < said["parameters"]["high"]
    assert "or --runs FILE" in call("--runs", file, "--published", "besiroglu2024", code=2)
    assert "--parameters reads a table" in call(
        "--published", "besiroglu2024", "--parameters", "n", code=2
    )
