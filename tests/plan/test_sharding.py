"""Shard groups per state: what the search finds, and what it refuses."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from steelyard import catalog, cost
from steelyard.catalog.architecture import Architecture
from steelyard.cli.plan.layout import layout
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.sharding import PLAIN, QUANTIZED, search_shards

WIDE: dict[str, Any] = {"sequence_length": 2048, "global_batch": 64}


def gpt(layers: int, hidden: int) -> Architecture:
    return Architecture(
        name="gpt",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=hidden // 128,
        num_kv_heads=hidden // 128,
        head_dim=128,
        intermediate_size=4 * hidden,
        vocab_size=50_432,
        mlp="gelu",
        tied_embeddings=False,
    )


@pytest.fixture
def frontier() -> cost.Machine:
    cluster = catalog.cluster("Frontier")
    return cost.Machine.from_accelerator(
        catalog.accelerator(cluster.accelerator), dtype="fp16", cluster=cluster
    )


def test_the_best_is_the_fastest_of_all_that_fit_one_by_one(frontier):
    arch = gpt(24, 6144)
    found = search_shards(arch, frontier, count=64, wires=(PLAIN, QUANTIZED), **WIDE)
    names = [f"{state}_shards" for state in ("weight", "weight_copy", "gradient", "optimizer")]
    names += [f"{state}_wire_bits" for state in ("weight", "copy", "gradient")]
    rates = []
    for place in range(0, len(found.fits), 7):
        layout: dict[str, Any] = {name: getattr(found.layout, name)[place].item() for name in names}
        one = cost.training_step(
            arch,
            machine=frontier,
            micro_batch=int(found.micro_batch[place]),
            sequence_length=2048,
            accumulation=int(found.accumulation[place]),
            layout=cost.Layout(data=64, recompute="full", **layout),
        )
        assert one.time_s == pytest.approx(found.cost.at(place).time_s)
        fits = one.memory.total <= 0.88 * frontier.memory_bytes
        assert fits == found.fits[place]
        rates.append(one.tokens / one.time_s if fits else 0.0)
    best = found.cost.at(found.best)
    assert best.tokens / best.time_s >= max(rates) * (1 - 1e-9) and found.fits[found.best]


def test_groups_end_where_levels_end(frontier):
    found = search_shards(gpt(24, 6144), frontier, count=64, **WIDE)
    assert set(found.layout.gradient_shards) == {1, 2, 8, 64}
    place = int(np.flatnonzero(np.asarray(found.layout.weight_shards) == 8)[0])
    chosen = found.choice(place)
    assert chosen.levels["weight"] == "node" and chosen.groups["weight"] == 8
    assert chosen.micro_batch * chosen.accumulation * 64 == WIDE["global_batch"]


def test_a_model_that_needs_all_memory_is_split_over_all(frontier):
    found = search_shards(
        gpt(96, 12288), frontier, count=256, sequence_length=2048, global_batch=256
    )
    assert set(found.choice(found.best).groups.values()) == {0, 256}


def test_a_slower_network_is_used_less(frontier):
    sent = []
    for slower in (1.0, 8.0):
        network = replace(frontier.levels[-1], bytes_per_s=frontier.levels[-1].bytes_per_s / slower)
        machine = replace(frontier, levels=(*frontier.levels[:-1], network))
        found = search_shards(gpt(44, 6144), machine, count=64, **WIDE)
        sent.append(float(found.cost.link_bytes[-1, found.best]))
    assert sent[1] < sent[0]


def test_refusals_say_what_to_change(frontier):
    arch = gpt(24, 6144)
    with pytest.raises(ConfigError, match="5 do not divide 64"):
        search_shards(arch, frontier, count=64, sizes=(5,), **WIDE)
    with pytest.raises(ConfigError, match="do not divide over 48"):
        search_shards(arch, frontier, count=48, **WIDE)
    with pytest.raises(InfeasibleError, match="memory: gpt needs at least"):
        search_shards(gpt(96, 12288), frontier, count=64, **WIDE)


def test_plan_layout_shows_the_groups(capsys):
    asked = {"cluster": "Frontier", "nodes": 8, "global_batch": 256}
    layout(model="gpt3-13b", **asked)
    text = capsys.readouterr().out
    assert "Shards by kind of state" in text and "8-bit weights" in text
    layout(model="gpt3-13b", json=True, **asked)
    found = json.loads(capsys.readouterr().out)["shards"]
    plain, quantized = found.values()
    # Traffic hides behind compute here, and quantizing does not.
    assert quantized["step_s"] > plain["step_s"]
    assert set(plain["groups"].values()) <= {0, 1, 2, 8, 64}
    # Replicas alone do not hold so large a model.
    layout(model="gpt3-175b", **asked)
    text = " ".join(capsys.readouterr().out.split())
    assert "None with compute dtype: memory: gpt3-175b needs at least" in text
    assert "on the wire" not in text
