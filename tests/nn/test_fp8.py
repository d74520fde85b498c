"""FP8 linear maps against the same arithmetic spelled out, their recipes, and the monitor."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn.fp8.convert import convert, fp8_layers
from steelyard.nn.fp8.hardware import scaled_product
from steelyard.nn.fp8.linear import FNUZ, OCP, Float8Linear, Formats
from steelyard.nn.fp8.monitor import Monitor
from steelyard.nn.fp8.native import compiled
from steelyard.nn.fp8.recipes import Amax, Block, ConstantBias, Delayed, PerRow
from steelyard.nn.fp8.scaled import quantize
from steelyard.nn.numerics.floats import E3M4, E4M3, E5M2
from steelyard.nn.numerics.fp8 import cast, decode, encode, scale_bias
from steelyard.nn.transformer import build

ROWS = 24
RECIPES = [Amax(), Amax(margin=1), Delayed(4), PerRow(), Block(16)]


@pytest.fixture(params=[False, True], ids=["torch", "native"])
def native(request, monkeypatch):
    """Both ways to round: PyTorch's operators, and the compiled kernels where there are any."""
    if request.param:
        if compiled() is None:
            pytest.skip("no compiler")
    else:
        monkeypatch.setattr("steelyard.nn.fp8.scaled.compiled", lambda: None)
    return request.param


def made(seed=0, *, bias=True):
    torch.manual_seed(seed)
    layer = nn.Linear(40, 32, bias=bias)
    with torch.no_grad():
        layer.weight.mul_(1e-3)
    return layer, torch.randn(ROWS, 40) * 1e3


def results(layer, x, scale=1e-6):
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x)
    (y.square().sum() * scale).backward()
    return y.detach(), x.grad, layer.weight.grad


def rounded(x, fmt, bias):
    """Scale, cast, unscale, in doubles."""
    scaled = x.double() * 2.0 ** bias.double()
    return cast(scaled.float(), fmt).double() * 2.0 ** -bias.double()


def whole(x, fmt):
    return rounded(x, fmt, scale_bias(x.abs().max(), fmt))


@pytest.mark.parametrize("formats", [OCP, FNUZ, Formats(weight=E5M2)], ids=["ocp", "fnuz", "e5"])
def test_the_three_products_are_those_of_cast_tensors(native, formats):
    layer, x = made()
    y, grad_x, grad_weight = results(Float8Linear(layer, Amax(), formats=formats), x)
    wide_x, wide_weight = whole(x, formats.input), whole(layer.weight.detach(), formats.weight)
    wanted = wide_x @ wide_weight.t() + layer.bias.detach().double()
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-6)
    gradient = whole(2e-6 * y, formats.gradient)
    torch.testing.assert_close(grad_x.double(), gradient @ wide_weight, rtol=1e-4, atol=1e-12)
    torch.testing.assert_close(grad_weight.double(), gradient.t() @ wide_x, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_every_recipe_stays_near_the_full_precision(native, recipe):
    layer, x = made()
    # Numbers that no format holds unscaled: gradients of 1e-9.
    plain = results(layer, x, scale=1e-9)
    found = results(Float8Linear(layer, recipe), x, scale=1e-9)
    for ours, theirs in zip(found, plain, strict=True):
        assert ((ours - theirs).norm() / theirs.norm()).item() < 0.08


def test_one_constant_serves_what_lies_in_its_range(native):
    layer, x = nn.Linear(40, 32), torch.randn(ROWS, 40)
    plain = results(layer, x, scale=1e-9)
    near, far = Float8Linear(layer, ConstantBias(4, 35)), Float8Linear(layer, ConstantBias(4))
    for ours, theirs in zip(results(near, x, scale=1e-9), plain, strict=True):
        assert ((ours - theirs).norm() / theirs.norm()).item() < 0.08
    # The same bias for gradients: all of them are below what E5M2 has.
    assert results(far, x, scale=1e-9)[1].abs().max() == 0


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_both_ways_to_round_agree_bit_for_bit(recipe, monkeypatch):
    if compiled() is None:
        pytest.skip("no compiler")
    layer, x = made()
    one = results(Float8Linear(layer, recipe), x)
    monkeypatch.setattr("steelyard.nn.fp8.scaled.compiled", lambda: None)
    other = results(Float8Linear(layer, recipe), x)
    for ours, theirs in zip(one, other, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("fmt", [E4M3, E5M2, E3M4], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantizing_with_biases_of_each_kind(native, fmt, dtype):
    x = (torch.randn(5, 37) * 10).to(dtype)
    for biases, group in (
        (torch.tensor([[-3]]), 37),
        (torch.arange(5)[:, None] - 2, 37),
        (torch.arange(15).view(5, 3) - 7, 16),
    ):
        record, numbers = quantize(x, fmt, biases.int(), group, torch.float32)
        spread = biases.repeat_interleave(group, 1)[:, :37] if biases.shape[1] > 1 else biases
        wanted = rounded(x, fmt, spread).float()
        assert torch.equal(record.dequantize(), wanted)
        assert torch.equal(record.numbers(torch.float32), numbers)
        assert torch.equal(record.numbers(torch.bfloat16).float(), numbers)
        scaled = x.float() * 2.0 ** spread.float()
        assert torch.equal(record.codes, encode(scaled.expand(5, 37), fmt))


@pytest.mark.parametrize("sign", [1, -1])
def test_large_biases_of_one_sign_are_unscaled(native, sign):
    torch.manual_seed(0)
    layer = nn.Linear(40, 32, bias=False)
    with torch.no_grad():
        layer.weight.mul_(10.0 ** (-18 * sign))
        x = torch.randn(ROWS, 40) * 10.0 ** (-18 * sign)
        wanted = x.double() @ layer.weight.double().t()
        found = Float8Linear(layer, Amax())(x).double()
    biases = [int(scale_bias(item.abs().max(), E4M3)) for item in (x, layer.weight.detach())]
    assert abs(sum(biases)) > 100
    assert ((found - wanted).norm() / wanted.norm()).item() < 0.05
    # Both biases at their bound: only what is smaller than float32 has is lost.
    with torch.no_grad():
        found = Float8Linear(layer, ConstantBias(126 * sign))(x)
    assert found.isfinite().all()


def test_hardware_products_of_odd_shapes_equal_the_emulation():
    x, weight = torch.randn(7, 37) * 100, torch.randn(19, 37) * 1e-3
    sides = []
    for item, fmt in ((x, E5M2), (weight, E4M3)):
        bias = scale_bias(item.abs().max(), fmt).view(1, 1)
        sides.append(quantize(item, fmt, bias, 37, torch.float32)[0])
    wanted = sides[0].dequantize() @ sides[1].dequantize().t()
    found = scaled_product(sides[0], sides[1], torch.float32)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_autocast_computes_in_its_type_and_keeps_master_gradients():
    layer, x = made()
    ours = Float8Linear(layer, Amax())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ours(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(y.float(), ours(x), rtol=0.02, atol=0.02)


def test_a_byte_per_input_is_kept_for_the_backward_pass():
    layer, x = made()
    kept = []

    def keep(tensor):
        kept.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        Float8Linear(layer, Amax())(x.requires_grad_())
    assert sum(kept) <= x.numel() + layer.weight.numel() + 8


def test_delayed_scaling_uses_what_it_saw_before():
    layer, x = made()
    model = nn.Sequential(layer, nn.Identity())
    convert(model, Delayed(history=2))
    with Monitor(model) as monitor:
        for factor in (1.0, 8.0, 8.0, 1.0, 1.0, 1.0):
            model(x * factor)
    first = scale_bias(x.abs().max(), E4M3).item()
    found = [record.bias - first for record in monitor.records if record.role == "input"]
    assert found == [0, 0, -3, -3, -3, 0]
    saturated = [item.saturated_fraction for item in monitor.records if item.role == "input"]
    assert saturated[1] > 0.1
    assert saturated[2:] == [0, 0, 0, 0]


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_no_rows_one_row_and_many_axes(native, recipe):
    layer, x = made()
    ours = Float8Linear(layer, recipe)
    y, grad_x, grad_weight = results(ours, x[:0])
    assert (y.shape, grad_x.shape) == ((0, 32), (0, 40))
    assert grad_weight.abs().max() == 0
    assert ours(x[0]).shape == (32,)
    assert ours(x.view(2, 3, 4, 40)).shape == (2, 3, 4, 32)


def test_a_copy_of_a_model_has_memories_of_its_own():
    layer, x = made()
    ours = Float8Linear(layer, Delayed())
    ours(x)
    other = copy.deepcopy(ours)
    other(x * 1e3)
    assert torch.equal(ours(x), Float8Linear(layer, Amax())(x))


def test_weights_are_cast_once_in_inference_until_they_change():
    layer, x = made()
    ours = Float8Linear(layer, Amax()).eval()
    casts = []
    ours.observer = lambda name, role, tensor, codes: casts.append(role)
    with torch.no_grad():
        first = ours(x)
        assert torch.equal(ours(x), first)
        assert casts.count("weight") == 1
        layer.weight.mul_(2)
        assert not torch.equal(ours(x), first)
    assert casts.count("weight") == 2
    ours(x)
    assert casts.count("weight") == 3


@pytest.mark.parametrize("recipe", [Amax(), Delayed(), PerRow(), Block(16)], ids=repr)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_named(recipe, value):
    layer, x = made()
    ours = Float8Linear(layer, recipe, name="layers.3.up")
    x[3, 5] = value
    with pytest.raises(ConfigError, match=r"layers\.3\.up\.input holds NaN or infinite"):
        ours(x)
    x[3, 5] = 0.0
    ours(x)
    with torch.no_grad():
        layer.weight[0, 0] = value
    with pytest.raises(ConfigError, match=r"layers\.3\.up\.weight"):
        ours(x)


def test_recipes_refuse_what_they_cannot_be():
    for make in (lambda: ConstantBias(127), lambda: Delayed(0), lambda: Block(0)):
        with pytest.raises(ConfigError, match="must be"):
            make()


def test_a_converted_model_keeps_parameters_names_and_head(llama):
    model = build(llama)
    before = {name: id(item) for name, item in model.named_parameters()}
    plain = model(torch.arange(20)[None])
    replaced = convert(model, Amax())
    assert {name: id(item) for name, item in model.named_parameters()} == before
    assert len(replaced) == 4 * llama.num_layers == len(fp8_layers(model))
    ours = model(torch.arange(20)[None])
    F.cross_entropy(ours[0], torch.arange(20)).backward()
    assert all(item.grad is not None for item in model.parameters())
    assert 0 < ((ours - plain).norm() / plain.norm()).item() < 0.2


def test_the_filter_and_a_recipe_by_name_decide(llama):
    model = build(llama)
    chosen = convert(
        model,
        lambda name: ConstantBias(4) if name.endswith("up") else Amax(),
        wanted=lambda name, module: name.endswith(("up", "down")),
    )
    assert len(chosen) == 2 * llama.num_layers
    assert {str(layer.recipe) for layer in fp8_layers(model)} == {
        str(ConstantBias(4)),
        str(Amax()),
    }
    with pytest.raises(ConfigError, match="no linear map"):
        convert(model, Amax(), wanted=lambda name, module: False)
    with pytest.raises(ConfigError, match="0 FP8 layers"):
        Monitor(nn.ReLU())


def test_the_monitor_counts_what_underflows_and_saturates():
    layer, x = made()
    model = nn.Sequential(layer)
    x[0, 0], x[0, 1] = 1e8, 0.0
    small = copy.deepcopy(layer.weight.detach())
    convert(model, ConstantBias(2, 30))
    with Monitor(model, every=2) as monitor:
        for _ in range(3):
            model(x).sum().backward()
            monitor.advance()
    assert {item.step for item in monitor.records} == {0, 2}
    assert [item.role for item in monitor.records[:3]] == ["input", "weight", "gradient"]
    inputs, weights, gradients = monitor.records[:3]
    beyond = ((x.abs() * 4 > 448).sum() / (x != 0).sum()).item()
    assert inputs.saturated_fraction == pytest.approx(beyond)
    flushed = (decode(encode(small * 4, E4M3), E4M3) == 0) & (small != 0)
    assert weights.underflow_fraction == pytest.approx(flushed.float().mean().item())
    assert gradients.amax == 1.0
    assert monitor.biases("0", "input") == {2: 2}
    # A weight of E4M3 has four bits of significand, so its noise lies some 31 dB below.
    with Monitor(nn.Sequential(Float8Linear(layer, Amax(), name="0"))) as other:
        other._layers[0](torch.ones(1, 40))
    assert 28 < other.records[1].sqnr_db < 36
    model(x)
    assert len(monitor.records) == 6
