"""FP-growth: prefix trees of baskets in flat arrays, projected item by item."""

import numpy as np

from steelyard.data.mining.eclat import SATURATED, extensions
from steelyard.data.mining.growing import reserve, reserve_long
from steelyard.data.mining.preparing import Prepared
from steelyard.jit import njit

__all__ = ["fpgrowth"]


def fpgrowth(
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

    Each item of the range has a tree of the baskets that hold it: their more frequent items, the
    most frequent at the root. It is planted from the baskets themselves, which lie one behind the
    other in memory, where a tree of all baskets would be walked in leaps. A tree that is one path
    is written without being projected.

    Args:
        ready: the baskets.
        first: first item of the range.
        last: one past its last.
        min_count: baskets that must hold an itemset.
        max_length: most items of an itemset; 0 for any.
        limit: itemsets after which mining ends.
        stored: whether itemsets are kept, or only counted.

    Returns:
        As `eclat` does.

    Source: Han, Pei and Yin 2000; conditional trees as arrays, as in Borgelt 2005.
    """
    most = max_length or ready.num_items + 1
    rows = (ready.row_begins, ready.row_items, ready.column_begins, ready.column_rows)
    return _mine(first, last, rows, min_count, most, limit, stored)


@njit()
def _mine(first, last, rows, min_count, most, limit, stored):
    """Plant the tree of each item and grow it."""
    row_begins, row_items, column_begins, column_rows = rows
    num_items = len(column_begins) - 1
    tallies, touched = np.zeros(num_items, np.int32), np.empty(num_items, np.int32)
    slots, path = np.full(num_items, -1, np.int32), np.empty(num_items + 1, np.int32)
    tree = _seedbed(1024)
    out = (np.empty(1024, np.int64), np.empty(1024, np.int32), np.empty(1024, np.int32))
    count = 0
    for item in range(first, last):
        if count >= limit:
            count += 1
            break
        support, root = column_begins[item + 1] - column_begins[item], count
        if stored:
            out = _room(out, count + 1)
            out[0][count], out[1][count], out[2][count] = -1, item, support
        count += 1
        own, own_supports = extensions(item, rows, min_count, tallies, touched, False)
        if len(own) == 0 or most == 1:
            continue
        for place in range(len(own)):
            slots[own[place]] = place
        heads, roots = np.full(len(own), -1, np.int32), np.full(len(own), -1, np.int32)
        top = 0
        for place in range(column_begins[item], column_begins[item + 1]):
            row, length = column_rows[place], 0
            at = row_begins[row + 1] - 1
            while row_items[at] > item:
                if slots[row_items[at]] >= 0:
                    path[length] = slots[row_items[at]]
                    length += 1
                at -= 1
            tree = _widened(tree, top + length)
            top = _insert(tree, top, roots, heads, 0, path, length, 1)
        for place in range(len(own)):
            slots[own[place]] = -1
        out, tree, count = _grow(
            out, tree, count, root, (own, own_supports, heads), top, min_count, most, limit, stored
        )
        if count > limit:
            break
    kept = count if stored and count <= limit else 0
    return out[0][:kept], out[1][:kept], out[2][:kept], count


@njit()
def _seedbed(size):
    """Return an empty tree: item, count, parent, next of the same item, child and sibling."""
    return (
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
    )


@njit()
def _widened(tree, size):
    """Return a tree with room for some nodes."""
    if len(tree[0]) >= size:
        return tree
    return (
        reserve(tree[0], size),
        reserve(tree[1], size),
        reserve(tree[2], size),
        reserve(tree[3], size),
        reserve(tree[4], size),
        reserve(tree[5], size),
    )


@njit()
def _room(out, size):
    """Return the output with room for some itemsets."""
    if len(out[0]) >= size:
        return out
    return reserve_long(out[0], size), reserve(out[1], size), reserve(out[2], size)


@njit()
def _insert(tree, top, roots, heads, begin, path, length, weight):
    """Put a basket into a tree, the most frequent item first; return the nodes in use."""
    items, counts, parents, others, children, siblings = tree
    parent = np.int32(-1)
    for step in range(length):
        item = path[step]
        child = roots[item] if parent < 0 else children[parent]
        if parent >= 0:
            while child >= 0 and items[child] != item:
                child = siblings[child]
        if child < 0:
            child = np.int32(top)
            items[top], counts[top], parents[top], children[top] = item, 0, parent, -1
            others[top], heads[begin + item] = heads[begin + item], top
            if parent < 0:
                roots[item] = top
            else:
                siblings[top], children[parent] = children[parent], top
            top += 1
        counts[child] += weight
        parent = child
    return top


@njit()
def _grow(out, tree, count, root, own, top, min_count, most, limit, stored):
    """Project trees depth first; all open trees lie one behind the other in the same arrays."""
    size = len(own[0])
    # Items of an open tree by place: number in the baskets, count, and first node.
    codes, totals = reserve(own[0], 4 * size), reserve(own[1], 4 * size)
    heads = reserve(own[2], 4 * size)
    places, tallies = np.empty(size, np.int32), np.zeros(size, np.int32)
    roots, path, turned = (
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
    )
    begins, ends = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    nexts, nodes = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    tops, depth = np.zeros(size + 2, np.int64), 0
    ends[0], nodes[0], tops[0] = size, root, top
    while depth >= 0:
        at = nexts[depth]
        if at == ends[depth]:
            depth -= 1
            continue
        nexts[depth] += 1
        if count >= limit:
            return out, tree, count + 1
        held = count
        if stored:
            out = _room(out, count + 1)
            out[0][count], out[1][count], out[2][count] = nodes[depth], codes[at], totals[at]
        count += 1
        if depth + 3 > most or at + 1 == ends[depth]:
            continue
        items, counts, parents, others, _, _ = tree
        node = heads[at]
        while node >= 0:
            above = parents[node]
            while above >= 0:
                tallies[items[above]] += counts[node]
                above = parents[above]
            node = others[node]
        # Items of the projected tree keep their order.
        begin, used = ends[depth], ends[depth]
        if len(codes) < begin + ends[depth] - at:
            codes = reserve(codes, begin + ends[depth] - at)
            totals, heads = reserve(totals, len(codes)), reserve(heads, len(codes))
        for other in range(at + 1, ends[depth]):
            local = other - begins[depth]
            places[local] = -1
            if tallies[local] >= min_count:
                places[local] = used - begin
                codes[used], totals[used], heads[used] = codes[other], tallies[local], -1
                used += 1
            tallies[local] = 0
        if used == begin:
            continue
        roots[: used - begin] = -1
        top, node = tops[depth], heads[at]
        while node >= 0:
            length, above = 0, parents[node]
            while above >= 0:
                if places[items[above]] >= 0:
                    turned[length] = places[items[above]]
                    length += 1
                above = parents[above]
            for step in range(length):
                path[step] = turned[length - 1 - step]
            tree = _widened(tree, top + length)
            items, counts, parents, others, _, _ = tree
            top = _insert(tree, top, roots, heads, begin, path, length, counts[node])
            node = others[node]
        if (
            top - tops[depth] == used - begin
            and most > size + 1
            and _is_path(parents, tops[depth], top)
        ):
            out, count = _written(
                out, count, held, codes[begin:used], totals[begin:used], limit, stored
            )
            if count > limit:
                return out, tree, count
            continue
        depth += 1
        begins[depth], ends[depth], nexts[depth] = begin, used, begin
        nodes[depth], tops[depth] = held, top
    return out, tree, count


@njit()
def _is_path(parents, begin, end):
    """Return whether each node of a tree hangs on the one before."""
    node = begin + 1
    while node < end and parents[node] == node - 1:
        node += 1
    return node == end


@njit()
def _written(out, count, prefix, codes, totals, limit, stored):
    """Write every choice of a path's items, each as frequent as the rarest item of it."""
    start = count
    for place in range(len(codes)):
        added = count - start + 1
        if count + added > limit:
            return out, count + added
        if stored:
            out = _room(out, count + added)
            out[0][count], out[1][count], out[2][count] = prefix, codes[place], totals[place]
            for node in range(start, start + added - 1):
                at = count + 1 + node - start
                out[0][at], out[1][at], out[2][at] = node, codes[place], out[2][node]
        count += added
    return out, count
