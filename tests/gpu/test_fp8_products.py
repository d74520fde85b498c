"""FP8 products on a GPU that has them, against the emulation on the CPU."""

import copy

import pytest
import torch
from torch import nn

from steelyard.nn.fp8.convert import convert
from steelyard.nn.fp8.hardware import multiplies_codes
from steelyard.nn.fp8.recipes import Amax, Block
from steelyard.nn.fp8.scaled import quantize
from steelyard.nn.numerics.floats import E4M3, E5M2
from steelyard.nn.numerics.fp8 import scale_bias


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [Amax(), Block(32)], ids=repr)
@pytest.mark.parametrize("rows", [64, 37])
def test_a_layer_computes_what_the_cpu_emulates(recipe, rows):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(96, 80), nn.GELU(), nn.Linear(80, 48)).bfloat16()
    convert(plain, recipe)
    x = torch.randn(rows, 96).bfloat16()
    found = []
    for device in ("cpu", "cuda"):
        model = copy.deepcopy(plain).to(device)
        given = x.to(device).requires_grad_()
        y = model(given)
        y.float().square().mean().backward()
        found.append([y, given.grad, *(item.grad for item in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        difference = (ours.float() - theirs.cpu().float()).norm() / ours.float().norm()
        assert difference.item() < 0.03


@pytest.mark.gpu
def test_hopper_multiplies_codes_of_one_bias():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8 products")
    x = torch.randn(32, 64, device="cuda")
    e4, e5 = (
        quantize(x, fmt, scale_bias(x.abs().max(), fmt).view(1, 1), 64, torch.bfloat16)[0]
        for fmt in (E4M3, E5M2)
    )
    assert multiplies_codes(e4, e4)
    assert multiplies_codes(e5, e4)
    assert not multiplies_codes(e5, e5)
