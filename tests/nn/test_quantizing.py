"""Quantizers against slow references, and folders against what they were made from."""

import dataclasses

import pytest
import torch

from steelyard.errors import ConfigError
from steelyard.files import read_json
from steelyard.nn import checkpoint
from steelyard.nn.layer import DecoderLayer
from steelyard.nn.numerics.int4 import Int4Groups, quantize_int4, round_int4
from steelyard.nn.numerics.int4_scales import best_scales
from steelyard.nn.numerics.int8 import Int8Rows, quantize_int8
from steelyard.nn.quantizing.awq import protect
from steelyard.nn.quantizing.folder import write_quantized
from steelyard.nn.quantizing.gptq import gptq_int4
from steelyard.nn.quantizing.layer import (
    MATRICES,
    LayerRecipe,
    StoredType,
    group_of,
    quantize_layer,
)
from steelyard.nn.quantizing.moments import input_moments
from steelyard.nn.quantizing.sensitivity import measure_sensitivity
from steelyard.nn.quantizing.stack import Passage, StackRecipe, quantize_stack, uniform
from steelyard.nn.quantizing.states import HiddenStates, matrix_of, wide_layer
from steelyard.nn.transformer import build

from .conftest import LLAMA, VARIANTS

torch.set_num_threads(1)

SMALL = dataclasses.replace(
    LLAMA, hidden_size=64, num_layers=2, num_heads=4, head_dim=16, intermediate_size=96
)
HELD = {"held": Passage(rows=slice(6, 8))}


def drawn(*shape, seed=0, spread=0.0):
    """Normal values whose columns differ in size by up to e^spread both ways."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp(spread * torch.randn(shape[-1], generator=generator))
    return torch.randn(*shape, generator=generator) * sizes


def tokens_of(arch, seed=0):
    return torch.randint(0, arch.vocab_size, (8, 40), generator=torch.Generator().manual_seed(seed))


def trained_like(arch, dtype=torch.float32):
    """A model whose gains and biases differ, with channels of unequal size."""
    model = build(arch, dtype=dtype).eval()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            if parameter.ndim == 1:
                parameter.add_(0.3 * drawn(len(parameter), seed=place).to(dtype))
    return model


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_searched_scales_are_near_the_best_of_a_fine_grid(zero_points, dtype):
    weights = drawn(6, 96, spread=0.3)
    importance = torch.rand(96, generator=torch.Generator().manual_seed(1)) + 0.1

    def error(scales, zeros):
        back = round_int4(weights, scales, zeros, group=32).dequantize()
        return (importance * (back - weights).square()).unflatten(1, (3, 32)).sum(-1)

    scales, zeros = best_scales(
        weights, group=32, zero_points=zero_points, importance=importance, dtype=dtype
    )
    assert scales.dtype == dtype and (zeros is None) != zero_points
    found = error(scales, zeros)
    plain = quantize_int4(weights, group=32, zero_points=zero_points)
    assert (found <= error(plain.scales, plain.zeros) * 1.02).all()
    # Every scale of a grid of 200, of both signs, each with the zero points that were found.
    largest = weights.abs().unflatten(1, (3, 32)).amax(-1)
    grid = [(largest * step / 600).to(dtype) for step in range(20, 220)]
    best = torch.stack([error(s, zeros) for one in grid for s in (one, -one)]).amin(0)
    assert found.sum() <= 1.06 * best.sum()


def test_a_searched_scale_takes_groups_of_zeros_and_uneven_last_groups():
    weights = drawn(2, 80)
    weights[:, :32] = 0
    scales, _ = best_scales(weights, group=32)
    assert scales.shape == (2, 3)
    back = round_int4(weights, scales, None, group=32).dequantize()
    assert (back[:, :32] == 0).all() and (back - weights).abs().max() < 0.5


def gptq_slowly(weights, hessian, scales, zeros, group):
    """One column after another with the inverse Hessian itself, as equations 2 and 3 say.

    Source: Frantar et al. 2022 (arXiv 2210.17323), section 3; Frantar and Alistarh 2022 (arXiv
    2208.11580), lemma 1 (the inverse after a column is done).
    """
    left = weights.double().clone()
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(len(hessian))
    inverse = torch.linalg.inv(damped.double())
    result = torch.zeros_like(left)
    for column in range(weights.shape[1]):
        scale = scales[:, column // group].double()
        zero = 8.0 if zeros is None else zeros[:, column // group].double()
        code = (left[:, column] / scale + zero).round().clamp(0, 15)
        result[:, column] = (code - zero) * scale
        lost = (left[:, column] - result[:, column]) / inverse[column, column]
        left -= lost[:, None] * inverse[column]
        row = inverse[column].clone()
        inverse -= torch.outer(row, row) / row[column]
        inverse[column, column] = 1.0  # done
    return result.float()


@pytest.mark.parametrize("zero_points", [False, True])
def test_gptq_is_the_column_by_column_rule(zero_points):
    weights, inputs = drawn(5, 192), drawn(400, 192, seed=1, spread=0.5)
    # Falling sizes, so that the order by activation is the order of columns.
    inputs *= torch.linspace(4, 1, 192) / inputs.square().mean(0).sqrt()
    inputs += 0.8 * inputs.roll(1, 1)
    inputs *= torch.linspace(4, 1, 192) / inputs.square().mean(0).sqrt()
    hessian = inputs.T @ inputs / len(inputs)
    record = gptq_int4(weights, hessian, group=64, zero_points=zero_points)
    slow = gptq_slowly(weights, hessian, record.scales, record.zeros, 64)
    same = record.dequantize() == slow
    # Ties and rounding of float32 may send a weight to the next level, and what follows with it.
    assert same.float().mean() > 0.98

    def lost(back):
        return (inputs @ (back - weights).T).square().mean()

    nearest = round_int4(weights, record.scales, record.zeros, group=64).dequantize()
    assert lost(record.dequantize()) < 0.6 * lost(nearest)


def test_gptq_takes_dead_inputs_and_few_activations_and_refuses_nan():
    weights, inputs = drawn(4, 64), drawn(10, 64)
    inputs[:, 5] = 0
    back = gptq_int4(weights, inputs.T @ inputs, group=32).dequantize()
    assert torch.isfinite(back).all() and (back[:, 5] == 0).all()
    with pytest.raises(ConfigError, match="not finite"):
        gptq_int4(weights, torch.full((64, 64), float("nan")), group=32)


PROTECTED = ["llama", "qwen2", "qwen3", "gemma", "olmo2", "granite", "gpt2", "opt"]


@pytest.mark.parametrize("name", PROTECTED)
@torch.no_grad()
def test_protected_channels_leave_the_layer_as_it_was(name):
    arch = VARIANTS[name]
    model = trained_like(arch)
    states = HiddenStates(model, tokens_of(arch))
    layer = wide_layer(model, 0)
    moments = input_moments(layer, states, slice(0, 6), MATRICES)
    expected = []
    states.run(layer, slice(None), lambda _, hidden: expected.append(hidden))

    def coarse(weights, importance):
        del importance
        return quantize_int4(weights, group=32).dequantize()

    before = {key: item.clone() for key, item in layer.named_parameters()}
    protect(layer, moments, coarse, torch.float32)
    found = []
    states.run(layer, slice(None), lambda _, hidden: found.append(hidden))
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(before[key], item) for key, item in layer.named_parameters())


@torch.no_grad()
def test_moments_are_those_of_what_enters_a_matrix():
    model = trained_like(SMALL)
    tokens = tokens_of(SMALL)
    states = HiddenStates(model, tokens)
    layer = wide_layer(model, 0)
    moments = input_moments(layer, states, slice(0, 3), ["qkv"])["qkv"]
    assert layer.attention_norm is not None
    inputs = layer.attention_norm(model.embedding(tokens[:3])).flatten(0, 1)
    torch.testing.assert_close(moments.hessian, inputs.T @ inputs / len(inputs))
    torch.testing.assert_close(moments.mean_size, inputs.abs().mean(0))


@torch.no_grad()
def test_states_pass_a_model_as_its_own_forward_does():
    for name in ("llama", "gemma", "opt"):
        model = trained_like(VARIANTS[name])
        tokens = tokens_of(VARIANTS[name])
        states = HiddenStates(model, tokens)
        for index in range(len(model.layers)):
            states.advance(wide_layer(model, index))
        logits = model(tokens)[:, 9:-1]
        expected = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), tokens[:, 10:], reduction="none"
        ).mean(1)
        torch.testing.assert_close(states.losses(10).float(), expected)


MIXED: tuple[dict[str, StoredType], ...] = (
    {"qkv": "int4", "out": "int8", "up": "plain", "down": "int4"},
    {"qkv": "int8", "out": "plain", "up": "int4", "down": "int8"},
)
RECIPES = {
    "int4 gptq": (uniform(2, "int4"), False, "gptq"),
    "int4 with zeros": (uniform(2, "int4"), True, "awq+gptq"),
    "int8": (uniform(2, "int8"), False, "nearest"),
    "mixed": (MIXED, False, "awq"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", RECIPES)
@torch.no_grad()
def test_a_written_folder_reads_back_as_it_was_measured(name, dtype, tmp_path):
    types, zero_points, method = RECIPES[name]
    checkpoint.save(trained_like(SMALL, dtype), tmp_path / "source")
    (tmp_path / "source" / "tokenizer.json").write_text("{}")
    model = checkpoint.load(tmp_path / "source", dtype=None)
    tokens = tokens_of(SMALL)
    recipe = StackRecipe(types=types, group=128, zero_points=zero_points)
    asked = {"tokens": tokens, "calibration": slice(0, 6), "passages": HELD}
    losses = quantize_stack(model, "llama", recipe, (method,), tmp_path / "stage", **asked)
    config = read_json(tmp_path / "source" / "config.json")
    layers = (tmp_path / "stage", method)
    total = write_quantized(
        model, config, tmp_path / "source", recipe, layers, tmp_path / "quantized"
    )
    loaded = checkpoint.load(tmp_path / "quantized")
    found = torch.nn.functional.cross_entropy(
        loaded(tokens[6:])[:, :-1].transpose(1, 2), tokens[6:, 1:], reduction="none"
    ).mean(1)
    torch.testing.assert_close(found, losses[method]["held"].float(), rtol=1e-5, atol=1e-5)
    assert total < 0.8 * sum(item.nbytes for item in model.parameters())
    assert (tmp_path / "quantized" / "tokenizer.json").exists()
    # A run that goes on from finished layers finds the same.
    again = quantize_stack(model, "llama", recipe, (method,), tmp_path / "stage", **asked)
    assert torch.equal(again[method]["held"], losses[method]["held"])


@torch.no_grad()
def test_the_codes_of_a_layer_are_those_that_were_chosen():
    model = trained_like(SMALL)
    states = HiddenStates(model, tokens_of(SMALL))
    layer = wide_layer(model, 0)
    assert isinstance(layer, DecoderLayer)
    plain = {name: matrix_of(layer, name).clone() for name in MATRICES}
    recipe = LayerRecipe(
        types=MIXED[0], method="gptq", group=128, zero_points=False, dtype=torch.float32
    )
    codes = quantize_layer(layer, recipe, states, slice(0, 6))
    assert codes.keys() == {"qkv", "out", "down"}
    qkv, out, down = (codes[name] for name in ("qkv", "out", "down"))
    assert isinstance(qkv, Int4Groups) and isinstance(down, Int4Groups)
    assert qkv.group == 64 and down.group == 32
    assert isinstance(out, Int8Rows)
    assert torch.equal(out.codes, quantize_int8(plain["out"]).codes)
    assert torch.equal(layer.up.weight, plain["up"])
    assert group_of(48, 128) == 0 and group_of(4096, 128) == 128 and group_of(4096, 32) == 32


@torch.no_grad()
def test_sensitivity_is_the_loss_of_the_model_with_one_matrix_rounded():
    model = trained_like(SMALL)
    tokens = tokens_of(SMALL)
    recipe = LayerRecipe(
        types={}, method="nearest", group=64, zero_points=False, dtype=torch.float32
    )
    choice = Passage(rows=slice(2, 8))
    found = measure_sensitivity(
        model, recipe, tokens=tokens, calibration=slice(0, 0), choice=choice
    )
    assert len(found) == 2 * len(MATRICES) * 3

    def loss():
        logits = model(tokens[2:8])[:, :-1]
        return torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), tokens[2:8, 1:], reduction="none"
        ).mean(1)

    before = loss()
    for item in found:
        matrix = matrix_of(model.layers[item.layer], item.matrix)
        kept = matrix.clone()
        if item.kind == "int8":
            matrix.copy_(quantize_int8(matrix).dequantize())
        if item.kind == "int4":
            group = group_of(matrix.shape[1], 64)
            scales, zeros = best_scales(matrix, group=group)
            matrix.copy_(round_int4(matrix, scales, zeros, group=group).dequantize())
        torch.testing.assert_close(
            item.losses.float(), (loss() - before).float(), rtol=1e-3, atol=1e-5
        )
        bits = {"int4": 4 + 16 / group_of(matrix.shape[1], 64), "plain": 32}.get(item.kind)
        expected = matrix.numel() * bits / 8 if bits else matrix.numel() + 4 * len(matrix)
        assert item.num_bytes == expected
        matrix.copy_(kept)
