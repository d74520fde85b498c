import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.nn.numerics import nf4
from steelyard.nn.numerics.bf16 import bf16_error_bound, to_bf16
from steelyard.nn.numerics.int4 import (
    GROUPS,
    pack_nibbles,
    quantize_int4,
    unpack_nibbles,
)
from steelyard.nn.numerics.int8 import quantize_int8
from steelyard.nn.numerics.nf4 import quantize_nf4

CODECS = {
    "int8": quantize_int8,
    **{f"int4 {group}": lambda x, group=group: quantize_int4(x, group=group) for group in GROUPS},
    "int4 with zeros": lambda x: quantize_int4(x, group=64, zero_points=True),
    "nf4": quantize_nf4,
}
each_codec = pytest.mark.parametrize("quantize", CODECS.values(), ids=CODECS)


@st.composite
def matrices(draw):
    """Values of any size, with rows and groups of zeros, of one value, of one sign."""
    rows, width = draw(st.integers(1, 5)), 2 * draw(st.integers(1, 140))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    values = torch.randn(rows, width, generator=generator) * 10.0 ** draw(st.integers(-30, 2))
    values[0] *= 10.0 ** torch.randint(-3, 1, (width,), generator=generator)
    kind = draw(st.sampled_from(["plain", "zeros", "constant", "positive", "tail"]))
    if kind == "zeros":
        values[:, : width // 2] = 0
    if kind == "constant":
        values[:] = values[0, 0]
    if kind == "positive":
        values = values.abs()
    if kind == "tail":
        values[:, -1] = values.abs().max() * 50
    return values


@each_codec
@settings(max_examples=60, deadline=None)
@given(values=matrices())
def test_what_comes_back_is_within_the_stated_bound(quantize, values):
    record = quantize(values)
    back = record.dequantize()
    assert back.shape == values.shape and back.dtype == torch.float32
    assert ((back - values).abs() <= record.error_bound()).all()
    assert (back[values == 0] == 0).all()


@settings(max_examples=60, deadline=None)
@given(values=matrices())
def test_bfloat16_is_within_its_bound(values):
    assert ((to_bf16(values).float() - values).abs() <= bf16_error_bound(values)).all()


def test_representable_values_come_back_exactly():
    codes = torch.arange(-127, 128).float().repeat(2, 1)
    for scale in (1.0, 0.25):
        assert torch.equal(quantize_int8(codes * scale).dequantize(), codes * scale)
    nibbles = torch.arange(-7, 8).float().repeat(3, 2)[:, :28]
    assert torch.equal(quantize_int4(nibbles * 0.5).dequantize(), nibbles * 0.5)
    levels = torch.arange(-3, 13).float().repeat(2, 2)
    assert torch.equal(quantize_int4(levels, zero_points=True).dequantize(), levels)
    table = torch.tensor(nf4.LEVELS).repeat(2, 1)
    assert torch.equal(quantize_nf4(table * 8).dequantize(), table * 8)
    assert torch.equal(to_bf16(levels).float(), levels)


def test_records_take_the_bytes_they_state():
    values = torch.randn(64, 256)
    assert quantize_int8(values).num_bytes == 64 * (256 + 4)
    for group in GROUPS:
        for zero_points in (False, True):
            record = quantize_int4(values, group=group, zero_points=zero_points)
            assert record.num_bytes == values.numel() * (0.5 + (2 + zero_points) / group)
    assert quantize_nf4(values, block=64).num_bytes == values.numel() * (0.5 + 4 / 64)


def test_zero_points_serve_values_of_one_sign_better():
    values = torch.rand(8, 128) + 1
    errors = [
        (quantize_int4(values, zero_points=found).dequantize() - values).abs().mean()
        for found in (False, True)
    ]
    assert errors[1] < 0.6 * errors[0]


@given(st.integers(1, 4), st.integers(1, 20))
def test_nibbles_come_back(rows, pairs):
    codes = torch.randint(0, 16, (rows, 2 * pairs), dtype=torch.uint8)
    assert torch.equal(unpack_nibbles(pack_nibbles(codes), 2 * pairs), codes)


@pytest.mark.parametrize("quantize", [*CODECS.values(), to_bf16], ids=[*CODECS, "bf16"])
@pytest.mark.parametrize(
    "bad",
    [
        torch.tensor([[1.0, float("nan")]]),
        torch.tensor([[float("inf"), 1.0]]),
        torch.ones(4),
        torch.ones(2, 2, dtype=torch.int64),
    ],
    ids=["nan", "inf", "one axis", "integers"],
)
def test_what_cannot_be_quantized_is_refused(quantize, bad):
    with pytest.raises(ConfigError):
        quantize(bad)


def test_bad_groups_and_widths_are_refused():
    with pytest.raises(ConfigError, match="group is 48"):
        quantize_int4(torch.ones(2, 96), group=48)
    with pytest.raises(ConfigError, match="33 weights"):
        quantize_int4(torch.ones(2, 33))
    with pytest.raises(ConfigError, match="33 weights"):
        quantize_nf4(torch.ones(2, 33))
    with pytest.raises(ConfigError, match="float16"):
        quantize_int4(torch.full((1, 32), 1e9))
    with pytest.raises(ConfigError, match="infinite numbers"):
        to_bf16(torch.tensor([[torch.finfo(torch.float32).max]]))
