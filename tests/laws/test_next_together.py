"""Which run to do next under several forms: the one that parts them, if there is more than one."""

import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.forecast import ensemble
from steelyard.laws.decisions.forecasting.next_together import next_together
from steelyard.laws.decisions.next_cell import CellDraws, next_cell, rank_cells
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fit import fit
from steelyard.laws.forms.chinchilla import chinchilla, kaplan

WANTED = {"parameters": 7e9, "tokens": 1.4e11}
CELLS = {"parameters": np.array([1e8, 1e9, 1e9]), "tokens": np.array([3e9, 3e10, 1e11])}
FEW = Bootstrap(count=60)


def study():
    size, tokens = np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 4))
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(size.shape))
    loss = (1.7 + 400 / size**0.34 + 410 / tokens**0.28) * noise
    return {"parameters": size.ravel(), "tokens": tokens.ravel(), "loss": loss.ravel()}


def test_one_form_is_asked_as_its_fit_is():
    points = study()
    found = next_together(ensemble(points, "loss", [chinchilla()]), CELLS, WANTED, bootstrap=FEW)
    inputs = {name: points[name] for name in ("parameters", "tokens")}
    alone = next_cell(fit(chinchilla(), inputs, points["loss"], bootstrap=FEW), CELLS, WANTED)
    assert found.rows == alone.rows
    assert found.interval_before == pytest.approx(alone.interval_before)
    assert found.interval_after == pytest.approx(alone.interval_after)


def test_forms_that_differ_widen_what_is_to_be_learned():
    points = study()
    both = ensemble(points, "loss", [chinchilla(), kaplan()])
    # Given like weights, the forms' distance at the wanted run counts beside their own spread.
    weights = np.array([0.25, 0.25, 0.25, 0.25, 0.0])
    object.__setattr__(both.stacked, "weights", weights)
    found = next_together(both, CELLS, WANTED, bootstrap=FEW)
    inputs = {name: points[name] for name in ("parameters", "tokens")}
    alone = [
        next_cell(fit(law, inputs, points["loss"], bootstrap=FEW), CELLS, WANTED).interval_before
        for law in (chinchilla(), kaplan())
    ]
    assert found.interval_before > np.mean(alone)
    assert (found.interval_after <= found.interval_before).all()


def test_a_run_on_which_the_forms_differ_is_worth_more():
    random = np.random.default_rng(0)
    form = np.repeat([0.0, 0.1], 40)
    cells = np.stack([form, 0 * form], axis=1) + 0.01 * random.standard_normal((80, 2))
    draws = CellDraws(
        columns={"parameters": np.full(2, 1e8), "tokens": np.full(2, 1e9)},
        at_goal=form + 0.01 * random.standard_normal(80),
        at_cells=cells,
        weights=np.ones(80),
        noise=0.005,
    )
    found = rank_cells(draws)
    assert found.rows == [0, 1]
    assert found.interval_after[0] < 0.4 * found.interval_before < found.interval_after[1]


def test_wrong_questions_are_refused():
    found = ensemble(study(), "loss", [chinchilla()])
    with pytest.raises(FitError, match="20 bootstraps"):
        next_together(found, CELLS, WANTED, bootstrap=Bootstrap(count=20))
    with pytest.raises(FitError, match="one wanted run"):
        next_together(found, CELLS, CELLS, bootstrap=FEW)


def test_the_verb_takes_a_table(tmp_path, capsys):
    file = tmp_path / "runs.csv"
    rows = [",".join(map(repr, map(float, row))) for row in zip(*study().values(), strict=True)]
    file.write_text("\n".join(["parameters,tokens,loss", *rows]) + "\n")
    asked = ("--at", "parameters=7B", "tokens=140B", "--parameters", "1B", "--tokens", "3B,30B")

    def call(*words, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["laws", "next", *asked, *map(str, words)])
        captured = capsys.readouterr()
        assert (stop.value.code or 0) == code, captured.err
        return captured.err if code else captured.out

    said = json.loads(call("--runs", file, "--json"))
    assert len(said["interval_after"]) == 2 and said["interval_before"] > 0
    machine = ("--accelerator", "H100-SXM5-80GB")
    assert "prices a plan by one law" in call("--runs", file, *machine, code=2)
    assert "or --runs FILE" in call(code=2)
