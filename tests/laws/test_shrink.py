"""Which runs a forecast could have done without: checked by forecasting from the others alone."""

import json
from functools import partial

import numpy as np
import pytest

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.forecast import forecast
from steelyard.laws.decisions.forecasting.shrink import shrink
from steelyard.laws.forms.powers import power_law

AT = {"samples": 1e8}
LAWS = (power_law("samples"),)


def study(count=12):
    samples = np.repeat(np.geomspace(1e3, 1e7, count // 2), 2)
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(count))
    return {"samples": samples, "loss": (0.4 + 8.0 / samples**0.3) * noise}


def width(said):
    return np.log(said.high[0] / said.low[0])


def test_what_is_kept_forecasts_as_it_says_and_within_the_whole():
    points = study()
    found = shrink(points, "loss", LAWS, at=AT)
    assert sorted([*found.kept, *found.left_out]) == list(range(12))
    # Both runs of the largest size cost the same, so one of them can go.
    assert len(found.left_out) and len(found.kept) >= 8 and found.num_tried <= 25
    assert sorted(found.left_out, key=lambda row: -found.cost[row]) == [*found.left_out]
    gone = found.cost[found.left_out].sum()
    assert found.saved_fraction == pytest.approx(gone / points["samples"].sum())
    part = {name: column[found.kept] for name, column in points.items()}
    alone = forecast(part, "loss", LAWS, at=AT)
    assert alone.value[0] == found.shrunk.value[0]
    assert found.whole.low[0] <= alone.value[0] <= found.whole.high[0]
    assert width(alone) <= 1.5 * width(found.whole)


def test_less_may_go_where_the_interval_must_stay_narrow():
    points = study()
    narrow, wide = (shrink(points, "loss", LAWS, at=AT, wider=wider) for wider in (1.0, 3.0))
    assert narrow.saved_fraction <= wide.saved_fraction
    assert width(narrow.shrunk) <= width(narrow.whole)


def test_checkpoints_of_a_run_go_together_and_cost_what_the_last_one_does():
    points = study(24)
    runs = np.repeat([f"run {number}" for number in range(12)], 2)[::-1]
    points["flops"] = np.tile([1.0, 3.0], 12) * 1e15
    found = shrink(points, "loss", LAWS, at=AT, runs=runs, wider=2.0)
    left = set(runs[found.left_out])
    assert left and not left & set(runs[found.kept])
    assert found.total_cost == 12 * 3e15
    assert found.saved_fraction == pytest.approx(len(left) / 12)


def test_eight_runs_are_all_kept_and_wrong_questions_refused():
    points = study(8)
    found = shrink(points, "loss", LAWS, at=AT)
    assert len(found.kept) == 8 and found.saved_fraction == 0
    assert found.shrunk is found.whole
    with pytest.raises(FitError, match=r"0\.5 times as wide"):
        shrink(points, "loss", LAWS, at=AT, wider=0.5)
    with pytest.raises(FitError, match="for one run, given 2"):
        shrink(points, "loss", LAWS, at={"samples": [1e8, 1e9]})
    with pytest.raises(FitError, match="3 labels of runs for 8 rows"):
        shrink(points, "loss", LAWS, at=AT, runs=["a", "b", "c"])


@pytest.fixture
def shrunk(tmp_path, run):
    points = study(12)
    lines = [f"{x},{y},r{i}" for i, (x, y) in enumerate(zip(*points.values(), strict=True))]
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(["samples,loss,name", *lines]) + "\n")
    return partial(run, "shrink", table, "--law", "power_law:samples")


def test_the_verb_names_rows_of_the_file(shrunk):
    said = json.loads(shrunk("--at", "samples=1e8", "--json", "--run", "name", "--wider", "2"))
    assert sorted([*said["kept"], *said["left_out"]]) == list(range(1, 13))
    assert 0 < said["saved_fraction"] < 1 and said["provenance"] == "fitted"
    page = shrunk("--at", "samples=1e8", "--wider", "2")
    assert "runs could go" in page and "of the compute" in page
    assert f"{said['left_out'][0]} " in page.split("Left out")[1]


def test_the_verb_says_what_is_wrong_in_its_own_words(shrunk):
    assert "--wider 0.5 is not allowed" in shrunk("--at", "samples=1e8", "--wider", "0.5", code=2)
    assert "no column of runs.csv" in shrunk("--at", "tokens=1e8", code=2)
    assert "trunk" in shrunk("--at", "samples=1e8", "--run", "trunk", code=2)
