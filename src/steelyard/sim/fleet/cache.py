"""Blocks of one lane of the compiled loop: how many are free, and which contents are known.

What it does follows `serve.kv.BlockPool` and `PrefixIndex`, but knows blocks only by their
contents: every full block of every request has a place in the table of contents of its lane.
Without prefix caching all that is left is a count.
"""

from steelyard.jit import njit_inner
from steelyard.sim.fleet.state import NONE, FleetState

__all__ = ["available", "blocks_for", "matched", "release", "remember", "share", "take"]


@njit_inner(inline="always")
def blocks_for(tokens: int, size: int) -> int:
    """Return the blocks of a size that hold so many tokens."""
    return (tokens + size - 1) // size


@njit_inner(inline="always")
def available(state: FleetState, lane: int) -> int:
    """Return the blocks that can be taken: free ones, and known ones that nobody holds."""
    return state.lanes[lane].free + state.lanes[lane].idle


@njit_inner(inline="always")
def _slot(state: FleetState, group: int, lane: int, content: int) -> int:
    """Return the place of a content in a lane.

    A content that requests share has one in every lane; that of a single request has one in each
    group, as it runs in one lane of it.
    """
    shared, alone = state.counts[3], state.counts[4]
    if content < shared:
        return lane * shared + content
    return len(state.lanes) * shared + group * alone + content - shared


@njit_inner()
def _park(state: FleetState, lane: int, slot: int) -> None:
    """Note that nobody holds a known block any more: it is the last to be evicted."""
    row = state.lanes[lane]
    row.idle += 1
    state.places[slot].newer, state.places[slot].older = NONE, row.newest
    if row.newest == NONE:
        row.oldest = slot
    else:
        state.places[row.newest].newer = slot
    row.newest = slot


@njit_inner()
def _unpark(state: FleetState, lane: int, slot: int) -> None:
    """Take a block out of those that nobody holds."""
    row = state.lanes[lane]
    row.idle -= 1
    before, after = state.places[slot].older, state.places[slot].newer
    if before == NONE:
        row.oldest = after
    else:
        state.places[before].newer = after
    if after == NONE:
        row.newest = before
    else:
        state.places[after].older = before


@njit_inner()
def take(state: FleetState, lane: int, count: int) -> None:
    """Take blocks that are available, free ones first, then those that were left longest ago."""
    row = state.lanes[lane]
    for _ in range(count):
        if row.free > 0:
            row.free -= 1
        else:
            slot = row.oldest
            _unpark(state, lane, slot)
            state.places[slot].known = 0


@njit_inner()
def release(state: FleetState, group: int, lane: int, job: int, blocks: int) -> None:
    """Give up the leading blocks of a request, the last of them first."""
    row, item = state.lanes[lane], state.jobs[job]
    if not state.groups[group].caching:
        row.free += blocks
        return
    for index in range(blocks - 1, -1, -1):
        place = item.content + index
        if index >= item.full or not state.blocks[group, place].own:
            row.free += 1
            continue
        state.blocks[group, place].own = 0
        slot = _slot(state, group, lane, state.blocks[group, place].content)
        state.places[slot].users -= 1
        if state.places[slot].users == 0:
            _park(state, lane, slot)


@njit_inner()
def matched(state: FleetState, group: int, lane: int, job: int, most: int) -> int:
    """Return how many leading blocks of a request a lane knows, of the first `most`."""
    item, count = state.jobs[job], 0
    if not state.groups[group].caching:
        return 0
    while count < min(most, item.full):
        slot = _slot(state, group, lane, state.blocks[group, item.content + count].content)
        if not state.places[slot].known:
            break
        count += 1
    return count


@njit_inner()
def share(state: FleetState, group: int, lane: int, job: int, headroom: int) -> bool:
    """Find a request blocks for all its tokens, known ones first; False when there are too few.

    One more token has to fit, and `headroom` blocks have to stay available beside.
    """
    item, size = state.jobs[job], state.groups[group].size
    tokens = item.input + item.made
    count = matched(state, group, lane, job, (tokens - 1) // size)
    idle = 0
    for index in range(count):
        slot = _slot(state, group, lane, state.blocks[group, item.content + index].content)
        idle += state.places[slot].users == 0
    # Known blocks that nobody holds are available, but not for anything else once they are shared.
    fresh = blocks_for(tokens + 1, size) - count
    if fresh + idle + headroom > available(state, lane):
        return False
    for index in range(count):
        slot = _slot(state, group, lane, state.blocks[group, item.content + index].content)
        if state.places[slot].users == 0:
            _unpark(state, lane, slot)
        state.places[slot].users += 1
        state.blocks[group, item.content + index].own = 1
    item.blocks = blocks_for(tokens, size)
    take(state, lane, item.blocks - count)
    item.computed = count * size
    return True


@njit_inner()
def remember(state: FleetState, group: int, lane: int, job: int, start: int, stop: int) -> None:
    """Let the blocks that tokens [start, stop) of a request filled be found by others."""
    rule, item = state.groups[group], state.jobs[job]
    if not rule.caching:
        return
    for index in range(start // rule.size, stop // rule.size):
        place = item.content + index
        slot = _slot(state, group, lane, state.blocks[group, place].content)
        # The first block with a content stays the one that is found.
        if not state.places[slot].known and not state.blocks[group, place].own:
            state.places[slot].known, state.places[slot].users = 1, 1
            state.blocks[group, place].own = 1
