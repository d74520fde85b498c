"""The part of Eclat for classes whose items hold in few baskets: lists, or what they lack."""

import numpy as np

from steelyard.data.mining.growing import reserve, reserve_long
from steelyard.jit import njit

__all__ = ["mine_lists"]


@njit()
def _without(lists, left, left_end, right, right_end, top, most):
    """Write what the left list has and the right lacks; -1 as soon as it is more than `most`."""
    begin = top
    while left < left_end:
        while right < right_end and lists[right] < lists[left]:
            right += 1
        if right == right_end or lists[right] != lists[left]:
            if top - begin == most:
                return -1
            lists[top] = lists[left]
            top += 1
        left += 1
    return top - begin


@njit()
def _common(lists, left, left_end, right, right_end, top, least):
    """Write what both lists have; -1 as soon as it can no longer be as many as `least`."""
    begin = top
    while left < left_end and right < right_end:
        if lists[left] < lists[right]:
            left += 1
            if top - begin + left_end - left < least:
                return -1
        elif lists[left] > lists[right]:
            right += 1
            if top - begin + right_end - right < least:
                return -1
        else:
            lists[top] = lists[left]
            top, left, right = top + 1, left + 1, right + 1
    return top - begin if top - begin >= least else -1


@njit()
def mine_lists(out, count, root, support, group, lists, state, histogram, most, limit, stored):
    """Mine a class of one item; its members are lists of baskets, below a dense prefix diffsets.

    A diffset holds the baskets of the prefix that a member lacks: d(PXY) = t(PX) - t(PY), and
    d(PXY) = d(PY) - d(PX) below. Source: Zaki and Gouda 2003, section 3.
    """
    parents, items, supports = out
    own, own_supports, own_offsets = group
    size = len(own)
    members, member_supports = np.empty(4 * size, np.int32), np.empty(4 * size, np.int32)
    offsets, lengths = np.empty(4 * size, np.int64), np.empty(4 * size, np.int64)
    begins, ends = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    nexts, nodes = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    tops, prefixes = np.zeros(size + 2, np.int64), np.zeros(size + 2, np.int64)
    lacking = np.zeros(size + 2, np.bool_)
    for place in range(size):
        members[place], member_supports[place] = own[place], own_supports[place]
        offsets[place], lengths[place] = own_offsets[place], own_supports[place]
    depth, ends[0], nexts[0], nodes[0], prefixes[0] = 0, size, size, root, support
    tops[0] = own_offsets[size - 1] + own_supports[size - 1]
    while depth >= 0:
        if nexts[depth] == begins[depth]:
            depth -= 1
            continue
        nexts[depth] -= 1
        at = nexts[depth]
        held = member_supports[at]
        if held < state[0]:
            continue
        if count >= limit:
            return parents, items, supports, lists, count + 1
        node = count
        if stored:
            parents = reserve_long(parents, count + 1)
            items, supports = reserve(items, count + 1), reserve(supports, count + 1)
            parents[count], items[count], supports[count] = nodes[depth], members[at], held
        count += 1
        if state[2] and held >= state[0]:
            histogram[held] += 1
            state[1] += 1
            while state[1] - histogram[state[0]] >= state[2]:
                state[1] -= histogram[state[0]]
                state[0] += 1
        if depth + 3 > most or at + 1 == ends[depth]:
            continue
        begin, top, later = ends[depth], tops[depth], ends[depth] - at - 1
        if len(members) < begin + later:
            members = reserve(members, begin + later)
            member_supports = reserve(member_supports, begin + later)
            offsets, lengths = (
                reserve_long(offsets, begin + later),
                reserve_long(lengths, begin + later),
            )
        together, used = np.int64(0), begin
        for other in range(at + 1, ends[depth]):
            together += member_supports[other]
        # Members that hold in more than half of the prefix lack fewer baskets than they have.
        turns = lacking[depth] or 2 * together > later * prefixes[depth]
        for other in range(at + 1, ends[depth]):
            left, left_end = offsets[at], offsets[at] + lengths[at]
            right, right_end = offsets[other], offsets[other] + lengths[other]
            lists = reserve(lists, top + max(lengths[at], lengths[other]))
            if lacking[depth]:
                made = _without(lists, right, right_end, left, left_end, top, held - state[0])
            elif turns:
                made = _without(lists, left, left_end, right, right_end, top, held - state[0])
            else:
                made = _common(lists, left, left_end, right, right_end, top, state[0])
            if made < 0:
                continue
            members[used], offsets[used], lengths[used] = members[other], top, made
            member_supports[used] = held - made if turns else made
            used += 1
            top += made
        if used > begin:
            depth += 1
            begins[depth], ends[depth], nexts[depth] = begin, used, used
            nodes[depth], tops[depth], prefixes[depth] = node, top, held
            lacking[depth] = turns
    return parents, items, supports, lists, count
