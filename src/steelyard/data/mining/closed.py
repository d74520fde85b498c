"""Closed and maximal itemsets: mined as such, or picked from all frequent ones."""

import numpy as np

from steelyard.data.mining.eclat import SATURATED, extensions
from steelyard.data.mining.growing import popcount, reserve, reserve_long, reserve_words
from steelyard.data.mining.preparing import Prepared
from steelyard.jit import njit

__all__ = ["mark_closed", "mine_closed"]


def mine_closed(
    ready: Prepared,
    first: int,
    last: int,
    min_count: int,
    *,
    maximal: bool = False,
    limit: int = SATURATED,
    stored: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Mine the closed itemsets that are found from one of a range of items.

    A closed itemset is extended by an item and closed again; the result counts only where it adds
    nothing before that item (prefix-preserving extension), so that each is found once.

    Args:
        ready: the baskets.
        first: first item of the range.
        last: one past its last.
        min_count: baskets that must hold an itemset.
        maximal: whether only those are kept that no frequent itemset contains.
        limit: itemsets after which mining ends.
        stored: whether itemsets are kept, or only counted.

    Returns:
        Begins of the itemsets, their items in ascending order, their supports, and their number,
        above the limit a lower bound.

    Source: Uno, Kiyomi and Arimura 2004 (LCM), with columns as bits of a class's baskets.
    """
    rows = (ready.row_begins, ready.row_items, ready.column_begins, ready.column_rows)
    return _closed(first, last, rows, ready.codes, min_count, maximal, limit, stored)


@njit()
def _emitted(out, sizes, path, codes, support):
    """Write an itemset: its items by code, ascending."""
    begins, items, supports = out
    count, size = sizes
    begins = reserve_long(begins, count + 2)
    items, supports = reserve(items, begins[count] + size), reserve(supports, count + 1)
    at = begins[count]
    for place in range(size):
        items[at + place] = codes[path[place]]
    items[at : at + size] = np.sort(items[at : at + size])
    begins[count + 1], supports[count] = at + size, support
    return begins, items, supports


@njit()
def _closed(first, last, rows, codes, min_count, maximal, limit, stored):
    """Mine one class after the other."""
    row_begins, row_items, column_begins, column_rows = rows
    num_items = len(column_begins) - 1
    tallies, touched = np.zeros(num_items, np.int32), np.empty(num_items, np.int32)
    slots = np.full(num_items, -1, np.int32)
    out = (np.zeros(1024, np.int64), np.empty(1024, np.int32), np.empty(1024, np.int32))
    words, count = np.empty(1024, np.uint64), 0
    for item in range(first, last):
        support = column_begins[item + 1] - column_begins[item]
        own, own_supports = extensions(item, rows, min_count, tallies, touched, True)
        if len(own) and np.any(own_supports[own < item] == support):
            continue
        width = (support + 63) // 64
        words = reserve_words(words, len(own) * width)
        words[: len(own) * width] = 0
        for place in range(len(own)):
            slots[own[place]] = place
        for local in range(support):
            row = column_rows[column_begins[item] + local]
            for at in range(row_begins[row], row_begins[row + 1]):
                slot = slots[row_items[at]]
                if slot >= 0:
                    word = slot * width + local // 64
                    words[word] |= np.uint64(1) << np.uint64(local % 64)
        for place in range(len(own)):
            slots[own[place]] = -1
        group = (item, support, own, own_supports)
        out, words, count = _descend(
            out, count, group, words, width, codes, min_count, maximal, limit, stored
        )
        if count > limit:
            break
    kept = count if stored and count <= limit else 0
    begins, items, supports = out
    return begins[: kept + 1], items[: begins[kept]], supports[:kept], count


@njit()
def _descend(out, count, group, words, width, codes, min_count, maximal, limit, stored):
    """Extend the closure of a class's item depth first."""
    item, support, own, own_supports = group
    size = len(own)
    path = np.empty(size + 1, np.int32)
    members, supports = np.empty(4 * size + 1, np.int32), np.empty(4 * size + 1, np.int32)
    offsets = np.empty(4 * size + 1, np.int64)
    begins, ends = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    nexts, tops = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    lengths, cores = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    path[0], length, used = item, 1, 0
    for place in range(size):
        if own_supports[place] == support:
            path[length] = own[place]
            length += 1
        else:
            members[used], supports[used] = own[place], own_supports[place]
            offsets[used] = place * width
            used += 1
    if not maximal or used == 0:
        if count >= limit:
            return out, words, count + 1
        if stored:
            out = _emitted(out, (count, length), path, codes, support)
        count += 1
    depth, ends[0], tops[0], lengths[0], cores[0] = 0, used, size * width, length, item
    while depth >= 0:
        at = nexts[depth]
        if at == ends[depth]:
            depth -= 1
            continue
        nexts[depth] += 1
        core = members[at]
        if core < cores[depth]:
            continue
        begin, top, length = ends[depth], tops[depth], lengths[depth]
        later = ends[depth] - begins[depth]
        words = reserve_words(words, top + later * width)
        if len(members) < begin + later:
            members, supports = reserve(members, begin + later), reserve(supports, begin + later)
            offsets = reserve_long(offsets, begin + later)
        held, used, keeps_prefix = supports[at], begin, True
        path[length] = core
        length += 1
        for other in range(begins[depth], ends[depth]):
            if other == at:
                continue
            left, right, joint = offsets[at], offsets[other], np.uint64(0)
            for word in range(width):
                both = words[left + word] & words[right + word]
                words[top + word] = both
                joint += popcount(both)
            together = np.int64(joint)
            if together == held:
                if other < at:
                    keeps_prefix = False
                    break
                path[length] = members[other]
                length += 1
            elif together >= min_count:
                members[used], supports[used], offsets[used] = members[other], together, top
                used += 1
                top += width
        if not keeps_prefix:
            continue
        if not maximal or used == begin:
            if count >= limit:
                return out, words, count + 1
            if stored:
                out = _emitted(out, (count, length), path, codes, held)
            count += 1
        if used > begin:
            depth += 1
            begins[depth], ends[depth], nexts[depth] = begin, used, begin
            tops[depth], lengths[depth], cores[depth] = top, length, core
    return out, words, count


def mark_closed(
    begins: np.ndarray, items: np.ndarray, supports: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Say which of all frequent itemsets are closed, and which maximal.

    Args:
        begins: begin of each itemset, [itemsets + 1].
        items: their items.
        supports: their supports.

    Returns:
        Whether each is closed, and whether it is maximal, bool [itemsets].
    """
    draw = np.random.default_rng(1)
    marks = draw.integers(1, 1 << 63, int(items.max(initial=0)) + 1, dtype=np.int64)
    return _marked(begins, items, supports, marks)


@njit()
def _marked(begins, items, supports, marks):
    """Look each itemset up without one of its items: what it is part of decides."""
    count = len(supports)
    mask = np.int64(1)
    while mask < 2 * count:
        mask *= 2
    mask -= 1
    table = np.full(mask + 1, -1, np.int64)
    hashes = np.zeros(count, np.int64)
    for row in range(count):
        for place in range(begins[row], begins[row + 1]):
            hashes[row] ^= marks[items[place]]
        slot = hashes[row] & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = row
    closed, maximal = np.ones(count, np.bool_), np.ones(count, np.bool_)
    for row in range(count):
        if begins[row + 1] - begins[row] == 1:
            continue
        for place in range(begins[row], begins[row + 1]):
            part = hashes[row] ^ marks[items[place]]
            slot = part & mask
            while table[slot] >= 0 and hashes[table[slot]] != part:
                slot = (slot + 1) & mask
            if table[slot] >= 0:
                maximal[table[slot]] = False
                if supports[table[slot]] == supports[row]:
                    closed[table[slot]] = False
    return closed, maximal
