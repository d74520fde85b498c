"""What transfers over widths: sizes of activations, and learning rates."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn import mup
from steelyard.nn.resnet import ResNet
from steelyard.nn.transformer import build

WIDTHS = (32, 64, 128, 256)
INPUTS, CLASSES = 16, 8


def perceptron(width, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, CLASSES),
    )  # fmt: skip


def task():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(128, INPUTS, generator=generator)
    return x, (x @ torch.randn(INPUTS, CLASSES, generator=generator)).argmax(1)


def trained(make, width, rate, *, transfers, optimizer="adamw", steps=4, call=None):
    """Train a model of some width; return it and its loss."""
    call = call or (lambda model: F.cross_entropy(model(task()[0]), task()[1]))
    model, base = make(width), make(WIDTHS[0])
    groups = [{"params": list(model.parameters()), "lr": rate}]
    if transfers:
        mup.initialize(model, base)
        groups = mup.parameter_groups(model, base, learning_rate=rate, optimizer=optimizer)
    kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    rule = kind(groups, weight_decay=0.0)
    for _ in range(steps):
        loss = call(model)
        rule.zero_grad()
        loss.backward()
        rule.step()
    return model, call(model).item()


def growth(make, *, transfers, optimizer, rate, call=None, inputs=None):
    """Return the steepest power with which an activation grows from one width to the widest."""
    sizes = []
    for width in WIDTHS:
        model, _ = trained(make, width, rate, transfers=transfers, optimizer=optimizer, call=call)
        sizes.append(mup.activation_sizes(model, task()[0] if inputs is None else inputs))
    slopes = {
        name: np.polyfit(np.log(WIDTHS), np.log([item[name] for item in sizes]), 1)[0]
        for name in sizes[0]
    }
    return max(slopes.values())


@pytest.mark.parametrize(("optimizer", "rate"), [("adamw", 0.01), ("sgd", 0.1)])
def test_activations_are_flat_over_widths_after_training(optimizer, rate):
    standard = growth(perceptron, transfers=False, optimizer=optimizer, rate=rate)
    found = growth(perceptron, transfers=True, optimizer=optimizer, rate=rate)
    assert found < 0.12
    if optimizer == "adamw":
        assert standard > 0.4


def test_a_transformers_activations_are_flat(llama):
    tokens = torch.randint(0, 97, (4, 33), generator=torch.Generator().manual_seed(0))

    def arch(width):
        return dataclasses.replace(
            llama, hidden_size=width, head_dim=width // 4, num_heads=4, num_kv_heads=4,
            intermediate_size=2 * width, num_layers=2,
        )  # fmt: skip

    def standard(width):
        return build(arch(width))

    def transfers(width):
        return build(mup.transferable(arch(width), arch(WIDTHS[0])))

    def call(model):
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    options = {"optimizer": "adamw", "rate": 0.01, "call": call, "inputs": tokens[:, :-1]}
    assert growth(transfers, transfers=True, **options) < 0.2
    assert growth(standard, transfers=False, **options) > 0.5


def test_the_best_learning_rate_stays_where_it_is():
    rates = [2.0**-power for power in range(5, 11)]

    def best(width, transfers):
        losses = [
            trained(perceptron, width, rate, transfers=transfers, steps=12)[1] for rate in rates
        ]
        return int(np.argmin(losses))

    narrow, wide = best(32, True), best(256, True)
    assert abs(narrow - wide) <= 1
    # Without it the best rate falls with the width.
    assert best(256, False) >= narrow + 1


def test_the_base_itself_is_left_as_it_is():
    model, base = perceptron(32, seed=1), perceptron(32, seed=1)
    before = [item.clone() for item in model.parameters()]
    mup.initialize(model, base)
    assert all(
        torch.allclose(a, b, rtol=1e-6) for a, b in zip(before, model.parameters(), strict=True)
    )
    groups = mup.parameter_groups(model, base, learning_rate=0.1, weight_decay=0.2)
    assert {(group["lr"], group["weight_decay"]) for group in groups} == {(0.1, 0.2), (0.1, 0.0)}


def test_ratios_are_those_of_table_3():
    found = mup.width_ratios(perceptron(128), perceptron(32))
    first, hidden, head = found["0.weight"], found["2.weight"], found["4.weight"]
    assert [first.rate("adamw"), hidden.rate("adamw"), head.rate("adamw")] == [1, 0.25, 0.25]
    assert [first.rate("sgd"), hidden.rate("sgd"), head.rate("sgd")] == [4, 1, 0.25]
    assert [first.spread, hidden.spread, head.spread] == [1, 0.5, 0.25]
    assert found["0.bias"].rate("sgd") == 4
    assert found["0.bias"].rate("adamw") == 1


def test_tables_and_convolutions_have_their_own_axes(llama):
    wide, base = (ResNet(8, width=factor) for factor in (2, 1))
    found = mup.width_ratios(wide, base)
    assert found["conv.weight"] == mup.WidthRatio(1, 2)
    assert found["stages.0.0.conv1.weight"] == mup.WidthRatio(2, 2)
    assert found["fc.weight"] == mup.WidthRatio(2, 1)
    assert found["norm.weight"] == mup.WidthRatio(1, 2)
    arch = dataclasses.replace(llama, hidden_size=96)
    found = mup.width_ratios(build(arch), build(llama))
    assert found["embedding.weight"] == mup.WidthRatio(1, 2)
    assert found["layers.0.down.weight"] == mup.WidthRatio(1, 2)
    scaled = mup.transferable(arch, llama)
    assert (scaled.logit_divisor, scaled.attention_scale) == (2.0, 8**-0.5)


def test_models_of_other_parameters_are_refused():
    with pytest.raises(ConfigError, match=r"differ in 4\.bias"):
        mup.width_ratios(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), perceptron(2))
