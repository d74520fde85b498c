"""Norm schemes: published constants, the weights drawn from them, and what a step changes."""

import dataclasses
import math

import pytest
import torch
from tests.nn.wide_models import WIDE

from steelyard.nn.initial.schemes import deepnorm_constants, subln_gain
from steelyard.nn.stability import growth_exponent, probe
from steelyard.nn.transformer import build


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((100, 0), {"encoder": (3.760603, 0.188030)}),
        ((0, 12), {"decoder": (2.213364, 0.319472)}),
        ((6, 6), {"encoder": (1.417938, 0.496989), "decoder": (2.059767, 0.343294)}),
        ((18, 6), {"encoder": (1.866112, 0.377630), "decoder": (2.059767, 0.343294)}),
    ],
)
def test_deepnorm_constants_are_the_published_ones(layers, expected):
    found = deepnorm_constants(*layers)
    assert found.keys() == expected.keys()
    for part, pair in expected.items():
        assert found[part] == pytest.approx(pair, abs=2e-6)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((0, 12), {"decoder": 1.782710}),
        ((24, 0), {"encoder": 1.967537}),
        ((12, 12), {"encoder": 1.948385, "decoder": 1.893018}),
    ],
)
def test_subln_gains_are_the_published_ones(layers, expected):
    assert subln_gain(*layers) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("name", ["deepnorm", "subln"])
def test_values_outputs_and_mlps_are_scaled_and_queries_and_keys_are_not(name):
    arch = dataclasses.replace(WIDE[name], hidden_size=192, head_dim=32, intermediate_size=320)
    layer = build(arch, seed=1).layers[1]
    gain = {"deepnorm": 24**-0.25, "subln": math.sqrt(math.log(6))}[name]
    queries, keys, values = layer.qkv.weight.detach().split((192, 64, 64))
    for part, factor in (
        (queries, 1),
        (keys, 1),
        (values, gain),
        (layer.out.weight.detach(), gain),
    ):
        assert float(part.std()) == pytest.approx(factor * math.sqrt(2 / sum(part.shape)), rel=0.05)
    up = layer.up.weight.detach().chunk(2)[0]  # the gate's half is a matrix of its own
    for part in (up, layer.down.weight.detach()):
        assert float(part.std()) == pytest.approx(gain * math.sqrt(2 / sum(part.shape)), rel=0.05)


def deep(layers: int, **scheme):
    arch = dataclasses.replace(
        WIDE["post"], residual_norm=False, num_layers=layers, hidden_size=24, intermediate_size=40
    )
    return build(dataclasses.replace(arch, norm="layernorm", **scheme), seed=0)


def test_an_update_grows_with_depth_after_sums_but_not_with_deepnorm():
    tokens = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(0))
    depths = [6, 12, 24]
    growth = {
        name: growth_exponent(depths, [probe(deep(d, **kind), tokens).update for d in depths])
        for name, kind in {"post": {"residual_norm": True}, "deep": {"deepnorm": True}}.items()
    }
    assert growth["deep"] <= 0.1
    assert growth["post"] >= 0.4


def test_probe_measures_every_layer_and_leaves_the_model_alone():
    model = build(WIDE["softmax"], seed=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tokens = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(0))
    report = probe(model, tokens, rate=0.05, moves_all=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    for column in (report.update_by_layer, report.activation_by_layer, report.gradient_by_layer):
        assert len(column) == 3
        assert min(column) > 0
    assert report.loss_after < report.loss_before
    assert probe(model, tokens, rate=0.0).update == 0
    assert probe(build(WIDE["encoder"]), tokens).update > 0
