"""One lane of the compiled loop: `serve`'s scheduler of plain requests, with blocks as counts.

A lane is a micro-batch of a replica with a pool of its own. What it does follows
`serve.scheduling.Scheduler` decision for decision, by the order of arrival or by priority, with
recomputation after preemption; a test holds both side by side.
"""

from steelyard.jit import njit_inner
from steelyard.sim.fleet.cache import available, release, remember, share, take
from steelyard.sim.fleet.state import (
    CHUNKS,
    DECODE,
    NONE,
    ONE,
    PREEMPTED,
    RANKED,
    RUNNING,
    FleetState,
)

__all__ = ["complete", "enqueue", "plan", "plan_prompts", "run_job"]


@njit_inner(inline="always")
def _comes_before(state: FleetState, job: int, other: int) -> bool:
    """Whether a request is served before another one of its lane."""
    one, two = state.jobs[job], state.jobs[other]
    return one.rank < two.rank or (one.rank == two.rank and one.order < two.order)


@njit_inner()
def enqueue(state: FleetState, lane: int, job: int) -> None:
    """Let a request wait behind all of its rank and those before."""
    row, item = state.lanes[lane], state.jobs[job]
    item.order = row.orders
    row.orders += 1
    before, rank = NONE, item.rank
    while before == NONE and rank >= 0:
        before = state.tails[lane, rank]
        rank -= 1
    state.tails[lane, item.rank] = job
    if before == NONE:
        item.after, row.head = row.head, job
    else:
        item.after = state.jobs[before].after
        state.jobs[before].after = job


@njit_inner()
def _dequeue(state: FleetState, lane: int) -> None:
    """Take the first request out of the queue of those that never ran."""
    row = state.lanes[lane]
    item = state.jobs[row.head]
    if state.tails[lane, item.rank] == row.head:
        state.tails[lane, item.rank] = NONE
    row.head, item.after = item.after, NONE


@njit_inner()
def run_job(state: FleetState, lane: int, job: int) -> None:
    """Put a request among those that run, by order."""
    row, order = state.lanes[lane], state.jobs[job].order
    place = row.running
    while place > 0 and state.jobs[state.lists[RUNNING, lane, place - 1]].order > order:
        state.lists[RUNNING, lane, place] = state.lists[RUNNING, lane, place - 1]
        place -= 1
    state.lists[RUNNING, lane, place] = job
    row.running += 1


@njit_inner()
def _stop_job(state: FleetState, lane: int, job: int) -> None:
    """Take a request out of those that run."""
    row = state.lanes[lane]
    row.running -= 1
    place, moved = row.running, state.lists[RUNNING, lane, row.running]
    # From the end, where whoever is preempted mostly stands.
    while moved != job:
        place -= 1
        moved, state.lists[RUNNING, lane, place] = state.lists[RUNNING, lane, place], moved


@njit_inner()
def _waiting(state: FleetState, lane: int) -> int:
    """Return the request that comes first of those that wait, NONE without any."""
    row = state.lanes[lane]
    if not row.stack:
        return row.head
    preempted = state.lists[PREEMPTED, lane, row.stack - 1]
    if row.head == NONE or _comes_before(state, preempted, row.head):
        return preempted
    return row.head


@njit_inner()
def _rank_running(state: FleetState, lane: int) -> None:
    """Fill a list with the running requests, the first to run first."""
    for index in range(state.lanes[lane].running):
        job, place = state.lists[RUNNING, lane, index], index
        while place > 0 and _comes_before(state, job, state.lists[RANKED, lane, place - 1]):
            state.lists[RANKED, lane, place] = state.lists[RANKED, lane, place - 1]
            place -= 1
        state.lists[RANKED, lane, place] = job


@njit_inner()
def _preempt(state: FleetState, group: int, lane: int, job: int) -> None:
    """Take the blocks of a running request."""
    row, item = state.lanes[lane], state.jobs[job]
    _stop_job(state, lane, job)
    release(state, group, lane, job, item.blocks)
    item.blocks, item.computed = 0, 0
    item.preempted += 1
    state.counts[2] += 1
    place = row.stack
    while place > 0 and _comes_before(state, state.lists[PREEMPTED, lane, place - 1], job):
        state.lists[PREEMPTED, lane, place] = state.lists[PREEMPTED, lane, place - 1]
        place -= 1
    state.lists[PREEMPTED, lane, place] = job
    row.stack += 1


@njit_inner()
def _admit(state: FleetState, group: int, lane: int, job: int, running: int) -> bool:
    """Find the first request that waits blocks, if there are enough and one to spare."""
    rule, row, item = state.groups[group], state.lanes[lane], state.jobs[job]
    if running + 1 > rule.most:
        return False
    if not share(state, group, lane, job, max(rule.watermark, 1) if running else 0):
        return False
    if rule.role != DECODE:
        item.cached = min(item.computed, item.input)
    if row.stack and state.lists[PREEMPTED, lane, row.stack - 1] == job:
        row.stack -= 1
    else:
        _dequeue(state, lane)
    return True


@njit_inner(inline="always")
def _join(state: FleetState, lane: int, job: int) -> None:
    """Note that a request has a part in the step."""
    row = state.lanes[lane]
    state.lists[CHUNKS, lane, row.chunks] = job
    row.chunks += 1


@njit_inner()
def _add_prompt(state: FleetState, lane: int, job: int, length: int) -> None:
    """Add a chunk of a prompt to the step."""
    item, features = state.jobs[job], state.features
    pending = item.input + item.made - item.computed
    _join(state, lane, job)
    item.start = item.computed
    item.computed += length
    item.mark = 2 if length == pending else 1
    features[1] += 1.0
    features[2] += length
    features[3] += length * (item.computed - (length - 1) / 2)


@njit_inner(inline="always")
def _prompt_left(state: FleetState, job: int) -> int:
    """Return the tokens that a request may run as a prompt; 0 while it decodes."""
    item = state.jobs[job]
    pending = item.input + item.made - item.computed
    return 0 if pending == 1 and item.made else pending


@njit_inner()
def _add_decodes(state: FleetState, group: int, lane: int) -> bool:
    """Add the lane's decoding requests to the step; return whether blocks were short."""
    size, is_ranked = state.groups[group].size, state.groups[group].ranked
    count = state.lanes[lane].running
    if is_ranked:
        _rank_running(state, lane)
    is_short, index = False, 0
    while index < count:
        job = state.lists[RANKED, lane, index] if is_ranked else state.lists[RUNNING, lane, index]
        item = state.jobs[job]
        index += 1
        if item.made == 0 or item.input + item.made - item.computed != 1:
            continue
        if item.computed >= item.blocks * size:
            last = NONE
            while available(state, lane) < 1 and last != job:
                is_short = True
                count -= 1
                last = (
                    state.lists[RANKED, lane, count]
                    if is_ranked
                    else state.lists[RUNNING, lane, count]
                )
                _preempt(state, group, lane, last)
            if last == job:
                break  # It came last itself, so nobody is left behind it.
            item.blocks += 1
            take(state, lane, ONE)
        _join(state, lane, job)
        item.start = item.computed
        item.computed += 1
        item.mark = 2
        state.features[1] += 1.0
        state.features[4] += 1.0
        state.features[5] += item.computed
    return is_short


@njit_inner()
def _add_whole_prompts(state: FleetState, group: int, lane: int) -> None:
    """Admit whole prompts up to the token budget, or one that is longer."""
    total = 0
    budget = state.groups[group].budget
    while True:
        job = _waiting(state, lane)
        if job == NONE:
            return
        if total and total + state.jobs[job].input + state.jobs[job].made > budget:
            return
        if not _admit(state, group, lane, job, state.lanes[lane].running):
            return
        run_job(state, lane, job)
        length = _prompt_left(state, job)
        if length:
            _add_prompt(state, lane, job, length)
        total += length


@njit_inner()
def _add_chunks(state: FleetState, group: int, lane: int) -> None:
    """Add decoding requests, then prompts in parts while the token budget lasts."""
    is_short = _add_decodes(state, group, lane)
    row = state.lanes[lane]
    budget = state.groups[group].budget - int(state.features[4])
    for index in range(row.running):
        job = state.lists[RUNNING, lane, index]
        length = min(_prompt_left(state, job), budget)
        if length > 0 and state.jobs[job].mark == 0:
            _add_prompt(state, lane, job, length)
            budget -= length
    while budget > 0 and not is_short:
        job = _waiting(state, lane)
        if job == NONE or not _admit(state, group, lane, job, row.running):
            return
        run_job(state, lane, job)
        length = min(_prompt_left(state, job), budget)
        if length:
            _add_prompt(state, lane, job, length)
            budget -= length


@njit_inner()
def plan(state: FleetState, group: int, lane: int) -> bool:
    """Fill `features` with the next step of a lane that is idle; False when nothing can run."""
    state.features[:] = 0.0
    row = state.lanes[lane]
    row.chunks = 0
    # One that was admitted with all but its last token in the cache decodes at the second look.
    for _ in range(2):
        if state.groups[group].whole:
            _add_whole_prompts(state, group, lane)
            if state.features[1] == 0.0:
                _add_decodes(state, group, lane)
        else:
            _add_chunks(state, group, lane)
        if row.chunks or not row.running:
            break
    return row.chunks > 0


@njit_inner()
def plan_prompts(state: FleetState, group: int, lane: int, replica: int) -> bool:
    """Fill `features` with the next prompts of a replica that only runs prompts.

    They leave the lane for the replica's pipeline, with their blocks.
    """
    state.features[:] = 0.0
    rule, row = state.replicas[replica], state.lanes[lane]
    row.chunks = 0
    total = 0
    while True:
        job = row.head
        if job == NONE or (total and total + state.jobs[job].input > state.groups[group].budget):
            break
        if not _admit(state, group, lane, job, row.chunks):
            break
        item = state.jobs[job]
        length = item.input - item.computed
        _add_prompt(state, lane, job, length)
        item.held, item.blocks = item.blocks, 0
        if rule.fly_head == NONE:
            rule.fly_head = job
        else:
            state.jobs[rule.fly_tail].after = job
        rule.fly_tail = job
        total += length
    for index in range(row.chunks):
        job = state.lists[CHUNKS, lane, index]
        # The stages keep the order, so a later prompt may count on what an earlier one leaves.
        remember(state, group, lane, job, state.jobs[job].start, state.jobs[job].input)
    return row.chunks > 0


@njit_inner(inline="always")
def _hand_out(state: FleetState, group: int, lane: int, job: int, now_s: float) -> None:
    """Give a request its token of the step; one that has all gives up its blocks."""
    item = state.jobs[job]
    if item.mark == 2:
        item.made += 1
        item.last_s = now_s
        if item.made == 1:
            item.first_s = now_s
        if item.made == item.output:
            release(state, group, lane, job, item.blocks)
            item.blocks = 0
    item.mark = 0


@njit_inner()
def complete(state: FleetState, group: int, lane: int, now_s: float) -> int:
    """Hand out the tokens of a lane's step; return how many requests ended."""
    row, kept = state.lanes[lane], 0
    is_caching = state.groups[group].caching
    if is_caching:
        for index in range(row.chunks):
            job = state.lists[CHUNKS, lane, index]
            item = state.jobs[job]
            remember(state, group, lane, job, item.start, item.computed)
        # Who joined the step first leaves its blocks first.
        for index in range(row.chunks):
            _hand_out(state, group, lane, state.lists[CHUNKS, lane, index], now_s)
    for index in range(row.running):
        job = state.lists[RUNNING, lane, index]
        if not is_caching:
            _hand_out(state, group, lane, job, now_s)
        if state.jobs[job].made < state.jobs[job].output:
            state.lists[RUNNING, lane, kept] = job
            kept += 1
    ended = row.running - kept
    row.running, row.busy, row.chunks = kept, 0, 0
    return ended
