"""Products over what files hold, blocks and float16, equal those of their numbers."""

import shutil

import pytest
import torch
from tests.nn.gguf_files import Kind, random_blocks
from tests.serve.test_products import LEVELS, multiply
from torch.nn import functional as F

from steelyard.nn.gguf.blocks import block_codes
from steelyard.nn.gguf.kinds import KINDS
from steelyard.nn.numerics.blocks import joined_blocks
from steelyard.nn.numerics.int8 import quantize_int8
from steelyard.nn.stored import StoredLinear, StoredMatrix
from steelyard.serve.running.native.library import Team, capped_products
from steelyard.serve.running.native.packing import PackedWeight, padded

TYPES = [Kind.Q4_1, Kind.Q5_0, Kind.Q8_0, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]
SHAPES = ((16, 256), (40, 768))


@pytest.fixture(scope="module", params=LEVELS.values(), ids=LEVELS)
def library(request):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    return capped_products(request.param)


def blocks(kind, outputs, inputs):
    raw = random_blocks((outputs, inputs), kind, seed=outputs)
    return block_codes(torch.from_numpy(raw), KINDS[int(kind)])


def records(outputs, inputs):
    """A record of each type, and of types side by side."""
    made = {kind.name: blocks(kind, outputs, inputs) for kind in TYPES}
    both = [blocks(kind, outputs // 2, inputs) for kind in (Kind.Q4_K, Kind.Q6_K)]
    return made | {"both": joined_blocks(both)}


def test_products_of_blocks_equal_those_of_their_numbers(library):
    generator, team = torch.Generator().manual_seed(0), Team(library, 2)
    for outputs, inputs in SHAPES:
        for name, record in records(outputs, inputs).items():
            bias = torch.randn(outputs, generator=generator)
            rows = torch.randn(27, inputs, generator=generator)
            rows[3] = 0
            packed = PackedWeight(library, record, bias, "int8")
            codes, kept = quantize_int8(rows), record.dequantize().double()
            read = codes.dequantize().double()
            expected = F.linear(read, kept, bias.double())
            sizes = read.abs() @ kept.abs().T + bias.abs()
            found = multiply(library, team, packed, rows)
            assert ((found[:, :outputs] - expected).abs() <= 2e-6 * sizes).all(), name
            added = multiply(library, team, packed, rows, start=torch.ones(27, padded(outputs)))
            assert ((added[:, :outputs] - expected - 1).abs() <= 2e-6 * (sizes + 1)).all(), name
            for count in (1, 2, 5, 7, 13):
                some = multiply(library, Team(library, 1 + count % 2), packed, rows[:count])
                assert torch.equal(some[:, :outputs], found[:count, :outputs]), name
            assert packed.num_bytes <= 1.05 * record.num_bytes * padded(outputs) / outputs


def test_products_of_float16_are_the_bits_of_those_in_float32(library):
    for outputs, inputs in ((16, 8), (40, 264), (33, 2200)):
        weight = torch.randn(outputs, inputs).half()
        weight[0, :4] = torch.tensor([0.0, -0.0, 6e-8, 65504.0])
        stored = StoredMatrix(
            shape=(outputs, inputs),
            kind="",
            numbers=lambda weight=weight: iter(weight.split(7)),
            release=lambda: None,
            plain_dtype=torch.float16,
        )
        halves = PackedWeight(library, StoredLinear((stored,), None, torch.float32), None, "fp32")
        wide = PackedWeight(library, weight.float(), None, "fp32")
        assert halves.num_bytes * 2 == wide.num_bytes
        rows = torch.randn(27, inputs)
        for count in (1, 5, 27):
            found, wanted = (
                multiply(library, Team(library, 2), packed, rows[:count])
                for packed in (halves, wide)
            )
            assert torch.equal(found, wanted)
