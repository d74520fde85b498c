import json
from dataclasses import replace

import numpy as np
import pytest

from steelyard.catalog import accelerator
from steelyard.catalog.fpga import fpga
from steelyard.catalog.search_rates import load_search_rates, store_search_rates
from steelyard.cost.vector_search import (
    CpuStages,
    FpgaStages,
    GpuStages,
    IndexShape,
    SearchPoint,
    predict,
    query_work,
    shape_of,
    stage_seconds,
)
from steelyard.errors import CalibrationError, CapacityError, ConfigError
from steelyard.plan.retrieve import codesign
from steelyard.retrieve import IVFPQ, IVFFlat
from steelyard.retrieve.calibration import (
    TimedSearch,
    empty_index,
    fit_query_s,
    measure_search_rates,
)
from steelyard.retrieve.choosing import choose_index
from steelyard.retrieve.tuning import recall_at, tune

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


def test_the_choice_reaches_the_recall_with_few_measurements(rates):
    rng = np.random.default_rng(3)
    middles = rng.normal(size=(40, 16)) * 3
    made = (middles[rng.integers(0, 40, 4400)] + rng.normal(size=(4400, 16))).astype(np.float32)
    vectors, queries = made[:4000], made[4000:]
    exact = IVFFlat(16)
    exact.add(vectors)
    truth = exact.search(queries, 5).ids
    indexes = {"few": IVFFlat(16, nlist=8), "many": IVFFlat(16, nlist=64)}
    for index in indexes.values():
        index.train(vectors)
        index.add(vectors)
    chosen = choose_index(indexes, queries, truth, rates, recall=0.9)
    assert chosen.best.recall >= 0.9
    assert chosen.heldout_recall > 0.9 - 4 * chosen.heldout_error
    assert chosen.measurements <= 2 + 3 * 4
    # Halving finds the fewest cells by searches alone; half a standard error is kept free here.
    fewest = tune(indexes[chosen.best.index], queries, truth, recall=0.9).nprobe
    assert fewest <= chosen.best.nprobe <= fewest + 1
    fewer = indexes[chosen.best.index].search(queries[::2], 5, nprobe=chosen.best.nprobe)
    assert recall_at(fewer.ids, truth[::2]).mean() == pytest.approx(chosen.best.recall)
    with pytest.raises(ConfigError, match="no index to choose from"):
        choose_index({}, queries, truth, rates, recall=0.9)


def test_codes_that_cannot_reach_a_goal_say_what_they_reach(rates):
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(2000, 16)).astype(np.float32)
    queries = rng.normal(size=(60, 16)).astype(np.float32)
    exact = IVFFlat(16)
    exact.add(vectors)
    index = IVFPQ(16, nlist=8, parts=1)
    index.train(vectors)
    index.add(vectors)
    known = rates.query_s | {"ivfpq": rates.query_s["ivf"]}
    other = replace(rates, query_s=known)
    with pytest.raises(CapacityError, match=r"the best finds 0\.\d+") as refused:
        choose_index({"one": index}, queries, exact.search(queries, 5).ids, other, recall=0.99)
    assert "longer codes" in refused.value.hint


def test_stages_of_processors_rank_indexes(rates):
    points = [
        SearchPoint(num_vectors=10**6, nlist=nlist, nprobe=8, k=10, kind="ivf")
        for nlist in (1024, 4096)
    ]
    found = codesign(points, CpuStages(rates, memory_bytes=1e9))
    assert {item.point for item in found.designs} == set(points)
    for item in found.designs:
        shape = shape_of(item.point)
        told = predict(shape, 8, rates).query.value
        assert 1 / item.queries_per_s == pytest.approx(told)
        assert item.taken["bytes"] == shape.memory_bytes
    small = codesign(points, CpuStages(rates, memory_bytes=1e6))
    assert not small.designs
    assert all("bytes" in why for why in small.rejected.values())
    chip = accelerator("H100-SXM5-80GB")
    fast = codesign(points, GpuStages(chip, batch=1000)).designs[0]
    slow = codesign(points, GpuStages(chip, batch=1)).designs[0]
    assert fast.queries_per_s > slow.queries_per_s
    with pytest.raises(ConfigError, match="kind ivf"):
        FpgaStages(fpga("U55C")).stages(points[0])
