import ctypes
import shutil

import pytest
import torch
from torch.nn import functional as F

from steelyard.errors import BackendError
from steelyard.nn.numerics.int4 import GROUPS, quantize_int4
from steelyard.nn.numerics.int8 import quantize_int8
from steelyard.serve.running import linear
from steelyard.serve.running.linear import PackedLinear, can_pack
from steelyard.serve.running.native.library import Team, capped_products, compiled_library
from steelyard.serve.running.native.packing import PackedWeight, padded

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
KINDS = {
    "fp32": {"kind": "fp32"},
    "bf16": {"kind": "bf16"},
    "int8": {"kind": "int8"},
    **{f"int4-{group}": {"kind": "int4", "group": group} for group in GROUPS},
    "int4-zeros": {"kind": "int4", "group": 64, "zero_points": True},
}
SHAPES = ((16, 8), (40, 264), (129, 600), (33, 2200))
LEVELS = {"whole": 3, "no bfloat16 products": 2, "AVX2": 1, "by no name": 0}


def weight_as_kept(weight, kind, **options):
    if kind == "fp32":
        return weight
    if kind == "bf16":
        return weight.to(torch.bfloat16).float()
    if kind == "int8":
        return quantize_int8(weight).dequantize()
    return quantize_int4(weight, **options).dequantize()


def rows_as_read(rows, kind):
    if kind == "fp32":
        return rows
    return rows.to(torch.bfloat16).float() if kind == "bf16" else quantize_int8(rows).dequantize()


def multiply(library, team, packed, rows, start=None):
    """Rows times a packed weight, added to `start` if there is one."""
    width = padded(packed.map.outputs)
    out = torch.full((len(rows), width), torch.nan) if start is None else start.clone()
    tiles = torch.empty(library.steelyard_tile_words(*rows.shape), dtype=torch.int32)
    library.steelyard_linear(
        team.address,
        rows.data_ptr(),
        rows.shape[1],
        len(rows),
        ctypes.addressof(packed.map),
        out.data_ptr(),
        width,
        start is not None,
        tiles.data_ptr(),
    )
    return out


@pytest.fixture(scope="module", params=LEVELS.values(), ids=LEVELS)
def library(request):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    return capped_products(request.param)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_products_equal_those_of_the_dequantized_weights(library, options):
    generator = torch.Generator().manual_seed(0)
    team = Team(library, 2)
    for outputs, inputs in SHAPES:
        weight = torch.randn(outputs, inputs, generator=generator)
        bias = torch.randn(outputs, generator=generator)
        rows = torch.randn(70, inputs, generator=generator)
        rows[3] = 0
        packed = PackedWeight(library, weight, bias, **options)
        kept, read = weight_as_kept(weight, **options), rows_as_read(rows, options["kind"])
        expected = F.linear(read.double(), kept.double(), bias.double())
        sizes = read.abs().double() @ kept.abs().double().T + bias.abs()
        found = multiply(library, team, packed, rows)
        # Float32 sums of K terms in some order; a few units in the last place of their sizes.
        assert ((found[:, :outputs] - expected).abs() <= 2e-6 * sizes).all()
        added = multiply(library, team, packed, rows, start=torch.ones(70, padded(outputs)))
        assert ((added[:, :outputs] - expected - 1).abs() <= 2e-6 * (sizes + 1)).all()


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_products_of_a_row_are_the_same_bits_in_any_batch(library, options):
    generator = torch.Generator().manual_seed(0)
    teams = Team(library, 1), Team(library, 2)
    for outputs, inputs in SHAPES:
        weight = torch.randn(outputs, inputs, generator=generator)
        packed = PackedWeight(library, weight, torch.ones(outputs), **options)
        rows = torch.randn(200, inputs, generator=generator)
        whole = multiply(library, teams[1], packed, rows)[:, :outputs]
        for count in (1, 2, 3, 4, 5, 7, 9, 13, 17, 21, 25, 50):
            found = multiply(library, teams[count % 2], packed, rows[:count])[:, :outputs]
            assert torch.equal(found, whole[:count])


@needs_compiler
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_narrower_processors_give_the_same_numbers_for_integers(kind):
    weight, rows = torch.randn(48, 520), torch.randn(11, 520)
    found = []
    for level in LEVELS.values():
        library = capped_products(level)
        packed = PackedWeight(library, weight, None, kind)
        found.append(multiply(library, Team(library, 1), packed, rows))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-5)


@needs_compiler
def test_packed_weights_take_the_bytes_of_their_type():
    from steelyard.cost.weights import WEIGHT_TYPES

    library = compiled_library()
    for kind in ("fp32", "bf16", "int8", "int4"):
        packed = PackedWeight(library, torch.randn(256, 2048), None, kind)
        each = packed.num_bytes / (256 * 2048)
        assert each == pytest.approx(WEIGHT_TYPES[kind].bytes_per_weight, rel=2e-3)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8", "int4"])
def test_pytorchs_packed_products_equal_those_of_the_dequantized_weights(kind):
    if not can_pack(kind):
        pytest.skip("this PyTorch has none here")
    weight, bias, rows = torch.randn(48, 96), torch.randn(48), torch.randn(3, 17, 96)
    kept = weight_as_kept(weight, kind, **({"group": 32} if kind == "int4" else {}))
    expected = F.linear(rows, kept, bias)
    # PyTorch rounds rows, results and scales to bfloat16, so only the order of size is stated.
    tolerance = 1e-5 if kind == "fp32" else 0.02
    for some in (rows, rows[:, :2]):
        found = PackedLinear(weight, bias, kind)(some)
        assert found.shape == (3, some.shape[1], 48) and found.dtype == torch.float32
        wanted = expected[:, : some.shape[1]]
        assert (found - wanted).abs().max() < tolerance * wanted.abs().max()


def test_a_type_without_products_is_refused(monkeypatch):
    monkeypatch.setattr(linear, "can_pack", lambda kind: False)
    with pytest.raises(BackendError, match="no products with int4"):
        linear.require_packing("int4")
