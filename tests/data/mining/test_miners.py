"""Miners against the slow obvious version, published counts and hashes, and each other."""

import csv
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from steelyard.data.mining import (
    Baskets,
    count_itemsets,
    mine,
    mine_top,
    quest_baskets,
    read_baskets,
)
from steelyard.data.mining.eclat import eclat
from steelyard.data.mining.growing import expand_tree
from steelyard.data.mining.miner import MINERS, min_count_of
from steelyard.data.mining.preparing import prepare
from steelyard.data.table import DataTable
from steelyard.errors import CapacityError, ConfigError, DataError

FIMI = Path("../shared/data/fimi")


def slowly(rows, min_count):
    """Count every subset of every basket."""
    counts = Counter()
    for row in rows:
        items = sorted(set(row))
        for size in range(1, len(items) + 1):
            counts.update(itertools.combinations(items, size))
    return {items: count for items, count in counts.items() if count >= min_count}


def as_dict(found):
    made = dict(found[place] for place in range(len(found)))
    assert len(made) == len(found)
    return made


def closed_of(all_sets):
    """Return those without an equally frequent superset, and those without any."""
    larger = {items: [other for other in all_sets if set(items) < set(other)] for items in all_sets}
    closed = {
        items: count
        for items, count in all_sets.items()
        if all(all_sets[other] < count for other in larger[items])
    }
    return closed, {items: count for items, count in all_sets.items() if not larger[items]}


baskets_drawn = st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=14)


@settings(deadline=None, max_examples=30)
@given(baskets_drawn, st.sampled_from([0.05, 0.2, 0.5, 1.0]))
def test_every_miner_finds_what_counting_all_subsets_finds(rows, support):
    baskets = Baskets.of(rows)
    expected = slowly(rows, min_count_of(support, len(rows)))
    closed, maximal = closed_of(expected)
    for name in ("auto", *MINERS):
        assert as_dict(mine(baskets, support, algorithm=name)) == expected
        assert as_dict(mine(baskets, support, algorithm=name, target="closed")) == closed
        assert as_dict(mine(baskets, support, algorithm=name, target="maximal")) == maximal
        short = {items: count for items, count in expected.items() if len(items) <= 2}
        assert as_dict(mine(baskets, support, algorithm=name, max_length=2)) == short
    assert count_itemsets(baskets, support) == len(expected)


@settings(deadline=None, max_examples=25)
@given(baskets_drawn, st.integers(1, 12))
def test_lists_and_diffsets_find_the_same_as_bits(rows, min_count):
    baskets = Baskets.of(rows)
    ready = prepare(baskets.begins, baskets.items, len(baskets.labels), min_count)
    found = []
    for density in (0.0, 2.0):
        tree = eclat(ready, 0, ready.num_items, min_count, density=density)
        begins, items = expand_tree(tree[0], tree[1], ready.codes)
        found.append(
            {
                tuple(baskets.labels[items[begins[k] : begins[k + 1]]].tolist()): int(tree[2][k])
                for k in range(len(tree[2]))
            }
        )
    assert found[0] == found[1] == slowly(rows, min_count)


@settings(deadline=None, max_examples=25)
@given(baskets_drawn, st.integers(1, 30))
def test_the_most_frequent_are_those_of_all(rows, count):
    every = slowly(rows, 1)
    found = as_dict(mine_top(Baskets.of(rows), count))
    ordered = sorted(every.values(), reverse=True)
    least = ordered[min(count, len(ordered)) - 1] if ordered else 0
    assert found == {items: held for items, held in every.items() if held >= least}


@pytest.fixture(scope="module")
def fimi():
    if not FIMI.is_dir():
        pytest.skip("needs ../shared")
    names = ("mushroom", "chess", "retail", "T10I4D100K")
    return {name: read_baskets(DataTable.scan(FIMI / f"{name}.dat.gz"))[0] for name in names}


@pytest.mark.parametrize(
    ("name", "support"),
    [("mushroom", 0.2), ("chess", 0.7), ("retail", 0.005), ("T10I4D100K", 0.005)],
)
def test_published_counts_and_hashes(fimi, name, support):
    with (FIMI / "expected_counts.csv").open() as file:
        row = next(
            row
            for row in csv.DictReader(file)
            if row["dataset"] == name and float(row["min_support"]) == support
        )
    for algorithm in MINERS:
        found = mine(fimi[name], support, algorithm=algorithm)
        told = (len(found), found.min_count, found.longest, found.digest())
        expected = (row["frequent"], row["min_count"], row["longest"])
        assert told == (*map(int, expected), row["sha256_16"])
    for target in ("closed", "maximal"):
        assert len(mine(fimi[name], support, target=target)) == int(row[target])


def test_parts_by_workers_and_journal_are_the_same(tmp_path):
    baskets = quest_baskets(2000, num_items=100, seed=3)
    whole = mine(baskets, 0.01)
    kept = mine(baskets, 0.01, journal=tmp_path / "journal")
    assert kept.digest() == whole.digest()
    assert not list((tmp_path / "journal").glob("*.pack"))
    parts = mine(baskets, 0.01, journal=tmp_path / "other", target="closed")
    assert parts.digest() == mine(baskets, 0.01, target="closed").digest()


def test_a_result_that_does_not_fit_is_refused():
    rows = [list(range(18)), list(range(18)), [20]]
    for name in ("auto", *MINERS):
        with pytest.raises(CapacityError, match="at least") as caught:
            mine(Baskets.of(rows), 0.5, algorithm=name, memory_bytes=1e5)
        assert "closed" in caught.value.hint
    assert len(mine(Baskets.of(rows), 0.5, target="closed", memory_bytes=1e5)) == 1
    assert count_itemsets(Baskets.of(rows), 0.5) == 2**18 - 1


@pytest.mark.parametrize("support", [0, -0.1, 1.1, float("nan")])
def test_a_support_outside_of_0_to_1_is_refused(support):
    with pytest.raises(ConfigError, match="above 0"):
        mine(Baskets.of([[1]]), support)


def test_other_bad_arguments_are_refused():
    baskets = Baskets.of([[1]])
    for wrong in ({"algorithm": "magic"}, {"target": "open"}, {"max_length": -1}):
        with pytest.raises(ConfigError):
            mine(baskets, 0.5, **wrong)
    with pytest.raises(ConfigError):
        mine(baskets, 0.5, target="closed", max_length=2)
    with pytest.raises(ConfigError):
        mine_top(baskets, 0)


def test_empty_baskets_count_and_doubled_items_do_not():
    found = mine(Baskets.of([[], [1, 1, 2], [1], []]), 0.5)
    assert as_dict(found) == {(1,): 2}
    assert found.num_baskets == 4
    assert len(mine(Baskets.of([[], []]), 0.5)) == 0
    assert len(mine(Baskets.of([]), 0.5)) == 0


@pytest.mark.parametrize("rows", [[[1, -2]], [[1, "a"]], [["a", 1]], [[1.5]], [[True]], [[None]]])
def test_items_that_are_none_are_named(rows):
    with pytest.raises(DataError, match="basket 0 has the item"):
        Baskets.of(rows)


def test_supports_of_text_items():
    found = mine(Baskets.of([["milk", "bread"], ["milk"]]), 1.0)
    assert as_dict(found) == {("milk",): 2}
    assert np.array_equal(found.lengths, [1])
