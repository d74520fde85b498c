import json

import numpy as np
import pytest

from steelyard.catalog.search_rates import load_search_rates, store_search_rates
from steelyard.cost.vector_search import IndexShape, predict, query_work, stage_seconds
from steelyard.errors import CalibrationError, ConfigError
from steelyard.retrieve.calibration import (
    TimedSearch,
    empty_index,
    fit_query_s,
    measure_search_rates,
)

SMALL = [
    IndexShape(kind="ivf", num_vectors=count, dim=dim, nlist=nlist)
    for count, dim, nlist in ((400, 8, 4), (2000, 8, 16), (1000, 16, 8))
]


@pytest.fixture(scope="module")
def rates():
    build = IndexShape(kind="ivf", num_vectors=400, dim=8, nlist=4)
    return measure_search_rates(shapes=SMALL, builds=[build])


def test_rates_are_kept_and_damaged_ones_named(rates, tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    assert load_search_rates() is None
    path = store_search_rates(rates)
    assert load_search_rates() == rates
    path.write_text(json.dumps({"query_s": 3}))
    with pytest.raises(CalibrationError, match="unusable") as refused:
        load_search_rates()
    assert "calibrate" in refused.value.hint


def test_stages_add_up_and_more_cells_never_take_less(rates):
    shape = IndexShape(kind="ivf", num_vectors=10_000, dim=16, nlist=64)
    found = [predict(shape, nprobe, rates) for nprobe in (1, 8, 64)]
    for item in found:
        assert sum(item.stages_s.values()) == pytest.approx(item.query.value)
        assert item.query.low < item.query.value < item.query.high
        assert item.build.value > 0
    assert found[0].query.value <= found[1].query.value <= found[2].query.value
    with pytest.raises(CalibrationError, match="no rates of fastscan"):
        predict(IndexShape(kind="fastscan", num_vectors=100, dim=16), 1, rates)
    with pytest.raises(ConfigError, match="0 cells"):
        stage_seconds(shape, 0, rates)


def test_a_fit_finds_the_seconds_that_times_were_made_of():
    made = {"call": 3e-5, "centers, near": 1e-10, "scan, near": 4e-11, "cells": 1e-7}
    shapes = [
        IndexShape(kind="ivf", num_vectors=count, dim=dim, nlist=nlist)
        for count in (2000, 9000)
        for dim in (16, 64)
        for nlist in (16, 256)
    ]
    timed = []
    for shape in shapes:
        for nprobe in (1, 4, 16):
            work = query_work(shape, nprobe, 10)
            took_s = sum(made.get(part, 0.0) * count for part, count in work.items())
            timed.append(TimedSearch(shape=shape, nprobe=nprobe, k=10, query_s=took_s))
    found, relative = fit_query_s(timed)
    for part, seconds in made.items():
        assert found[part] == pytest.approx(seconds, rel=1e-3)
    assert relative == 0.05


@pytest.mark.parametrize(
    "shape",
    [
        IndexShape(kind="flat", num_vectors=700, dim=16),
        IndexShape(kind="ivf", num_vectors=700, dim=16, nlist=5, number_bytes=1),
        IndexShape(kind="ivfpq", num_vectors=700, dim=16, nlist=5, parts=4),
        IndexShape(kind="ivfpq", num_vectors=700, dim=16, nlist=5, parts=8, rerank=2),
        IndexShape(kind="fastscan", num_vectors=700, dim=16, nlist=5, rerank=2),
    ],
)
def test_bytes_are_those_of_the_index(shape):
    index = empty_index(shape)
    vectors = np.random.default_rng(0).integers(0, 256, (700, 16)).astype(np.float32)
    index.train(vectors)
    index.add(vectors)
    assert sum(index.memory_bytes().values()) == pytest.approx(shape.memory_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "tree"}, "kinds"),
        ({"kind": "ivf", "nlist": 200}, "200 cells for 100 vectors"),
        ({"kind": "flat", "nlist": 2}, "flat index of 2 cells"),
        ({"kind": "ivfpq", "parts": 3}, "3 parts"),
        ({"kind": "ivf", "rerank": -1}, "-1 candidates"),
    ],
)
def test_shapes_that_cannot_be_are_refused(given, said):
    with pytest.raises(ConfigError) as refused:
        IndexShape(**{"num_vectors": 100, "dim": 16, **given})
    assert said in f"{refused.value} {refused.value.hint}"
