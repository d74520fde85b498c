"""One lane of the compiled loop: `serve`'s scheduler of plain requests, as counts of blocks.

A lane is a micro-batch of a replica with a pool of its own. What it does follows
`serve.scheduling.Scheduler` decision for decision under the order of arrival, without shared
prefixes and with recomputation after preemption; a test holds both side by side.
"""

from steelyard.jit import njit
from steelyard.sim.fleet.state import NONE, FleetState

__all__ = ["blocks_for", "complete", "enqueue", "plan", "plan_prompts", "run_job"]


@njit(inline="always")
def blocks_for(tokens: int, size: int) -> int:
    """Return the blocks of a size that hold so many tokens."""
    return (tokens + size - 1) // size


@njit()
def enqueue(state: FleetState, lane: int, job: int) -> None:
    """Let a request wait behind all others of a lane."""
    row = state.lanes[lane]
    state.jobs[job].order = row.orders
    row.orders += 1
    state.jobs[job].after = NONE
    if row.head == NONE:
        row.head = job
    else:
        state.jobs[row.tail].after = job
    row.tail = job


@njit()
def run_job(state: FleetState, lane: int, job: int) -> None:
    """Put a request among those that run, by order."""
    row, order = state.lanes[lane], state.jobs[job].order
    place = row.running
    while place > 0 and state.jobs[state.running[lane, place - 1]].order > order:
        state.running[lane, place] = state.running[lane, place - 1]
        place -= 1
    state.running[lane, place] = job
    row.running += 1


@njit()
def _waiting(state: FleetState, lane: int) -> int:
    """Return the request that comes first of those that wait, NONE without any."""
    row = state.lanes[lane]
    # One that was preempted was admitted before all that never ran.
    return state.stack[lane, row.stack - 1] if row.stack else row.head


@njit()
def _preempt_last(state: FleetState, lane: int) -> int:
    """Take the blocks of the running request that comes last; return it."""
    row = state.lanes[lane]
    row.running -= 1
    job = state.running[lane, row.running]
    item = state.jobs[job]
    row.free += item.blocks
    item.blocks, item.computed = 0, 0
    item.preempted += 1
    state.counts[2] += 1
    place = row.stack
    while place > 0 and state.jobs[state.stack[lane, place - 1]].order < item.order:
        state.stack[lane, place] = state.stack[lane, place - 1]
        place -= 1
    state.stack[lane, place] = job
    row.stack += 1
    return job


@njit()
def _admit(state: FleetState, group: int, lane: int, job: int, running: int) -> bool:
    """Take blocks for all tokens of a waiting request, if there are enough and one to spare."""
    rule, row, item = state.groups[group], state.lanes[lane], state.jobs[job]
    if running + 1 > rule.most:
        return False
    tokens = item.input + item.made
    headroom = max(rule.watermark, 1) if running else 0
    if blocks_for(tokens + 1, rule.size) + headroom > row.free:
        return False
    item.blocks, item.computed = blocks_for(tokens, rule.size), 0
    row.free -= item.blocks
    if row.stack:
        row.stack -= 1
    else:
        row.head = item.after
    return True


@njit()
def _add_prompt(state: FleetState, job: int, length: int) -> None:
    """Add a chunk of a prompt to the step."""
    item, features = state.jobs[job], state.features
    pending = item.input + item.made - item.computed
    item.computed += length
    item.mark = 2 if length == pending else 1
    features[1] += 1.0
    features[2] += length
    features[3] += length * (item.computed - (length - 1) / 2)


@njit()
def _add_decodes(state: FleetState, group: int, lane: int) -> bool:
    """Add the lane's decoding requests to the step; return whether blocks were short."""
    row, size = state.lanes[lane], state.groups[group].size
    is_short, index = False, 0
    while index < row.running:
        job = state.running[lane, index]
        item = state.jobs[job]
        index += 1
        if item.made == 0 or item.input + item.made - item.computed != 1:
            continue
        if item.computed >= item.blocks * size:
            last = NONE
            while row.free < 1 and last != job:
                is_short = True
                last = _preempt_last(state, lane)
            if last == job:
                break  # It came last itself, so nobody is left behind it.
            item.blocks += 1
            row.free -= 1
        item.computed += 1
        item.mark = 2
        state.features[1] += 1.0
        state.features[4] += 1.0
        state.features[5] += item.computed
    return is_short


@njit()
def _add_whole_prompts(state: FleetState, group: int, lane: int) -> None:
    """Admit whole prompts up to the token budget, or one that is longer."""
    total = 0
    budget = state.groups[group].budget
    while True:
        job = _waiting(state, lane)
        if job == NONE:
            return
        tokens = state.jobs[job].input + state.jobs[job].made
        if total and total + tokens > budget:
            return
        if not _admit(state, group, lane, job, state.lanes[lane].running):
            return
        run_job(state, lane, job)
        _add_prompt(state, job, tokens)
        total += tokens


@njit()
def _add_chunks(state: FleetState, group: int, lane: int) -> None:
    """Add decoding requests, then prompts in parts while the token budget lasts."""
    is_short = _add_decodes(state, group, lane)
    row = state.lanes[lane]
    budget = state.groups[group].budget - int(state.features[4])
    for index in range(row.running):
        item = state.jobs[state.running[lane, index]]
        pending = item.input + item.made - item.computed
        if budget > 0 and item.mark == 0 and pending and not (pending == 1 and item.made):
            length = min(pending, budget)
            _add_prompt(state, state.running[lane, index], length)
            budget -= length
    while budget > 0 and not is_short:
        job = _waiting(state, lane)
        if job == NONE or not _admit(state, group, lane, job, row.running):
            return
        run_job(state, lane, job)
        length = min(state.jobs[job].input + state.jobs[job].made, budget)
        _add_prompt(state, job, length)
        budget -= length


@njit()
def plan(state: FleetState, group: int, lane: int) -> bool:
    """Fill `features` with the next step of a lane that is idle; False when nothing can run."""
    state.features[:] = 0.0
    if state.groups[group].whole:
        _add_whole_prompts(state, group, lane)
        if state.features[1] == 0.0:
            _add_decodes(state, group, lane)
    else:
        _add_chunks(state, group, lane)
    return state.features[1] > 0.0


@njit()
def plan_prompts(state: FleetState, group: int, lane: int, replica: int) -> bool:
    """Fill `features` with the next prompts of a replica that only runs prompts.

    They leave the lane for the replica's pipeline, with their blocks.
    """
    state.features[:] = 0.0
    rule, row = state.replicas[replica], state.lanes[lane]
    total, count = 0, 0
    while True:
        job = row.head
        if job == NONE or (total and total + state.jobs[job].input > state.groups[group].budget):
            break
        if not _admit(state, group, lane, job, count):
            break
        item = state.jobs[job]
        _add_prompt(state, job, item.input)
        item.held, item.blocks = item.blocks, 0
        item.after = NONE
        if rule.fly_head == NONE:
            rule.fly_head = job
        else:
            state.jobs[rule.fly_tail].after = job
        rule.fly_tail = job
        total += item.input
        count += 1
    return count > 0


@njit()
def complete(state: FleetState, lane: int, now_s: float) -> int:
    """Hand out the tokens of a lane's step; return how many requests ended."""
    row, kept = state.lanes[lane], 0
    for index in range(row.running):
        job = state.running[lane, index]
        item = state.jobs[job]
        if item.mark == 2:
            item.made += 1
            item.last_s = now_s
            if item.made == 1:
                item.first_s = now_s
        item.mark = 0
        if item.made == item.output:
            row.free += item.blocks
            item.blocks = 0
        else:
            state.running[lane, kept] = job
            kept += 1
    ended = row.running - kept
    row.running, row.busy = kept, 0
    return ended
