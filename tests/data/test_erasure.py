"""Erasure codes against arithmetic done the slow way."""

import itertools

import numpy as np
import pytest

from steelyard.data.erasure import ErasureCode
from steelyard.errors import ConfigError, DataError, DataLostError


def slow_product(a, b):
    """Multiply in GF(256) bit by bit."""
    result = 0
    while b:
        if b & 1:
            result ^= a
        a <<= 1
        if a & 0x100:
            a ^= 0x11D
        b >>= 1
    return result


@pytest.mark.parametrize(("data", "parity"), [(1, 0), (1, 2), (4, 1), (4, 2), (6, 3)])
def test_any_k_blocks_hold_all_data(data, parity):
    code = ErasureCode(data=data, parity=parity)
    generator = np.random.default_rng(data)
    blocks = generator.integers(0, 256, (data, 37)).astype(np.uint8)
    whole = np.concatenate([blocks, code.encode(blocks)])
    for kept in itertools.combinations(range(data + parity), data):
        left = {number: whole[number] for number in kept}
        assert np.array_equal(code.decode(left), blocks)
        for wanted in range(data + parity):
            assert np.array_equal(code.decode(left, wanted), whole[wanted])


def test_parity_is_the_slow_product():
    code = ErasureCode(data=3, parity=2)
    blocks = np.random.default_rng(0).integers(0, 256, (3, 9)).astype(np.uint8)
    parity = code.encode(blocks)
    for row in range(2):
        for place in range(9):
            total = 0
            for column in range(3):
                total ^= slow_product(int(code.matrix[3 + row, column]), int(blocks[column, place]))
            assert total == parity[row, place]


def test_one_parity_block_is_the_xor():
    blocks = np.random.default_rng(0).integers(0, 256, (5, 8)).astype(np.uint8)
    parity = ErasureCode(data=5, parity=1).encode(blocks)[0]
    assert np.array_equal(parity, np.bitwise_xor.reduce(blocks))


def test_bytes_are_cut_and_filled():
    code = ErasureCode(data=4, parity=2)
    content = bytes(range(1, 11))
    blocks = code.split(content)
    assert blocks.shape == (4, 3)
    assert blocks.tobytes()[:10] == content
    assert code.split(b"").shape == (4, 0)
    assert code.overhead == 1.5


def test_bad_input_is_refused():
    code = ErasureCode(data=3, parity=1)
    block = np.zeros(4, np.uint8)
    with pytest.raises(DataLostError, match="2 blocks are left, but 3"):
        code.decode({0: block, 3: block})
    with pytest.raises(DataError, match="lengths"):
        code.decode({0: block, 1: block, 2: block[:2]})
    with pytest.raises(DataError, match="blocks"):
        code.decode({0: block, 1: block, 4: block})
    with pytest.raises(DataError, match="uint8"):
        code.encode(np.zeros((3, 4)))
    with pytest.raises(ConfigError, match="parity"):
        ErasureCode(data=200, parity=100)
