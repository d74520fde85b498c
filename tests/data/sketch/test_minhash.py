"""Signatures and tables of them against plain versions and their published errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.pack import Pack, pack_bytes
from steelyard.data.sketch import LshTable, MinHasher
from steelyard.data.sketch.lsh import band_keys, choose_bands, find_chance
from steelyard.data.sketch.minhash import EMPTY, agreement, similarity, truncated
from steelyard.errors import ConfigError, DataError

SCHEMES = ("k-permutation", "one-permutation")


def pairs_of(rng, similarity, size, count):
    """Hashes and offsets of pairs of sets of an exact Jaccard similarity."""
    shared = round(2 * size * similarity / (1 + similarity))
    sets, offsets = [], [0]
    for _ in range(count):
        union = rng.integers(0, 1 << 64, 2 * size - shared, np.uint64)
        sets += [union[:size], union[size - shared :]]
        offsets += [offsets[-1] + size, offsets[-1] + 2 * size]
    return np.concatenate(sets), np.array(offsets), shared / (2 * size - shared)


def plain_signature(hasher, hashes):
    """The slow obvious version of k permutations."""
    items = [int(value) & 0xFFFFFFFF for value in hashes]
    maps = zip(hasher._factors.tolist(), hasher._shifts.tolist(), strict=True)
    return [min([(a * x + b) & 0xFFFFFFFF for x in items] + [int(EMPTY)]) for a, b in maps]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(1, 20))
def test_a_signature_is_that_of_the_plain_version(items, places):
    hasher = MinHasher(3, places)
    hashes = np.array(items, np.uint64)
    assert hasher.signature(hashes).tolist() == plain_signature(hasher, hashes)


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=25)
@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 2**32))
def test_parts_in_any_order_and_twice_make_the_same_signature(scheme, size, cut, seed):
    hasher = MinHasher(1, 16, scheme)
    hashes = np.random.default_rng(seed).integers(0, 1 << 64, size, np.uint64)
    least = [hasher.empty(1), hasher.empty(1)]
    for own, part in zip(least, (hashes[:cut], hashes[::-1]), strict=True):
        hasher.update(own, part, np.array([0, len(part)]))
    merged = hasher.finished(np.minimum(*least))
    assert np.array_equal(merged[0], hasher.signature(hashes))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("true", [0.1, 0.5, 0.9])
def test_estimates_err_as_the_theory_says(scheme, bits, true):
    rng = np.random.default_rng(0)
    hashes, offsets, true = pairs_of(rng, true, 400, 250)
    signed = truncated(MinHasher(2, 128, scheme).signatures(hashes, offsets), bits)
    agreed = (signed[::2] == signed[1::2]).sum(1)
    error = similarity(agreed, 128, bits) - true
    sigma = np.sqrt(true * (1 - true) / 128)
    assert abs(error.mean()) < 4 * sigma / np.sqrt(250) + 0.001
    # 250 errors give their spread within 5 %; 8 bits add a tenth at low similarities.
    assert error.std() < 1.25 * sigma


def test_empty_sets_have_no_element_and_agreement_counts_places():
    hasher = MinHasher(0, 8, "one-permutation")
    assert (hasher.signatures(np.zeros(0, np.uint64), np.zeros(3, np.int64)) == EMPTY).all()
    signed = np.array([[1, 2, 3], [1, 0, 3], [9, 9, 9]], np.uint8)
    found = np.empty((2, 2), np.int64)
    agreement(signed, np.array([1, 2]), signed[[0, 2]], found)
    assert found.tolist() == [[2, 0], [0, 3]]


@pytest.mark.parametrize("places", [1, 1000, 70_000])
def test_agreement_counts_long_signatures_as_numpy_does(places):
    signed = np.random.default_rng(0).integers(0, 3, (4, places)).astype(np.uint8)
    found = np.empty((1, 4), np.int64)
    agreement(signed, np.arange(4), signed[:1], found)
    assert found[0].tolist() == (signed == signed[0]).sum(axis=1).tolist()


def plain_hits(signed, signature, bands, rows):
    cut = [slice(band * rows, (band + 1) * rows) for band in range(bands)]
    return [sum(np.array_equal(one[part], signature[part]) for part in cut) for one in signed]


@settings(max_examples=30)
@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_hits_are_those_of_comparing_all_bands(count, bands, rows, seed):
    signed = np.random.default_rng(seed).integers(0, 3, (count, bands * rows)).astype(np.uint32)
    table = LshTable.build(band_keys(signed, bands, rows), rows)
    again = LshTable.of(Pack(pack_bytes(table.sections())).sections())
    for row in range(count):
        hits, cut = again.hits(signed[row])
        expected = plain_hits(signed, signed[row], bands, rows)
        # A band that nobody shares is left out of the table.
        others = [other for other in range(count) if other != row]
        assert [hits[other] for other in others] == [expected[other] for other in others]
        assert cut == 0
    connected = {tuple(pair) for pair in table.neighbours().tolist()}
    assert all(one < other for one, other in connected)
    for one, other in connected:
        assert any(plain_hits(signed[[one]], signed[other], bands, rows))


def test_large_buckets_are_cut_and_counted():
    signed = np.zeros((50, 4), np.uint32)
    hits, cut = LshTable.build(band_keys(signed, 2, 2), 2).hits(signed[0], most=10)
    assert (hits[:10] == 2).all()
    assert (hits[10:] == 0).all()
    assert cut == 2


def test_pairs_are_found_as_often_as_the_formula_says():
    rng = np.random.default_rng(4)
    hashes, offsets, true = pairs_of(rng, 0.3, 100, 400)
    signed = MinHasher(5, 60).signatures(hashes, offsets)
    table = LshTable.build(band_keys(signed, 20, 3), 3)
    found = sum(table.hits(signed[row])[0][row + 1] > 0 for row in range(0, 800, 2))
    chance = find_chance(true, 20, 3)
    assert abs(found - 400 * chance) < 4 * np.sqrt(400 * chance * (1 - chance))


def test_bands_are_chosen_for_a_threshold():
    bands, rows = choose_bands(1000, 0.1)
    assert find_chance(0.1, bands, rows) >= 0.95
    assert find_chance(0.1, 1000 // (rows + 1), rows + 1) < 0.95
    assert choose_bands(4, 0.01) == (4, 1)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="superminhash"):
        MinHasher(0, 8, "superminhash")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="12 bits"):
        truncated(np.zeros((1, 4), np.uint32), 12)
    table = LshTable.build(np.zeros((2, 3), np.uint32), 2)
    with pytest.raises(ConfigError, match="of 3 places"):
        table.hits(np.zeros(3, np.uint32))
    broken = table.sections() | {"members": np.zeros(1, np.uint32)}
    with pytest.raises(DataError, match="differ in length"):
        LshTable.of(broken)


def test_places_are_found_in_uneven_keys():
    from steelyard.data.sketch.lsh import _first_place

    rng = np.random.default_rng(0)
    for keys in (
        np.sort(rng.integers(0, 1 << 32, 5000, np.uint32)),
        np.sort(rng.integers(0, 900, 5000).astype(np.uint32)),
        np.full(700, 1 << 31, np.uint32),
        np.zeros(0, np.uint32),
    ):
        whole = np.concatenate((np.full(9, 7, np.uint32), keys, np.full(9, 3, np.uint32)))
        wanted = [0, 1, 450, 1 << 31, (1 << 32) - 1, *keys[::97].tolist()]
        for key in wanted:
            place = _first_place(whole, 9, 9 + len(keys), np.uint32(key))
            assert place - 9 == np.searchsorted(keys, np.uint32(key))
