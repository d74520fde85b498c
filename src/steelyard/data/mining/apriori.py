"""Apriori: breadth first, candidates of one length counted in one pass over the baskets."""

import numpy as np

from steelyard.data.mining.eclat import SATURATED
from steelyard.data.mining.growing import reserve, reserve_long
from steelyard.data.mining.preparing import Prepared
from steelyard.jit import njit

__all__ = ["apriori"]

_TRIANGLE = 16 << 20
"""Counters of pairs that are kept at once, 64 MiB; more pairs take more passes."""


def apriori(
    ready: Prepared,
    first: int,
    last: int,
    min_count: int,
    *,
    max_length: int = 0,
    limit: int = SATURATED,
    stored: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Mine the itemsets whose rarest item is one of a range.

    Args:
        ready: the baskets.
        first: first item of the range.
        last: one past its last.
        min_count: baskets that must hold an itemset.
        max_length: most items of an itemset; 0 for any.
        limit: itemsets after which mining ends; that of a level is counted whole.
        stored: whether itemsets are kept, or only counted.

    Returns:
        As `eclat` does.

    Source: Agrawal and Srikant 1994; counting by a prefix tree as in Borgelt 2003.
    """
    most = max_length or ready.num_items + 1
    begins, items, weights = _merged(ready)
    marks = np.random.default_rng(0).integers(1, 1 << 63, max(ready.num_items, 1), dtype=np.int64)
    level = np.arange(first, last, dtype=np.int32).reshape(-1, 1)
    supports = ready.supports[first:last].astype(np.int32)
    parents = np.full(len(level), -1, np.int64)
    kept, count, offset = [(parents, level[:, -1], supports)], len(level), 0
    while len(level) and level.shape[1] < most and count <= limit:
        if level.shape[1] == 1:
            found, supports = _pairs(
                begins, items, weights, (first, last), ready.num_items, min_count
            )
            parents = found[:, 0].astype(np.int64) - first
            made = found
        else:
            joined, places = _joined(level, marks, first, last)
            totals = _counts(begins, items, weights, joined, ready.num_items)
            frequent = totals >= min_count
            made, supports = joined[frequent], totals[frequent]
            parents = places[frequent]
        kept.append((parents + offset, made[:, -1], supports))
        offset += len(level)
        level, count = made, count + len(made)
        if not stored:
            kept = kept[-1:]
    if not stored:
        kept = [tuple(part[:0] for part in kept[0])]
    size = count if count <= limit else 0
    tree = [np.concatenate([part[place] for part in kept])[:size] for place in range(3)]
    return tree[0], np.ascontiguousarray(tree[1]), tree[2], count


def _merged(ready: Prepared) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the baskets with equal ones as one of more weight."""
    hashes = _hashed(ready.row_begins, ready.row_items)
    return _weighted(ready.row_begins, ready.row_items, np.argsort(hashes, kind="stable"))


@njit()
def _hashed(begins, items):
    """Return a hash of each basket."""
    found = np.empty(len(begins) - 1, np.uint64)
    for row in range(len(found)):
        value = np.uint64(0xCBF29CE484222325)
        for place in range(begins[row], begins[row + 1]):
            value = (value ^ np.uint64(items[place])) * np.uint64(0x100000001B3)
            value ^= value >> np.uint64(29)
        found[row] = value
    return found


@njit()
def _weighted(begins, items, order):
    """Merge equal baskets that lie side by side in an order."""
    rows = len(order)
    made, found = np.zeros(rows + 1, np.int64), np.empty(len(items), np.int32)
    weights = np.zeros(rows, np.int32)
    used = 0
    for row in order:
        length = begins[row + 1] - begins[row]
        same = used > 0 and made[used] - made[used - 1] == length
        step = 0
        while same and step < length:
            same = found[made[used - 1] + step] == items[begins[row] + step]
            step += 1
        if not same:
            found[made[used] : made[used] + length] = items[begins[row] : begins[row + 1]]
            made[used + 1] = made[used] + length
            used += 1
        weights[used - 1] += 1
    return made[: used + 1], found, weights[:used]


def _pairs(
    begins: np.ndarray,
    items: np.ndarray,
    weights: np.ndarray,
    span: tuple[int, int],
    num_items: int,
    min_count: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the frequent pairs and their supports, by a triangle of counters."""
    found, supports, first = [], [], span[0]
    while first < span[1]:
        last = min(span[1], first + max(1, _TRIANGLE // num_items))
        triangle = _triangle(begins, items, weights, first, last, num_items)
        left, right = np.nonzero(triangle >= min_count)
        found.append(np.stack([left + first, right], axis=1).astype(np.int32))
        supports.append(triangle[left, right])
        first = last
    return np.concatenate(found), np.concatenate(supports)


@njit()
def _triangle(begins, items, weights, first, last, num_items):
    """Count the pairs whose rarer item is of a range."""
    found = np.zeros((last - first, num_items), np.int32)
    for row in range(len(weights)):
        for left in range(begins[row], begins[row + 1]):
            if items[left] < first:
                continue
            if items[left] >= last:
                break
            counters = found[items[left] - first]
            for right in range(left + 1, begins[row + 1]):
                counters[items[right]] += weights[row]
    return found


@njit()
def _joined(level, marks, first, last):
    """Return the candidates one item longer, and the place of the prefix that each extends.

    Two itemsets that differ in their last items make one; it is dropped where a part of it is not
    frequent. A part that begins outside of the range was not counted and is taken as frequent.
    """
    rows, length = level.shape
    mask = np.int64(1)
    while mask < 2 * rows:
        mask *= 2
    mask -= 1
    table = np.zeros(mask + 1, np.int64)
    hashes = np.zeros(rows, np.int64)
    for row in range(rows):
        for place in range(length):
            hashes[row] ^= marks[level[row, place]]
        slot = hashes[row] & mask
        while table[slot] != 0:
            slot = (slot + 1) & mask
        table[slot] = hashes[row]
    found, places, used = np.empty(1024 * (length + 1), np.int32), np.empty(1024, np.int64), 0
    begin = 0
    while begin < rows:
        end = begin + 1
        while end < rows and np.all(level[end, : length - 1] == level[begin, : length - 1]):
            end += 1
        for left in range(begin, end):
            for right in range(left + 1, end):
                whole = hashes[left] ^ marks[level[right, length - 1]]
                is_candidate = True
                for place in range(length - 1):
                    if place == 0 and level[left, 1] >= last:
                        continue
                    part = whole ^ marks[level[left, place]]
                    slot = part & mask
                    while table[slot] != 0 and table[slot] != part:
                        slot = (slot + 1) & mask
                    if table[slot] == 0:
                        is_candidate = False
                        break
                if not is_candidate:
                    continue
                at = used * (length + 1)
                found = reserve(found, at + length + 1)
                places = reserve_long(places, used + 1)
                found[at : at + length] = level[left]
                found[at + length] = level[right, length - 1]
                places[used] = left
                used += 1
        begin = end
    return found[: used * (length + 1)].copy().reshape(used, length + 1), places[:used]


@njit()
def _planted(candidates):
    """Return the prefix tree of sorted candidates: item, begin and end of the children by node.

    Nodes of a depth lie side by side; the leaves come last, one for each candidate.
    """
    rows, length = candidates.shape
    sizes = np.zeros(length + 1, np.int64)
    changes = np.zeros(rows, np.int64)
    for row in range(rows):
        while row and candidates[row, changes[row]] == candidates[row - 1, changes[row]]:
            changes[row] += 1
        for depth in range(changes[row], length):
            sizes[depth + 1] += 1
    for depth in range(length):
        sizes[depth + 1] += sizes[depth]
    items = np.empty(sizes[length], np.int32)
    begins, ends = np.zeros(sizes[length], np.int64), np.zeros(sizes[length], np.int64)
    cursor = sizes[:length].copy()
    for row in range(rows):
        for depth in range(changes[row], length):
            node = cursor[depth]
            items[node] = candidates[row, depth]
            if depth + 1 < length:
                begins[node] = cursor[depth + 1]
                ends[node] = begins[node]
            cursor[depth] += 1
        for depth in range(length - 1):
            ends[cursor[depth] - 1] = cursor[depth + 1]
    return items, begins, ends, sizes


@njit()
def _counts(begins, items, weights, candidates, num_items):
    """Return the support of each candidate, walking every basket down their prefix tree."""
    rows, length = candidates.shape
    if rows == 0:
        return np.zeros(0, np.int32)
    tree_items, firsts, lasts, sizes = _planted(candidates)
    leaves = sizes[length - 1]
    wanted = np.zeros(num_items, np.bool_)
    for place in range(rows):
        for depth in range(length):
            wanted[candidates[place, depth]] = True
    found, basket = np.zeros(rows, np.int32), np.empty(num_items, np.int32)
    nexts, ends = np.empty(length + 1, np.int64), np.empty(length + 1, np.int64)
    places = np.empty(length + 1, np.int64)
    for row in range(len(weights)):
        size = 0
        for place in range(begins[row], begins[row + 1]):
            if wanted[items[place]]:
                basket[size] = items[place]
                size += 1
        if size < length:
            continue
        depth, nexts[0], ends[0], places[0] = 0, 0, sizes[1], 0
        while depth >= 0:
            # The items left must be enough for the rest of a candidate.
            if nexts[depth] == ends[depth] or places[depth] > size - length + depth:
                depth -= 1
                continue
            node, place = nexts[depth], places[depth]
            if tree_items[node] < basket[place]:
                nexts[depth] += 1
            elif tree_items[node] > basket[place]:
                places[depth] += 1
            else:
                nexts[depth], places[depth] = node + 1, place + 1
                if depth == length - 1:
                    found[node - leaves] += weights[row]
                else:
                    depth += 1
                    nexts[depth], ends[depth] = firsts[node], lasts[node]
                    places[depth] = place + 1
    return found
