import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.laws._selection_scores import relative_accuracy, score_correlation

from steelyard.errors import FitError, InfeasibleError, SteelyardWarning
from steelyard.laws.decisions.selection.candidates import Candidate, Measurements
from steelyard.laws.decisions.selection.racing import accept_then_stop, error_growth, race
from steelyard.laws.decisions.selection.select import (
    select_model,
)

SHARED = Path(os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
TARGET = 102_400
MODELS = [
    Candidate(name=f"m{index}", parameters=1e6 * 4**index, tokens_per_example=100)
    for index in range(6)
]


def true_loss(name, examples):
    """Curves whose order changes with data: larger models start lower, smaller ones fall faster."""
    index = int(name[1:])
    return (3.0 - 0.1 * index) * (1 + examples / (800.0 * (index + 1))) ** (-0.30 + 0.03 * index)


FINAL = {item.name: true_loss(item.name, TARGET) for item in MODELS}
TABLE = {
    item.name: {
        size: true_loss(item.name, size) for size in (0, *(200 * 2**step for step in range(7)))
    }
    for item in MODELS
}


def slow_accept_then_stop(examples, loss, start, threshold):
    chosen = list(range(len(examples)))[-start:]
    for index in reversed(range(1, len(examples) - start)):
        line = np.polyfit(
            [math.log(examples[i]) for i in chosen], [math.log(loss[i]) for i in chosen], 1
        )
        spread = np.std(
            [math.log(loss[i]) - np.polyval(line, math.log(examples[i])) for i in chosen]
        )
        if abs(
            math.log(loss[index]) - np.polyval(line, math.log(examples[index]))
        ) > threshold * max(spread, 1e-4):
            break
        chosen = [index, *chosen]
    return np.polyfit(
        [math.log(examples[i]) for i in chosen], [math.log(loss[i]) for i in chosen], 1
    ), len(chosen)


@pytest.mark.parametrize("seed", range(6))
def test_accept_then_stop_is_the_slow_loop(seed):
    sizes = 200.0 * 2 ** np.arange(11)
    loss = 3000 / (900 + sizes**0.8) + 0.2
    loss *= np.exp(0.004 * np.random.default_rng(seed).standard_normal(11))
    phase = accept_then_stop(sizes, loss)
    (slope, intercept), count = slow_accept_then_stop(sizes, loss, 3, 5.0)
    assert (phase.slope, phase.intercept, phase.num_points) == (
        pytest.approx(slope),
        pytest.approx(intercept),
        count,
    )
    assert phase.first_examples == sizes[-count]


def test_points_on_a_line_by_accident_do_not_stop_it():
    sizes = 100.0 * 2 ** np.arange(8)
    loss = 5 * sizes**-0.2 * np.exp(np.array([0, 2e-5, -2e-5, 3e-5, -3e-5, 0, 0, 0]))
    assert accept_then_stop(sizes, loss).num_points == 7


@pytest.mark.parametrize("method", ["ats", "subtuning", "zero_shot", "size", "halving"])
def test_table_and_function_give_the_same_ranking(method):
    ranked = select_model(MODELS, TABLE, TARGET, method=method)
    called = select_model(MODELS, true_loss, TARGET, method=method)
    assert ranked == called
    assert set(ranked.rank) == set(FINAL) and ranked.best == ranked.models[0].name
    assert list(ranked.scores.values()) == sorted(ranked.scores.values())
    for item in ranked.models:
        if item.expected_loss is not None:
            assert 0 < item.expected_loss.low <= item.expected_loss.value <= item.expected_loss.high


def test_vanilla_law_ranks_too():
    found = select_model(MODELS[:2], TABLE, TARGET, method="vanilla", max_examples=3200)
    assert (
        found.best == "m0"
        and found.models[0].expected_loss.low < found.models[0].expected_loss.high
    )


def test_forecasting_beats_what_has_been_seen():
    found = {
        method: select_model(MODELS, TABLE, TARGET, method=method)
        for method in ("ats", "rectified", "subtuning", "zero_shot")
    }
    correlation = {
        method: score_correlation(selection.scores, FINAL) for method, selection in found.items()
    }
    assert (
        min(correlation["rectified"], correlation["ats"])
        > correlation["subtuning"]
        > correlation["zero_shot"]
    )
    assert relative_accuracy(found["ats"].best, FINAL) >= relative_accuracy(
        found["zero_shot"].best, FINAL
    )


def test_costs_are_examples_times_flop():
    sizes = [size for size in TABLE["m0"] if 0 < size <= TARGET // 8]
    per_example = 600 * sum(item.parameters for item in MODELS)
    assert select_model(MODELS, TABLE, TARGET).flops == pytest.approx(per_example * sum(sizes))
    assert select_model(MODELS, TABLE, TARGET, method="subtuning").flops == pytest.approx(
        per_example * sizes[-1]
    )
    assert select_model(MODELS, TABLE, TARGET, method="zero_shot").flops == 0
    assert Candidate(name="x", parameters=1, flops_per_example=7.0).cost_flops == 7.0


def test_racing_spends_less_and_chooses_as_well():
    plain, raced = (
        select_model(MODELS, TABLE, TARGET, method=method) for method in ("ats", "halving")
    )
    assert raced.best == plain.best and raced.flops < 0.6 * plain.flops
    for name, size in raced.dropped.items():
        assert next(item for item in raced.models if item.name == name).max_examples == size
    assert raced.best not in raced.dropped


def test_a_model_clearly_behind_is_dropped_by_its_bound():
    equal = [Candidate(name=name, parameters=1e6) for name in "abcdefgh"]
    table = {
        name: {100 * 2**step: 4 * (100 * 2**step) ** -0.2 for step in range(6)}
        for name in "abcdefgh"
    }
    table["b"] = {size: 3 * loss for size, loss in table["b"].items()}
    found = Measurements({item.name: item for item in equal}, table)
    dropped = race(
        found, [100 * 2**step for step in range(6)], 6400, num_start=3, threshold=5.0, quantile=1.3
    )
    assert dropped["b"] == 800 and found.known["a"].keys() == table["a"].keys()


def test_error_growth_adds_up_bends():
    assert (
        error_growth(100, 100) == 0
        and error_growth(100, 200) == 1
        and error_growth(100, 800) == 1 + 2 + 3
    )


def test_a_diverged_model_is_left_out_and_the_others_go_on():
    def loss_at(name, examples):
        return math.nan if name == "m2" and examples >= 800 else true_loss(name, examples)

    for method in ("ats", "halving"):
        found = select_model(MODELS, loss_at, TARGET, method=method)
        assert (
            found.failed == {"m2": "loss nan at 800 examples"}
            and "m2" not in found.rank
            and len(found.models) == 5
        )
    with pytest.raises(FitError, match=r"no model is left.*m0: loss inf"):
        select_model(MODELS, lambda name, examples: math.inf, TARGET)


def test_too_few_sizes_fall_back_to_the_measured_loss():
    with pytest.warns(SteelyardWarning, match="3 sizes are fewer than 4"):
        found = select_model(MODELS, TABLE, TARGET, max_examples=800)
    assert found.method == "subtuning" and found.rank == tuple(
        sorted(FINAL, key=lambda name: TABLE[name][800])
    )


def test_other_grids_and_missing_rows_are_allowed():
    sizes = (250, 700, 1500, 4000, 9000, 12_000)
    table = {item.name: {size: true_loss(item.name, size) for size in sizes} for item in MODELS}
    del table["m1"][700]
    table["m5"] = {250: 2.0, 700: 1.9}
    found = select_model(MODELS, table, TARGET)
    assert found.failed == {"m5": "2 sizes are too few for ats"}
    assert set(found.rank) == {"m0", "m1", "m2", "m3", "m4"}


def test_a_rising_curve_is_warned_of():
    table = {name: dict(row) for name, row in TABLE.items()}
    table["m3"][1600] *= 1.2
    with pytest.warns(SteelyardWarning, match="loss of m3 rises"):
        select_model(MODELS, table, TARGET)


def test_a_budget_chooses_the_largest_ladder_it_pays_for():
    price = 600 * sum(item.parameters for item in MODELS)
    for method in ("ats", "halving"):
        found = select_model(MODELS, true_loss, TARGET, method=method, budget_flops=price * 26_000)
        doubled = select_model(
            MODELS, true_loss, TARGET, method=method, budget_flops=price * 52_000
        )
        assert found.flops <= price * 26_000 and doubled.flops <= price * 52_000
        assert doubled.models[0].max_examples > found.models[0].max_examples
    with pytest.raises(InfeasibleError, match="do not pay"):
        select_model(MODELS, true_loss, TARGET, budget_flops=price * 100)


def test_bad_input_is_refused():
    other = [
        Candidate(name=f"m{index}", parameters=1e6, tokenizer="ab"[index % 2]) for index in range(4)
    ]
    with pytest.raises(FitError, match="losses per token of 2 tokenizers") as caught:
        select_model(other, TABLE, TARGET)
    assert "per byte" in caught.value.hint
    assert (
        select_model(other, TABLE, TARGET, force=True).rank
        == select_model(other, TABLE, TARGET, loss_unit="per_byte").rank
    )
    with pytest.raises(FitError, match="lacks new"):
        select_model([*MODELS, Candidate(name="new", parameters=1)], TABLE, TARGET)
    with pytest.raises(FitError, match="2 candidates with 1 names"):
        select_model(MODELS[:1] * 2, TABLE, TARGET)
    with pytest.raises(FitError, match="parameters"):
        Candidate(name="x", parameters=-1)
    with pytest.raises(FitError, match="no data sizes"):
        select_model(MODELS, TABLE, TARGET, max_examples=100)
    with pytest.raises(FitError, match="no data sizes"):
        select_model(MODELS, TABLE, TARGET, max_examples=2 * TARGET)
    without = {
        name: {size: loss for size, loss in row.items() if size} for name, row in TABLE.items()
    }
    with pytest.raises(FitError, match="no loss before tuning"):
        select_model(MODELS, without, TARGET, method="zero_shot")


def published():
    folder = SHARED / "data" / "finetune-scaling"
    if not folder.is_dir():
        pytest.skip("the data set finetune-scaling is not on this machine")
    return folder


def test_published_scores_of_accept_then_stop():
    folder = published()
    with (folder / "published_selection_scores.csv").open() as file:
        scores = {
            (row["dataset"], int(row["ratio"]), row["metric"]): float(row["value"])
            for row in csv.DictReader(file)
            if row["method"] == "AtS"
        }
    for dataset in ("flan", "wmt19"):
        with (folder / f"{dataset}.csv").open() as file:
            rows = list(csv.DictReader(file))
        table = {
            row["config name"]: {
                int(key): float(value) for key, value in row.items() if key.isdigit()
            }
            for row in rows
        }
        models = [Candidate(name=row["config name"], parameters=float(row["size"])) for row in rows]
        measured = {name: row[1_638_400] for name, row in table.items()}
        for ratio in (8, 64, 512):
            found = select_model(models, table, 1_638_400, max_examples=1_638_400 // ratio)
            key = (dataset.upper(), ratio)
            assert score_correlation(found.scores, measured) == pytest.approx(
                scores[*key, "PearCorr"], abs=1e-4
            )
            assert relative_accuracy(found.best, measured) == pytest.approx(
                scores[*key, "RelAcc"], abs=1e-4
            )
