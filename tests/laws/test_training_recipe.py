"""Batch and learning rate of a run from one sweep: found where a drawn sweep has them."""

import itertools
import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.errors import FitError
from steelyard.laws.decisions.optima.training_recipe import recipe_for
from steelyard.laws.fitting.bootstrap import Bootstrap

FEW = Bootstrap(count=40)


def _best(size, tokens):
    """Return the best batch, and the best rate at it, of the drawn runs."""
    batch = 0.6 * tokens**0.57
    return batch, 1.8 * size**-0.7 * tokens**0.3


def _sweep(seed=0, noise=1e-4):
    """Draw runs whose loss is a valley in the logs of rate and batch."""
    generator = np.random.default_rng(seed)
    rows = []
    for size, tokens in itertools.product((1e8, 2e8, 4e8), (5e9, 1e10, 2e10, 4e10)):
        batch, rate = _best(size, tokens)
        base = 1.8 + 400 / size**0.34 + 400 / tokens**0.3
        for step, fold in itertools.product(np.arange(-2, 3), np.arange(-3, 4)):
            own = rate * 2.0 ** (0.6 * step)  # the best rate rises with the batch
            loss = base * (1 + 0.004 * (step * np.log(2)) ** 2 + 0.01 * (fold * 0.5) ** 2)
            loss *= np.exp(noise * generator.standard_normal())
            rows.append((size, tokens, batch * 2.0**step, own * np.exp(0.5 * fold), loss))
    names = ("parameters", "tokens", "batch_tokens", "learning_rate", "loss")
    return dict(zip(names, np.array(rows).T, strict=True))


def test_batch_and_rate_of_a_larger_longer_run():
    found = recipe_for(_sweep(), 8e8, 8e10, bootstrap=FEW)
    batch, rate = _best(8e8, 8e10)
    assert found.batch_tokens.value == pytest.approx(batch, rel=0.1)
    assert found.learning_rate.optimum == pytest.approx(rate, rel=0.15)
    assert found.learning_rate.value < found.learning_rate.optimum
    assert found.learning_rate.low < rate < found.learning_rate.high
    assert found.num_cells == 60 and found.errors[0].law == found.law
    assert found.errors[0].rms < 0.1 < found.errors[-1].rms


def test_what_a_sweep_lacks_is_said():
    sweep = _sweep()
    with pytest.raises(FitError, match="no column batch_tokens"):
        recipe_for({name: sweep[name] for name in sweep if name != "batch_tokens"}, 1e9, 1e10)
    two = {name: column[sweep["tokens"] <= 1e10] for name, column in sweep.items()}
    with pytest.raises(FitError, match="2 training lengths"):
        recipe_for(two, 8e8, 1e10, bootstrap=FEW)
    with pytest.raises(FitError, match="must be positive"):
        recipe_for(sweep, -1.0, 1e10)


def test_the_verb(tmp_path, capsys):
    sweep = _sweep()
    sweep["batch_tokens"] = sweep["batch_tokens"] / 2048
    path = tmp_path / "sweep.csv"
    rows = zip(*(column.tolist() for column in sweep.values()), strict=True)
    path.write_text(",".join(sweep) + "\n" + "\n".join(",".join(map(str, row)) for row in rows))

    def call(*words, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["laws", "recipe", str(path), *words])
        assert (stop.value.code or 0) == code
        return capsys.readouterr()

    how = ("--at", "parameters=800M", "tokens=80B", "--tokens-per-sequence", "2048")
    found = json.loads(call(*how, "--json").out)
    assert found["batch_tokens"]["value"] == pytest.approx(_best(8e8, 8e10)[0], rel=0.1)
    assert "peak learning rate" in call(*how).out
    assert "a recipe is for parameters and tokens" in call("--at", "tokens=1B", code=2).err
