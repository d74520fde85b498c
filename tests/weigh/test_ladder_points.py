"""The stored ladders of the calibration: what is written is read, and scored by its own rungs."""

import importlib
import math
from pathlib import Path

import pytest

from steelyard.weigh.forecast import RungPoint
from steelyard.weigh.ladder import BATCH_SIZE, SEQUENCE_LENGTH, parameters

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ladders(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.weigh._ladders")


@pytest.fixture
def calibration(ladders):
    return importlib.import_module("benchmarks.weigh.quickstart_calibration")


def loss(shape, steps):
    """A law that is not among those fitted: a power of compute above a floor."""
    flops = 6 * parameters(shape) * steps * BATCH_SIZE * SEQUENCE_LENGTH
    return 2.0 + 40 * flops**-0.12


def point(shape, steps):
    return RungPoint(
        hidden_size=shape[0],
        num_layers=shape[1],
        parameters=parameters(shape),
        steps=steps,
        tokens=steps * BATCH_SIZE * SEQUENCE_LENGTH,
        loss=loss(shape, steps),
        step_time_s=0.0,
        step_time_spread_s=0.0,
        peak_memory_bytes=0.0,
    )


def run_of(ladders, text, seed):
    shapes = ((32, 2), (64, 2), (96, 3))
    points = [point(shape, steps) for shape in shapes for steps in (200, 320, 500, 800)]
    return ladders.LadderRun(text=text, seed=seed, points=points, target=point((128, 4), 800))


def test_what_is_stored_is_read(ladders, tmp_path, monkeypatch):
    monkeypatch.setattr(ladders, "POINTS", tmp_path / "points.csv")
    assert ladders.read_ladders(ladders.POINTS) == []
    stored = [run_of(ladders, "library", 0), run_of(ladders, "headers", 1)]
    ladders._write_ladders(stored, ladders.POINTS)
    assert ladders.read_ladders(ladders.POINTS) == stored


def test_training_goes_on_after_what_is_stored(ladders, tmp_path, monkeypatch):
    points, trained = tmp_path / "points.csv", []

    def train(out, text, seed, minutes, threads):
        if len(trained) == 2:
            raise KeyboardInterrupt  # as if it were killed in its third ladder
        trained.append((text, seed))
        return run_of(ladders, text, seed)

    monkeypatch.setattr(ladders, "_train", train)
    with pytest.raises(KeyboardInterrupt):
        ladders.train_ladders(out=tmp_path, points=points, seeds=1)
    assert trained == [("library", 0), ("abstracts", 0)]
    trained.clear()
    ladders.train_ladders(out=tmp_path, points=points, seeds=1)
    assert trained == [("headers", 0)]


def test_scores_compare_every_forecaster_with_the_larger_run(calibration, ladders):
    ladder = run_of(ladders, "library", 0)
    scores = calibration._score([ladder])
    assert {"quickstart", "chinchilla", "kaplan", "largest run"} <= scores.keys()
    largest = scores["largest run"]
    assert math.isclose(largest.bias, loss((96, 3), 800) / loss((128, 4), 800) - 1)
    assert scores["quickstart"].error < largest.error
    assert scores["quickstart"].half_width > 0
