"""Weights of one byte, the kernel that reads them, and the search for constants."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn.fp8.convert import convert, fp8_layers
from steelyard.nn.fp8.native import compiled, native_gemv
from steelyard.nn.fp8.precision import bias_interval, choose_precision
from steelyard.nn.fp8.recipes import Amax, ConstantBias
from steelyard.nn.fp8.weights import Float8Weights, compress_weights, quantize_weights
from steelyard.nn.numerics.floats import E4M3, E4M3FNUZ, E5M2
from steelyard.nn.numerics.fp8 import decode
from steelyard.nn.transformer import build


@pytest.mark.parametrize("fmt", [E4M3, E4M3FNUZ], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 63), (9, 64), (5, 1000), (600, 512)])
def test_the_kernel_multiplies_every_code(fmt, rows, columns):
    library = compiled()
    if library is None:
        pytest.skip("no compiler")
    numbers = torch.arange(3, rows * columns + 3) % 256
    codes = torch.where((numbers % 128 == 127) | (numbers == 128), 1, numbers)
    codes = codes.to(torch.uint8).view(rows, columns)
    x = torch.randn(columns)
    found = native_gemv(library, codes, fmt, x)
    wanted = decode(codes, fmt).double() @ x.double()
    scale = decode(codes, fmt).double().abs() @ x.double().abs()
    assert ((found - wanted).abs() / scale).max().item() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fmt", [E4M3, E4M3FNUZ], ids=lambda fmt: fmt.name)
def test_few_and_many_rows_give_what_decoded_weights_do(fmt, dtype, monkeypatch):
    inner = nn.Linear(100, 70).to(dtype)
    layer = Float8Weights(inner, fmt)
    x = torch.randn(2, 3, 100).to(dtype)
    wanted = F.linear(x.float(), layer.record.dequantize(), inner.bias.float())
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    with torch.no_grad():
        many, few = layer(x), layer(x[0])
        monkeypatch.setattr("steelyard.nn.fp8.weights.compiled", lambda: None)
        plain = layer(x[0])
    assert many.dtype == dtype
    for found, item in ((many, wanted), (few, wanted[0]), (plain, wanted[0])):
        torch.testing.assert_close(found.float(), item, rtol=tolerance, atol=tolerance)
    assert layer(x[:, :0]).shape == (2, 0, 70)


def test_weights_take_half_the_bytes_and_come_back_close(llama):
    model = build(llama).eval()
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        plain = model(tokens)
        before, after = compress_weights(model)
        found = model(tokens)
    assert 0.5 < after / before < 0.51
    assert ((found - plain).norm() / plain.norm()).item() < 0.1
    names = [name for name, _ in model.named_buffers()]
    assert "layers.0.qkv.codes" in names
    record = quantize_weights(torch.randn(64, 64))
    assert record.num_bytes == 64 * 64 + 1


def test_weights_that_cannot_be_rounded_are_refused():
    with pytest.raises(ConfigError, match="weights in e5m2"):
        quantize_weights(torch.randn(2, 2), E5M2)
    with pytest.raises(ConfigError, match="infinite numbers or NaN"):
        quantize_weights(torch.full((2, 2), torch.nan))
    assert quantize_weights(torch.zeros(3, 4)).dequantize().eq(0).all()


def outlier_model():
    """A model in which one layer's weights and inputs lie far from the others'."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(module for _ in range(3) for module in (nn.Linear(32, 32), nn.Tanh())), nn.Linear(32, 5)
    )
    with torch.no_grad():
        model[2].weight.mul_(2.0**-9)
        model[2].bias.mul_(2.0**-9)
        model[4].weight.mul_(2.0**9)
    return model


def fidelity(reference, x):
    return lambda model: math.exp(-(model(x) - reference).norm().item() / reference.norm().item())


def test_the_interval_of_constants_and_the_layers_that_need_more_are_found():
    model, x = outlier_model(), torch.randn(64, 32)
    with torch.no_grad():
        reference = model(x)
    evaluate = fidelity(reference, x)
    choice = choose_precision(model, evaluate, biases=range(-10, 20), share=0.95)
    assert choice.reference == 1.0
    assert choice.needs_amax
    assert {"2", "4"} & set(choice.needs_amax)
    assert choice.mixed > max(choice.constants.values()) or choice.mixed > 0.95
    assert choice.amax > 0.95
    # 6 is the head's place in the stack: its name does not tell, so it is cast as well.
    assert choice.weight_bytes == (2 * (3 * 1024 + 160), 3 * 1024 + 160 + 4)
    assert fp8_layers(model) == []
    assert model.training
    convert(model, choice.recipe)
    assert {str(layer.recipe) for layer in fp8_layers(model)} <= {
        str(Amax()), str(ConstantBias(choice.bias)),
    }  # fmt: skip


def test_a_model_of_even_sizes_needs_one_constant():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))
    x = torch.randn(64, 32)
    choice = choose_precision(
        model, fidelity(model(x).detach(), x), biases=range(-12, 20), share=0.95
    )
    assert choice.interval is not None
    first, last = choice.interval
    assert choice.needs_amax == ()
    assert last - first >= 3
    assert choice.constants[first - 1] < 0.95 > choice.constants[last + 1]


def test_intervals_are_the_longest_runs_above_the_bar():
    metrics = {-2: 1.0, -1: 0.9, 0: 1.0, 1: math.nan, 3: 1.0, 4: 1.0, 5: 1.0}
    assert bias_interval(metrics, 0.95) == (3, 5)
    assert bias_interval(metrics, 2.0) is None
    with pytest.raises(ConfigError, match="0 constants to try"):
        choose_precision(outlier_model(), lambda model: 1.0, biases=[])
    with pytest.raises(ConfigError, match="a metric of 0"):
        choose_precision(outlier_model(), lambda model: 0.0)
