"""Optimizer steps over the whole space of layouts."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cost import Layout, Machine, training_step
from steelyard.cost.step import Overlap
from steelyard.cost.unique import on_unique


@pytest.fixture(scope="module")
def frontier() -> Machine:
    record = catalog.accelerator("MI250X-GCD")
    return Machine.from_accelerator(record, cluster=catalog.cluster("Frontier"))


def cost(machine: Machine, model: str = "gpt3-13b", **given: Any) -> Any:
    shape: dict[str, Any] = {
        "micro_batch": given.pop("micro_batch", 1),
        "accumulation": given.pop("accumulation", 16),
        "overlap": given.pop("overlap", None),
    }
    arch = catalog.architecture_by_name(model)
    return training_step(
        arch, machine=machine, sequence_length=2048, layout=Layout(**given), **shape
    )


def test_many_layouts_equal_each_on_its_own(frontier):
    rng = np.random.default_rng(0)
    count = 60
    drawn: dict[str, Any] = {
        name: 2 ** rng.integers(0, high, count)
        for name, high in (("tensor", 4), ("pipeline", 4), ("data", 6), ("context", 3))
    } | {
        "virtual_stages": rng.integers(1, 4, count),
        "zero_stage": rng.integers(0, 4, count),
        "recompute": rng.integers(0, 3, count),
        "schedule": rng.integers(0, 3, count),
        "sequence_parallel": rng.integers(0, 2, count).astype(bool),
    }
    batch, steps = 2 ** rng.integers(0, 3, count), rng.integers(1, 40, count)
    together = cost(frontier, micro_batch=batch, accumulation=steps, **drawn)
    for place in range(count):
        one: dict[str, Any] = {name: values[place] for name, values in drawn.items()}
        alone = cost(frontier, micro_batch=batch[place], accumulation=steps[place], **one)
        for name in ("time_s", "compute_s", "bubble_s", "data_s", "mfu", "hfu"):
            assert getattr(together, name)[place] == pytest.approx(getattr(alone, name), rel=1e-12)
        assert together.memory.total[place] == pytest.approx(alone.memory.total)
        assert together.link_bytes[:, place] == pytest.approx(alone.link_bytes)


def test_a_column_is_evaluated_once_per_combination():
    calls = []

    def evaluate(some: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(some["a"]))
        return {"sum": some["a"] + some["b"]}

    a, b = np.array([3, 1, 3, 3, 1]), np.array([0.5, 2, 0.5, 7, 2])
    assert on_unique({"a": a, "b": b}, evaluate)["sum"].tolist() == (a + b).tolist()
    assert calls == [3]


def test_the_observations_of_arxiv_2312_12705(frontier):
    def per_device(**given: Any) -> float:
        devices = np.prod([given.get(name, 1) for name in ("tensor", "pipeline", "data")])
        found = cost(frontier, **given)
        return float(found.tokens / found.time_s / devices)

    by_tensor = [per_device(tensor=size, data=8 // size) for size in (1, 2, 4, 8)]
    assert by_tensor == sorted(by_tensor, reverse=True)
    by_batch = [per_device(pipeline=8, accumulation=count) for count in (8, 16, 64)]
    assert by_batch == sorted(by_batch)
    by_stages = [per_device(pipeline=size, accumulation=32) for size in (2, 4, 8, 20)]
    assert by_stages == sorted(by_stages, reverse=True)
    # Of a model with few layers per stage the head weighs on the last; of 96 layers it hardly does.
    kept = [
        per_device(model="gpt3-175b", tensor=8, pipeline=size, accumulation=8 * size)
        for size in (4, 8, 16)
    ]
    assert max(kept) / min(kept) < 1.08
    by_micro = [per_device(micro_batch=size, accumulation=64 // size) for size in (1, 2, 4)]
    assert by_micro == sorted(by_micro)
    arch = catalog.architecture_by_name("gpt3-13b")
    shape: dict[str, Any] = {"machine": frontier, "micro_batch": 1, "sequence_length": 2048}
    fused, plain = (
        training_step(arch, **shape, flash_attention=flash).time_s for flash in (True, False)
    )
    assert 1.02 < plain / fused < 1.4


def test_chunks_and_split_backward_passes_shorten_the_bubble(frontier):
    whole = cost(frontier, pipeline=8).bubble_s
    chunks = cost(frontier, pipeline=8, virtual_stages=5).bubble_s
    split = cost(frontier, pipeline=8, schedule="zero-bubble").bubble_s
    assert split < whole and chunks < 0.6 * whole


def test_shards_near_each_other_spare_the_network(frontier):
    """Bytes between nodes of arXiv 2501.04266's plan against ZeRO-3 and ZeRO++."""
    # Quantizing pays where traffic shows: all of it does here.
    base: dict[str, Any] = {"data": 64, "accumulation": 4, "overlap": Overlap(data=0.0)}
    zero3 = cost(frontier, zero_stage=3, **base)
    plus = cost(
        frontier,
        zero_stage=3,
        weight_copy_shards=8,
        weight_wire_bits=8,
        gradient_wire_bits=4,
        **base,
    )
    topo = cost(
        frontier,
        weight_shards=2,
        weight_copy_shards=2,
        gradient_shards=8,
        optimizer_shards=64,
        weight_wire_bits=8,
        copy_wire_bits=8,
        gradient_wire_bits=4,
        **base,
    )
    between = [item.link_bytes[-1] for item in (zero3, plus, topo)]
    assert between[0] > between[1] > between[2]
    assert zero3.time_s > plus.time_s > topo.time_s


def test_a_second_copy_has_bits_of_its_own(frontier):
    base: dict[str, Any] = {"data": 64, "zero_stage": 3, "weight_copy_shards": 8}
    whole = cost(frontier, **base)
    wire = cost(frontier, **base, weight_wire_bits=8)
    kept = cost(frontier, **base, copy_wire_bits=8)
    assert wire.memory.weights == whole.memory.weights > kept.memory.weights
    # Gathers over all are halved by the first, those within a node by the second.
    assert wire.link_bytes[-1] < whole.link_bytes[-1] == kept.link_bytes[-1]
    assert kept.link_bytes[1] < whole.link_bytes[1]


def test_rings_over_a_share_of_the_cards_slow_gathers_between_nodes_only(frontier):
    share = dataclasses.replace(frontier.efficiencies, rings=0.25)
    slow = dataclasses.replace(frontier, efficiencies=share)
    none = Overlap(data=0.0)
    for data, least in ((8, 1.0), (64, 3.0)):
        quick, slowed = (
            cost(machine, data=data, zero_stage=3, overlap=none).data_s
            for machine in (frontier, slow)
        )
        assert least <= slowed / quick <= least * 4 / 3
    # An all-reduce of gradients does not go layer by layer.
    assert cost(slow, data=64).data_s == cost(frontier, data=64).data_s
