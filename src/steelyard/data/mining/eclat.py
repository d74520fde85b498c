"""Eclat: depth first over columns, as bits where baskets overlap much and as lists elsewhere."""

from typing import Any

import numpy as np

from steelyard.data.mining.eclat_lists import mine_lists
from steelyard.data.mining.growing import popcount, reserve, reserve_long, reserve_words
from steelyard.data.mining.preparing import Prepared
from steelyard.jit import njit

__all__ = ["LEAST_DENSITY", "SATURATED", "eclat", "extensions"]

LEAST_DENSITY = 1 / 64
"""A class whose items hold in less of its baskets is kept as lists: a list then takes fewer bytes
than a bit per basket and its intersection fewer steps."""
SATURATED = 1 << 62
"""Itemsets at which counting stops."""


def eclat(
    ready: Prepared,
    first: int,
    last: int,
    min_count: int,
    *,
    max_length: int = 0,
    limit: int = SATURATED,
    stored: bool = True,
    top: int = 0,
    density: float = LEAST_DENSITY,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Mine the itemsets whose rarest item is one of a range.

    An item in all baskets of a prefix joins every itemset below it (perfect extension), so those
    are written without another look at the baskets.

    Args:
        ready: the baskets.
        first: first item of the range.
        last: one past its last.
        min_count: baskets that must hold an itemset.
        max_length: most items of an itemset; 0 for any.
        limit: itemsets after which mining ends.
        stored: whether itemsets are kept, or only counted.
        top: only this many of the most frequent are wanted: the support rises while mining; 0 for
            all.
        density: share of a class's baskets below which lists are used.

    Returns:
        Tree of itemsets as in `expand_tree` with the supports (parents, items, supports), and the
        number of itemsets; where that is above the limit it is a lower bound and the tree is empty.

    Source: Zaki 2000 (equivalence classes); Zaki and Gouda 2003 (diffsets).
    """
    most = max_length or ready.num_items + 1
    state = np.array([min_count, 0, top], np.int64)
    histogram = np.zeros(int(ready.supports.max(initial=0)) + 1 if top else 0, np.int64)
    return _mine(
        first,
        last,
        (ready.row_begins, ready.row_items, ready.column_begins, ready.column_rows),
        state,
        histogram,
        most,
        limit,
        stored,
        density,
    )


@njit()
def extensions(item, rows, min_count, counts, touched, lower):
    """Return the items that are frequent together with one, ascending; `counts` is left at 0.

    With `lower` those that are rarer than it are among them.
    """
    row_begins, row_items, column_begins, column_rows = rows
    used = 0
    for place in range(column_begins[item], column_begins[item + 1]):
        row = column_rows[place]
        at = row_begins[row + 1] - 1
        while at >= row_begins[row]:
            other = row_items[at]
            if other <= item and not lower:
                break
            if counts[other] == 0:
                touched[used] = other
                used += 1
            counts[other] += 1
            at -= 1
    found = np.empty(used, np.int32)
    kept = 0
    for place in range(used):
        other = touched[place]
        if counts[other] >= min_count and other != item:
            found[kept] = other
            kept += 1
    found = np.sort(found[:kept])
    supports = np.empty(kept, np.int32)
    for place in range(kept):
        supports[place] = counts[found[place]]
    for place in range(used):
        counts[touched[place]] = 0
    return found, supports


@njit()
def _raise(state, histogram, support):
    """Count an itemset among the most frequent, and raise the support while enough remain."""
    if support < state[0]:
        return
    histogram[support] += 1
    state[1] += 1
    while state[1] - histogram[state[0]] >= state[2]:
        state[1] -= histogram[state[0]]
        state[0] += 1


@njit()
def _mine(first, last, rows, state, histogram, most, limit, stored, density) -> Any:
    """Mine one class after the other, the most frequent item first."""
    row_begins, row_items, column_begins, column_rows = rows
    num_items = len(column_begins) - 1
    counts, touched = np.zeros(num_items, np.int32), np.empty(num_items, np.int32)
    slots = np.full(num_items, -1, np.int32)
    parents, items = np.empty(1024, np.int64), np.empty(1024, np.int32)
    supports = np.empty(1024, np.int32)
    words, lists = np.empty(1024, np.uint64), np.empty(1024, np.int32)
    count = 0
    for item in range(last - 1, first - 1, -1):
        support = column_begins[item + 1] - column_begins[item]
        if support < state[0]:
            continue
        root = count
        if stored:
            parents = reserve_long(parents, count + 1)
            items, supports = reserve(items, count + 1), reserve(supports, count + 1)
            parents[count], items[count], supports[count] = -1, item, support
        count += 1
        if state[2]:
            _raise(state, histogram, support)
        if most == 1:
            continue
        own, own_supports = extensions(item, rows, state[0], counts, touched, False)
        if len(own) == 0:
            continue
        width = (support + 63) // 64
        total: Any = np.int64(0)
        for place in range(len(own)):
            slots[own[place]] = place
            total += own_supports[place]
        as_bits = total >= density * support * len(own)
        offsets = np.empty(len(own), np.int64)
        if as_bits:
            words = reserve_words(words, len(own) * width)
            words[: len(own) * width] = 0
            for place in range(len(own)):
                offsets[place] = place * width
        else:
            lists = reserve(lists, total)
            offsets[0] = 0
            for place in range(1, len(own)):
                offsets[place] = offsets[place - 1] + own_supports[place - 1]
        filled = offsets.copy()
        for local in range(support):
            row = column_rows[column_begins[item] + local]
            at = row_begins[row + 1] - 1
            while row_items[at] > item:
                slot = slots[row_items[at]]
                if slot >= 0 and as_bits:
                    words[offsets[slot] + local // 64] |= np.uint64(1) << np.uint64(local % 64)
                elif slot >= 0:
                    lists[filled[slot]] = local
                    filled[slot] += 1
                at -= 1
        for place in range(len(own)):
            slots[own[place]] = -1
        out = (parents, items, supports)
        group = (own, own_supports, offsets)
        if as_bits:
            parents, items, supports, words, count = _mine_bits(
                out,
                count,
                root,
                support,
                group,
                words,
                width,
                state,
                histogram,
                most,
                limit,
                stored,
            )
        else:
            parents, items, supports, lists, count = mine_lists(
                out, count, root, support, group, lists, state, histogram, most, limit, stored
            )
        if count > limit:
            break
    kept = count if stored and count <= limit else 0
    return parents[:kept], items[:kept], supports[:kept], count


@njit()
def _mine_bits(
    out, count, root, support, group, words, width, state, histogram, most, limit, stored
):
    """Mine a class of one item; its members are bits of the item's baskets."""
    parents, items, supports = out
    own, own_supports, own_offsets = group
    size = len(own)
    members, member_supports = np.empty(4 * size, np.int32), np.empty(4 * size, np.int32)
    offsets = np.empty(4 * size, np.int64)
    shared = np.empty(size + 1, np.int32)
    # Of each open prefix: its members, the one that is next, where it stands in the output, the
    # output before it was extended, its items in all baskets, and the words in use.
    begins, ends = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    nexts, nodes = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    shares, tops = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    with_shared = most > size + 1
    used, shared_used = 0, 0
    for place in range(size):
        if own_supports[place] == support and with_shared:
            shared[shared_used] = own[place]
            shared_used += 1
            continue
        members[used], member_supports[used] = own[place], own_supports[place]
        offsets[used] = own_offsets[place]
        used += 1
    depth, ends[0], nexts[0], nodes[0], tops[0] = 0, used, used, root, size * width
    while depth >= 0:
        if nexts[depth] == begins[depth]:
            begun = shares[depth]
            for place in range(begun, shared_used):
                added = count - nodes[depth]
                if count + added > limit:
                    return parents, items, supports, words, count + added
                if stored:
                    parents = reserve_long(parents, count + added)
                    items, supports = (
                        reserve(items, count + added),
                        reserve(supports, count + added),
                    )
                    for node in range(nodes[depth], nodes[depth] + added):
                        parents[count + node - nodes[depth]] = node
                        items[count + node - nodes[depth]] = shared[place]
                        supports[count + node - nodes[depth]] = supports[node]
                        if state[2]:
                            _raise(state, histogram, supports[node])
                count += added
            shared_used = begun
            depth -= 1
            continue
        nexts[depth] -= 1
        at = nexts[depth]
        held = member_supports[at]
        if held < state[0]:
            continue
        if count >= limit:
            return parents, items, supports, words, count + 1
        node = count
        if stored:
            parents = reserve_long(parents, count + 1)
            items, supports = reserve(items, count + 1), reserve(supports, count + 1)
            parents[count], items[count], supports[count] = nodes[depth], members[at], held
        count += 1
        if state[2]:
            _raise(state, histogram, held)
        # An itemset here has the class's item, one of each open prefix, and this one.
        if depth + 3 > most or at + 1 == ends[depth]:
            continue
        later = ends[depth] - at - 1
        begin, top = ends[depth], tops[depth]
        words = reserve_words(words, top + later * width)
        if len(members) < begin + later:
            members = reserve(members, begin + later)
            member_supports = reserve(member_supports, begin + later)
            offsets = reserve_long(offsets, begin + later)
        used, shared_before = begin, shared_used
        for other in range(at + 1, ends[depth]):
            left, right, joint = offsets[at], offsets[other], np.uint64(0)
            for word in range(width):
                both = words[left + word] & words[right + word]
                words[top + word] = both
                joint += popcount(both)
            together = np.int64(joint)
            if together < state[0]:
                continue
            if together == held and with_shared:
                shared[shared_used] = members[other]
                shared_used += 1
                continue
            members[used], member_supports[used], offsets[used] = members[other], together, top
            used += 1
            top += width
        if used > begin or shared_used > shared_before:
            depth += 1
            begins[depth], ends[depth], nexts[depth] = begin, used, used
            nodes[depth], shares[depth], tops[depth] = node, shared_before, top
    return parents, items, supports, words, count
