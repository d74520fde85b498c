"""A law of others scored on runs: kept when they are its own, rejected with the number at fault."""

import json

import numpy as np
import pytest

from steelyard import laws
from steelyard.cli.main import main
from steelyard.errors import FitError
from steelyard.laws.decisions.check_law import check_law
from steelyard.laws.fitting.bootstrap import Bootstrap

LAW = laws.published["besiroglu2024"]
NO_DRAWS = Bootstrap(count=0)


def _runs(seed, *, noise=0.004, count=60, **other):
    """Draw runs of the published law, or of one with other numbers."""
    generator = np.random.default_rng(seed)
    points = {
        "parameters": 10 ** generator.uniform(7.5, 9.5, count),
        "tokens": 10 ** generator.uniform(9.5, 11.5, count),
    }
    theta = LAW.law.coordinates(LAW.params | other)
    log = LAW.law.predict(theta[None], points)[0]
    return points | {"loss": np.exp(log + noise * generator.standard_normal(count))}


def test_runs_of_the_law_itself_are_seldom_rejected():
    found = [check_law(LAW, _runs(seed), bootstrap=NO_DRAWS) for seed in range(8)]
    assert sum(item.is_rejected for item in found) <= 1
    assert 0.72 < np.mean([item.within_noise for item in found]) < 0.88
    assert np.mean([item.noise for item in found]) == pytest.approx(0.004, rel=0.1)


@pytest.mark.slow
def test_one_in_a_hundred_is_rejected():
    found = [check_law(LAW, _runs(seed), bootstrap=NO_DRAWS) for seed in range(150)]
    assert sum(item.is_rejected for item in found) <= 6


@pytest.mark.parametrize("wrong", [{"alpha": 0.34}, {"E": 1.85}, {"B": 1800.0}])
def test_other_numbers_are_rejected(wrong):
    found = check_law(LAW, _runs(0, noise=0.002, **wrong), bootstrap=Bootstrap(count=50))
    assert found.is_rejected and found.verdict.startswith("rejected: ")
    assert len(found.parameters) == 5 and found.num_runs == 60
    assert "% on average" in found.verdict


def test_the_number_that_is_off_is_named():
    found = check_law(LAW, _runs(1, noise=0.001, alpha=0.3, count=200))
    (alpha,) = [item for item in found.parameters if item.name == "alpha"]
    assert alpha.is_outside and alpha.fitted.low < 0.3 < alpha.fitted.high
    assert "alpha 0.3478 lies outside" in found.verdict


def test_few_runs_and_other_conventions():
    few = {name: values[:4] for name, values in _runs(0).items()}
    found = check_law(LAW, few)
    assert found.parameters == () and "4 points cannot fit" in found.why_no_fit
    table = laws.RunTable.read(_runs(0), counts="non-embedding")
    with pytest.raises(FitError, match="besiroglu2024 has counts total"):
        check_law(LAW, table)
    assumed = check_law(LAW, laws.RunTable.read(_runs(0)), bootstrap=NO_DRAWS).assumed
    assert assumed["counts"] == "total" and assumed["loss_unit"] == "nat/token"


def test_a_fit_of_other_runs_is_scored_too():
    own = laws.fit(laws.chinchilla(), _runs(0), "loss", bootstrap=NO_DRAWS)
    assert check_law(own, _runs(5), bootstrap=NO_DRAWS).error < 0.01


def test_the_verb(tmp_path, capsys):
    runs = _runs(0, alpha=0.3)
    path = tmp_path / "runs.csv"
    rows = zip(*(runs[name].tolist() for name in ("parameters", "tokens", "loss")), strict=True)
    path.write_text(
        "parameters,tokens,loss\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n"
    )

    def call(*words, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["laws", "check", str(path), *words])
        assert (stop.value.code or 0) == code
        return capsys.readouterr()

    said = call("--law", "besiroglu2024").out
    assert "Rejected: " in said and "taken for granted: counts total" in said
    found = json.loads(call("--law", "besiroglu2024", "--json").out)
    assert found["is_rejected"] and found["parameters"][0]["name"] == "A"
    every = [f"{name}={value}" for name, value in LAW.params.items()]
    fixed = json.loads(call("--law", "chinchilla", "--fix", *every, "--json").out)
    assert fixed["error"] == pytest.approx(found["error"])
    assert "missing" in call("--law", "chinchilla", "--fix", "E=1.8", code=2).err
    assert "near names" in call("--law", "besiroglu", code=2).err
