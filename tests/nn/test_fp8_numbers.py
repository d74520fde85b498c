"""Formats of eight bits and fewer: bit for bit PyTorch's, and the slow obvious version."""

import numpy as np
import pytest
import torch

from steelyard.errors import ConfigError
from steelyard.nn.numerics.floats import (
    E2M1,
    E3M4,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    decode_table,
)
from steelyard.nn.numerics.fp8 import cast, decode, encode, scale_bias

EIGHT_BITS = [E4M3, E5M2, E4M3FNUZ, E5M2FNUZ]
FORMATS = [*EIGHT_BITS, E3M4, E2M1]
EVERY_BF16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def named(fmt):
    return fmt.name


@pytest.mark.parametrize("fmt", EIGHT_BITS, ids=named)
def test_casts_of_every_bfloat16_equal_pytorchs_bit_for_bit(fmt):
    saturates = bool(torch.tensor(torch.inf).to(fmt.torch_dtype).float().isfinite())
    theirs = EVERY_BF16.to(fmt.torch_dtype).view(torch.uint8)
    assert torch.equal(encode(EVERY_BF16, fmt, saturate=saturates), theirs)
    within = EVERY_BF16.float().clamp(-fmt.max, fmt.max).to(fmt.torch_dtype).view(torch.uint8)
    assert torch.equal(encode(EVERY_BF16, fmt), within)


@pytest.mark.parametrize("fmt", EIGHT_BITS, ids=named)
def test_tables_equal_pytorchs(fmt):
    codes = torch.arange(256).to(torch.uint8)
    theirs = codes.view(fmt.torch_dtype).float()
    assert torch.equal(decode_table(fmt).nan_to_num(-9.0), theirs.nan_to_num(-9.0))
    assert torch.equal(decode(codes, fmt).signbit()[theirs == 0], theirs.signbit()[theirs == 0])


@pytest.mark.parametrize("fmt", EIGHT_BITS, ids=named)
def test_limits_are_those_of_pytorch(fmt):
    info = torch.finfo(fmt.torch_dtype)
    assert (fmt.max, fmt.min_normal) == (info.max, info.smallest_normal)
    assert fmt.min_subnormal == fmt.min_normal * 2.0**-fmt.mantissa_bits


def test_limits_of_the_other_formats():
    assert (E3M4.max, E3M4.min_normal, E3M4.torch_dtype) == (15.5, 0.25, None)
    assert decode_table(E2M1)[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.parametrize("fmt", FORMATS, ids=named)
def test_rounding_finds_the_nearest_number_and_the_even_code_at_ties(fmt):
    table = decode_table(fmt)[: fmt.max_code + 1].double().numpy()
    ties = (table[1:] + table[:-1]) / 2
    drawn = np.random.default_rng(0).uniform(0, fmt.max * 1.1, 2000)
    values = np.concatenate([table, ties, np.nextafter(ties, 0), drawn]).astype(np.float32)
    found = encode(torch.from_numpy(values), fmt).numpy()
    distances = np.abs(values[:, None].astype(np.float64) - table)
    for code, distance in zip(found, distances, strict=True):
        nearest = np.flatnonzero(distance == distance.min())
        assert code in nearest
        assert len(nearest) == 1 or code % 2 == 0


@pytest.mark.parametrize("fmt", FORMATS, ids=named)
def test_codes_come_back_from_their_numbers(fmt):
    codes = torch.arange(2 ** (fmt.size_bits + 1)).to(torch.uint8)
    finite = codes[decode(codes, fmt).isfinite()]
    assert torch.equal(encode(decode(finite, fmt), fmt), finite)


@pytest.mark.parametrize("fmt", FORMATS, ids=named)
def test_stochastic_rounding_keeps_the_mean(fmt):
    generator = torch.Generator().manual_seed(0)
    low, high = decode_table(fmt)[[1, 2]].tolist()
    value = low + 0.3 * (high - low)
    drawn = cast(torch.full((20000,), -value), fmt, rounding="stochastic", generator=generator)
    assert set(drawn.tolist()) == {-low, -high}
    assert drawn.mean().item() == pytest.approx(-value, rel=0.02)
    exact = decode_table(fmt)[: fmt.max_code + 1]
    assert torch.equal(cast(exact, fmt, rounding="stochastic"), exact)


def test_what_lies_beyond_becomes_what_was_asked():
    beyond = torch.tensor([1e30, -torch.inf])
    assert cast(beyond, E5M2).tolist() == [57344, -57344]
    assert cast(beyond, E5M2, saturate=False).tolist() == [torch.inf, -torch.inf]
    assert cast(beyond, E4M3, saturate=False).isnan().all()
    assert cast(torch.tensor([torch.nan]), E4M3).isnan().all()
    with pytest.raises(ConfigError, match="no code for NaN"):
        cast(torch.tensor([torch.nan]), E2M1)
    with pytest.raises(ConfigError, match=r"cannot cast torch\.int64"):
        cast(torch.tensor([1]), E4M3)


@pytest.mark.parametrize("fmt", FORMATS, ids=named)
def test_scaling_bias_is_the_floor_of_the_logarithm(fmt):
    amax = torch.tensor([*np.geomspace(1e-30, 1e30, 97), fmt.max, 0.5, 1.0], dtype=torch.float32)
    amax = torch.cat([amax, torch.nextafter(amax, torch.tensor(torch.inf))])
    for value, bias in zip(amax.tolist(), scale_bias(amax, fmt).tolist(), strict=True):
        # Doubles hold these products exactly.
        assert value * 2.0**bias <= fmt.max < value * 2.0 ** (bias + 1)


def test_scaling_biases_of_nothing_of_extremes_and_with_a_margin():
    amax = torch.tensor([0.0, 1e-45, 3e38, 1.0])
    assert scale_bias(amax, E4M3).tolist() == [0, 126, -120, 8]
    assert scale_bias(amax, E4M3, margin=2).tolist() == [0, 126, -122, 6]
