"""Forecasts of a larger run from a made-up ladder whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from steelyard.cost import Machine
from steelyard.quantity import Forecast
from steelyard.weigh.forecast import (
    RungPoint,
    fit_laws,
    loss_forecast,
    predicted_memory_parts_bytes,
    predicted_step_parts_s,
    training_forecasts,
)
from steelyard.weigh.ladder import BATCH_SIZE, SEQUENCE_LENGTH, parameters
from steelyard.weigh.pace import Pace

SHAPES = ((32, 2), (64, 2), (96, 3))
TARGET = (128, 4)
MACHINE = Machine(
    name="made-up",
    dtype="fp32",
    peak_flops_per_s=1e11,
    memory_bytes=8e9,
    memory_bytes_per_s=1e10,
    fused=False,
)


def loss(size: float, tokens: float) -> float:
    return 1.7 + 40 / size**0.35 + 300 / tokens**0.4


def ladder(noise: float, *, slower: tuple[float, float] = (1.3, 2.5)) -> list[RungPoint]:
    generator = np.random.default_rng(0)
    points = []
    for shape in SHAPES:
        for steps in (200, 320, 500, 800):
            tokens = steps * BATCH_SIZE * SEQUENCE_LENGTH
            size = parameters(shape)
            points.append(
                RungPoint(
                    hidden_size=shape[0],
                    num_layers=shape[1],
                    parameters=size,
                    steps=steps,
                    tokens=tokens,
                    loss=loss(size, tokens) * float(np.exp(generator.normal(0, noise))),
                    step_time_s=float(np.dot(slower, predicted_step_parts_s(shape, MACHINE))),
                    step_time_spread_s=0.0,
                    peak_memory_bytes=float(
                        np.dot((1.2, 2.0), predicted_memory_parts_bytes(shape))
                    ),
                )
            )
    return points


def test_a_clean_ladder_forecasts_the_larger_run():
    points = ladder(1e-4)
    found = {
        item.quantity: item
        for item in training_forecasts(
            fit_laws(points, seed=0), points, target=TARGET, steps=800, machine=MACHINE
        )
    }
    truth = {
        "eval.loss": loss(parameters(TARGET), 800 * BATCH_SIZE * SEQUENCE_LENGTH),
        "train.step_time": float(np.dot((1.3, 2.5), predicted_step_parts_s(TARGET, MACHINE))),
        "train.peak_memory": float(np.dot((1.2, 2.0), predicted_memory_parts_bytes(TARGET))),
    }
    for name, value in truth.items():
        assert found[name].value == pytest.approx(value, rel=0.03), name
        assert found[name].low < value < found[name].high
    assert found["train.total_time"].value == pytest.approx(800 * found["train.step_time"].value)


def test_forms_that_disagree_widen_the_interval():
    points = ladder(0.01)
    laws = fit_laws(points, seed=0)
    assert [law.law.name for law in sorted(laws, key=lambda law: law.noise)] == [
        law.law.name for law in laws
    ]
    size, tokens = float(parameters(TARGET)), 8e5
    both, single = (
        loss_forecast(laws, size, tokens),
        [loss_forecast([law], size, tokens) for law in laws],
    )
    assert min(item.value for item in single) <= both.value <= max(item.value for item in single)
    assert (
        np.log(both.high / both.low)
        >= np.mean([np.log(item.high / item.low) for item in single]) * 0.999
    )


def test_one_disturbed_run_does_not_move_step_time_or_memory():
    points = ladder(1e-4)
    disturbed = [replace(points[0], step_time_s=9.0, peak_memory_bytes=9e9), *points[1:]]
    laws = fit_laws(points, seed=0)
    pairs = zip(
        *(
            training_forecasts(laws, each, target=TARGET, steps=800, machine=MACHINE)
            for each in (points, disturbed)
        ),
        strict=True,
    )
    assert all(before.value == pytest.approx(after.value) for before, after in pairs)


def test_the_ladder_is_a_table_that_laws_reads(tmp_path):
    from steelyard import laws
    from steelyard.weigh.training import write_table

    points = ladder(1e-4)
    write_table(points, tmp_path / "ladder.csv", "2048 tokens of a test")
    table = laws.RunTable.read(tmp_path / "ladder.csv")
    assert (
        table.num_runs == len(points)
        and "counts total" in table.source
        and "schedule finished" in table.source
    )
    fitted = laws.fit(laws.chinchilla(), table, "loss", bootstrap=laws.Bootstrap(count=0))
    assert fitted.predict({"parameters": 1e5, "tokens": 1e6}).value[0] == pytest.approx(
        loss(1e5, 1e6), rel=0.02
    )


def with_paces(points: list[RungPoint], *paces: Pace) -> list[RungPoint]:
    """Give each shape its pace, and the times a machine of that pace takes."""
    by_shape = dict(zip(SHAPES, paces, strict=True))
    return [
        replace(
            point,
            pace=by_shape[point.shape],
            step_time_s=point.step_time_s * by_shape[point.shape].median_s / 1e-3,
        )
        for point in points
    ]


def steady(seconds: float) -> Pace:
    return Pace(median_s=seconds, mean_s=seconds, windows_s=(seconds,) * 4)


def times(points: list[RungPoint]) -> dict[str, Forecast]:
    laws = fit_laws(points, seed=0)
    found = training_forecasts(laws, points, target=TARGET, steps=800, machine=MACHINE)
    return {item.quantity: item for item in found}


def test_a_shape_that_met_a_slow_machine_counts_at_the_ladders_pace():
    points = ladder(1e-4)
    plain = times(with_paces(points, *(steady(1e-3),) * 3))
    slowed = times(with_paces(points, steady(1e-3), steady(1e-3), steady(2e-3)))
    for name in ("train.step_time", "train.total_time"):
        assert slowed[name].value == pytest.approx(plain[name].value, rel=1e-6)
        assert slowed[name].pace_s == plain[name].pace_s == 1e-3
        # The machine was seen at two speeds, so it may have either of them next.
        assert slowed[name].high > 1.2 * plain[name].high
    assert slowed["train.peak_memory"] == plain["train.peak_memory"]
    assert slowed["eval.loss"] == plain["eval.loss"]


def test_a_total_counts_the_slow_steps_that_a_median_does_not_see():
    points = [
        replace(point, total_time_s=1.5 * point.steps * point.step_time_s) for point in ladder(1e-4)
    ]
    found = times(points)
    assert found["train.total_time"].value == pytest.approx(
        1.5 * 800 * found["train.step_time"].value
    )
