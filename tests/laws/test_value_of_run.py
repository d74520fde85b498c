"""What a further run saves in the plan that waits for it, and what it costs on a machine."""

import json

import numpy as np
import pytest

from steelyard import laws
from steelyard.cli.laws.price import price_run
from steelyard.cli.main import main
from steelyard.errors import CatalogError, ConfigError, FitError
from steelyard.laws.decisions.value_of_run import value_of_runs
from steelyard.laws.fitting.bootstrap import Bootstrap

BUDGET = 1e22


def _fit(noise=0.005, count=60):
    generator = np.random.default_rng(0)
    points = {
        "parameters": 10 ** generator.uniform(7, 8.5, 30),
        "tokens": 10 ** generator.uniform(9, 10.3, 30),
    }
    loss = 1.8 + 480 / points["parameters"] ** 0.35 + 2000 / points["tokens"] ** 0.37
    loss *= np.exp(noise * generator.standard_normal(30))
    return laws.fit(laws.chinchilla(), points, loss, bootstrap=Bootstrap(count=count))


def test_a_run_saves_no_more_than_knowing_all():
    fit = _fit()
    size, tokens = (grid.ravel() for grid in np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11]))
    found = value_of_runs(fit, {"parameters": size, "tokens": tokens}, BUDGET)
    assert found.saved_flops.shape == (9,) and (found.saved_flops >= 0).all()
    assert 0 < found.saved_flops.max() <= found.most_flops < 0.2 * BUDGET
    # A small run like those already measured teaches less than one along an axis far out.
    assert found.saved_flops[0] < found.saved_flops.max()
    sure = value_of_runs(_fit(noise=0.0005), {"parameters": size, "tokens": tokens}, BUDGET)
    assert sure.most_flops < found.most_flops
    with pytest.raises(FitError, match="20 bootstraps"):
        value_of_runs(_fit(count=20), {"parameters": size, "tokens": tokens}, BUDGET)


def test_runs_are_priced_on_a_machine():
    one = price_run("H100-SXM5-80GB", 8, 1e8, 3e9)
    ten = price_run("H100-SXM5-80GB", 8, 1e8, 3e10)
    assert one.count == 8 and ten.usd == pytest.approx(10 * one.usd, rel=0.01)
    assert ten.hours == pytest.approx(10 * one.hours, rel=0.01)
    spread = price_run("H100-SXM5-80GB", 1, 7e9, 1e9)
    assert spread.count > 1  # its memory needs more than one
    with pytest.raises(ConfigError, match="train nothing"):
        price_run("H100-SXM5-80GB", 0, 1e8, 3e9)
    with pytest.raises(CatalogError, match="H100"):
        price_run("H100-SXM5-80", 1, 1e8, 3e9)


def test_the_verb_shows_both(tmp_path, capsys):
    path = tmp_path / "law.json"
    path.write_text(_fit().to_json())
    words = ["laws", "next", "--fit", str(path), "--at", "parameters=1B", "tokens=20B"]
    words += ["--parameters", "30M,300M", "--tokens", "3B,30B"]
    words += ["--accelerator", "H100-SXM5-80GB", "--count", "8"]

    def call(*more):
        with pytest.raises(SystemExit) as stop:
            main([*words, *more])
        assert not stop.value.code
        return capsys.readouterr().out

    said = call()
    assert "saves in the plan" in said and "knowing the law exactly would save" in said
    found = json.loads(call("--budget", "1e21FLOP", "--json"))["worth"]
    assert found["budget"] == 1e21 and len(found["runs"]) == len(found["saved_usd"]) == 4
    assert all(run["usd"] > 0 and run["hours"] > 0 for run in found["runs"])
    assert max(found["saved_usd"]) <= found["most_usd"] <= found["plan"]["usd"]
