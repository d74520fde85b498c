"""The compiled event loop of a fleet; `fleet` is the same on `EventLoop` with real schedulers."""

import math

from steelyard.cost.phase_time import phase_step_s
from steelyard.cost.step_time import FIRST_TOKENS
from steelyard.jit import njit_borrowing, njit_inner
from steelyard.sim.fleet.cache import matched, release, remember, share
from steelyard.sim.fleet.lane import complete, enqueue, plan, plan_prompts, run_job
from steelyard.sim.fleet.state import (
    DECODE,
    LONGEST,
    NONE,
    ONE,
    PREFILL,
    ROTATION,
    ZERO,
    FleetState,
)

__all__ = ["run_events"]


@njit_borrowing()
def run_events(state: FleetState) -> bool:
    """Run all requests to their ends.

    Args:
        state: tables of a fleet in which nothing has happened yet.

    Returns:
        False when some request can never run.
    """
    jobs, replicas = state.jobs, state.replicas
    coming = ZERO
    while state.counts[1] < len(jobs):
        now_s = math.inf
        for index in range(len(replicas)):
            now_s = min(now_s, replicas[index].next_s)
        # An arrival comes before whatever else happens at its time.
        if coming < len(jobs) and jobs[coming].arrival_s <= now_s:
            now_s = jobs[coming].arrival_s
            _send(state, ZERO, coming, now_s)
            coming += 1
        elif now_s == math.inf:
            return False
        else:
            for index in range(len(replicas)):
                if replicas[index].next_s <= now_s:
                    replicas[index].touched = 1
        _settle(state, now_s)
    return True


@njit_inner()
def _settle(state: FleetState, now_s: float) -> None:
    """Advance replicas until nothing more happens at this time."""
    replicas = state.replicas
    is_calm = False
    while not is_calm:
        is_calm = True
        for index in range(len(replicas)):
            if not replicas[index].touched:
                continue
            is_calm = False
            replicas[index].touched = 0
            if state.groups[replicas[index].group].role == PREFILL:
                _advance_prompts(state, index, now_s)
            else:
                _advance_lanes(state, index, now_s)


@njit_inner()
def _send(state: FleetState, group: int, job: int, now_s: float) -> None:
    """Route a request to a replica of a group, and to a lane of it."""
    rule, item = state.groups[group], state.jobs[job]
    item.rank = item.given if rule.ranked else 0
    if rule.rule == ROTATION:
        chosen = _next_open(state, group, now_s)
    else:
        chosen = _choose(state, group, job, now_s)
    if chosen == NONE:
        # Nobody had a turn: the request waits where a replica opens next.
        chosen = _first_to_open(state, group, now_s)
    else:
        rule.turn += 1
    replica = state.replicas[chosen]
    replica.load += 1
    replica.touched = 1
    lane = replica.lane
    for index in range(replica.lane, replica.lane + rule.lanes):
        if state.lanes[index].load < state.lanes[lane].load:
            lane = index
    state.lanes[lane].load += 1
    if rule.role != DECODE:
        item.first, item.lane = chosen, lane
        enqueue(state, lane, job)
        return
    if item.first == NONE:  # Its prompt is taken to have run before it came.
        item.first_s, item.last_s, item.made = now_s, now_s, 1
    item.second = chosen
    _queue_pull(state, lane, job)


@njit_inner(inline="always")
def _is_open(state: FleetState, index: int, now_s: float) -> bool:
    """Whether a replica takes requests."""
    return state.replicas[index].open_s <= now_s < state.replicas[index].close_s


@njit_inner()
def _next_open(state: FleetState, group: int, now_s: float) -> int:
    """Return the replica whose turn it is, of those that are open; NONE without any."""
    rule, count = state.groups[group], 0
    for index in range(rule.replica, rule.replica + rule.count):
        count += _is_open(state, index, now_s)
    if not count:
        return NONE
    turn = rule.turn % count
    for index in range(rule.replica, rule.replica + rule.count):
        if _is_open(state, index, now_s):
            if turn == 0:
                return index
            turn -= 1
    return NONE


@njit_inner()
def _first_to_open(state: FleetState, group: int, now_s: float) -> int:
    """Return the replica that opens next; where none does, that which closes last."""
    rule = state.groups[group]
    chosen = NONE
    for index in range(rule.replica, rule.replica + rule.count):
        replica = state.replicas[index]
        if replica.open_s <= now_s or replica.close_s <= replica.open_s:
            continue
        if chosen == NONE or replica.open_s < state.replicas[chosen].open_s:
            chosen = index
    if chosen != NONE:
        return chosen
    chosen = rule.replica
    for index in range(rule.replica, rule.replica + rule.count):
        if state.replicas[index].close_s > state.replicas[chosen].close_s:
            chosen = index
    return chosen


@njit_inner()
def _choose(state: FleetState, group: int, job: int, now_s: float) -> int:
    """Return the open replica with the fewest requests, of those that hold most of a prompt.

    Only replicas count that are not crowded; where prompts do not matter, only the emptiest do.
    """
    rule = state.groups[group]
    fewest = NONE
    for index in range(rule.replica, rule.replica + rule.count):
        if _is_open(state, index, now_s):
            load = state.replicas[index].load
            fewest = load if fewest == NONE else min(fewest, load)
    chosen, most = NONE, -1
    for index in range(rule.replica, rule.replica + rule.count):
        replica = state.replicas[index]
        if not _is_open(state, index, now_s) or replica.load > fewest + rule.slack:
            continue
        held = 0
        if rule.rule == LONGEST:
            for lane in range(replica.lane, replica.lane + rule.lanes):
                blocks = (state.jobs[job].input - 1) // rule.size
                held = max(held, matched(state, group, lane, job, blocks))
        if held > most or (held == most and replica.load < state.replicas[chosen].load):
            chosen, most = index, held
    return chosen


@njit_inner()
def _queue_pull(state: FleetState, lane: int, job: int) -> None:
    """Let a request wait until a lane has room for its keys and values."""
    row = state.lanes[lane]
    state.jobs[job].after = NONE
    if row.pull_head == NONE:
        row.pull_head = job
    else:
        state.jobs[row.pull_tail].after = job
    row.pull_tail = job


@njit_inner()
def _through_stages(state: FleetState, replica: int, now_s: float) -> float:
    """Pass the planned step through the stages of a replica; return its end."""
    group = state.replicas[replica].group
    rule, features = state.groups[group], state.features
    features[0] = 1.0
    features[6] = min(features[2] + features[4], FIRST_TOKENS)
    each_s = phase_step_s(state.tables[group], rule.large, features) / rule.stages
    end_s = now_s
    for stage in range(rule.stages):
        end_s = max(end_s, state.stage_s[replica, stage]) + each_s
        state.stage_s[replica, stage] = end_s
    return end_s


@njit_inner()
def _log(state: FleetState, replica: int, lane: int, now_s: float, end_s: float) -> None:
    """Count a step, and keep it where there is room."""
    index = state.counts[0]
    state.counts[0] += 1
    if index < len(state.steps):
        row = state.steps[index]
        row.replica, row.lane = replica, lane - state.replicas[replica].lane
        row.start_s, row.end_s = now_s, end_s
        row.prompt_tokens, row.decodes = int(state.features[2]), int(state.features[4])


@njit_inner()
def _advance_prompts(state: FleetState, index: int, now_s: float) -> None:
    """Hand over prompts that ran, and start the next."""
    replica = state.replicas[index]
    row = state.lanes[replica.lane]
    while replica.fly_head != NONE and state.jobs[replica.fly_head].first_s <= now_s:
        job = replica.fly_head
        item = state.jobs[job]
        replica.fly_head = item.after
        replica.load -= 1
        row.load -= 1
        item.made, item.last_s, item.mark = 1, item.first_s, 0
        if item.output > 1 and len(state.groups) > 1:
            _send(state, ONE, job, now_s)
            continue
        release(state, replica.group, replica.lane, job, item.held)
        item.held = 0
        state.counts[1] += 1
    while state.stage_s[index, 0] <= now_s:
        before = replica.fly_tail if replica.fly_head != NONE else NONE
        if not plan_prompts(state, replica.group, replica.lane, index):
            break
        end_s = _through_stages(state, index, now_s)
        _log(state, index, replica.lane, now_s, end_s)
        job = replica.fly_head if before == NONE else state.jobs[before].after
        while job != NONE:
            state.jobs[job].first_s = end_s
            job = state.jobs[job].after
    replica.next_s = math.inf
    if row.head != NONE and state.stage_s[index, 0] > now_s:
        replica.next_s = state.stage_s[index, 0]
    if replica.fly_head != NONE:
        replica.next_s = min(replica.next_s, state.jobs[replica.fly_head].first_s)


@njit_inner()
def _advance_lanes(state: FleetState, index: int, now_s: float) -> None:
    """Take results and transfers, and start transfers and steps."""
    replica = state.replicas[index]
    rule = state.groups[replica.group]
    for lane in range(replica.lane, replica.lane + rule.lanes):
        if state.lanes[lane].busy and state.lanes[lane].end_s <= now_s:
            ended = complete(state, replica.group, lane, now_s)
            replica.load -= ended
            state.lanes[lane].load -= ended
            state.counts[1] += ended
    if rule.role == DECODE:
        _land(state, index, now_s)
        is_moving = True
        while is_moving:
            for lane in range(replica.lane, replica.lane + rule.lanes):
                _pull(state, index, lane, now_s)
            is_moving = _land(state, index, now_s)
    while state.stage_s[index, 0] <= now_s and _start(state, index, now_s):
        pass
    replica.next_s = math.inf
    if replica.land_head != NONE:
        replica.next_s = state.jobs[replica.land_head].land_s
    for lane in range(replica.lane, replica.lane + rule.lanes):
        row = state.lanes[lane]
        if row.busy:
            replica.next_s = min(replica.next_s, row.end_s)
        elif (row.running or row.stack or row.head != NONE) and state.stage_s[index, 0] > now_s:
            replica.next_s = min(replica.next_s, state.stage_s[index, 0])


@njit_inner()
def _start(state: FleetState, index: int, now_s: float) -> bool:
    """Start a step of the first idle lane behind the one that planned last."""
    replica = state.replicas[index]
    rule = state.groups[replica.group]
    for turn in range(1, rule.lanes + 1):
        place = (replica.latest + turn) % rule.lanes
        lane = replica.lane + place
        if not state.lanes[lane].busy and plan(state, replica.group, lane):
            replica.latest = place
            state.lanes[lane].busy = 1
            state.lanes[lane].end_s = _through_stages(state, index, now_s)
            _log(state, index, lane, now_s, state.lanes[lane].end_s)
            return True
    return False


@njit_inner()
def _land(state: FleetState, index: int, now_s: float) -> bool:
    """Let requests run whose keys and values came, and free these where they came from."""
    replica = state.replicas[index]
    if replica.land_head == NONE or state.jobs[replica.land_head].land_s > now_s:
        return False
    while replica.land_head != NONE and state.jobs[replica.land_head].land_s <= now_s:
        job = replica.land_head
        item = state.jobs[job]
        replica.land_head = item.after
        row = state.lanes[item.lane]
        row.landing -= 1
        item.order = row.orders
        row.orders += 1
        remember(state, replica.group, item.lane, job, ZERO, item.input)
        item.computed = item.input
        if item.output <= item.made:  # It has all its tokens already.
            release(state, replica.group, item.lane, job, item.blocks)
            item.blocks = 0
            row.load -= 1
            replica.load -= 1
            state.counts[1] += 1
        else:
            run_job(state, item.lane, job)
        if item.first != NONE:
            source = state.replicas[item.first]
            release(state, source.group, source.lane, job, item.held)
            item.held = 0
            source.touched = 1
    return True


@njit_inner()
def _pull(state: FleetState, index: int, lane: int, now_s: float) -> None:
    """Start transfers into a lane while it has room for them, in order."""
    replica, row = state.replicas[index], state.lanes[lane]
    rule = state.groups[replica.group]
    # Who was preempted comes first; with room kept for those, it can always come back.
    while row.pull_head != NONE and not row.stack and row.head == NONE:
        job = row.pull_head
        item = state.jobs[job]
        headroom = max(rule.watermark, 1) if row.running else 0
        if row.running + row.landing + 1 > rule.most:
            return
        if not share(state, replica.group, lane, job, headroom):
            return
        row.pull_head = item.after
        row.landing += 1
        item.lane, item.after = lane, NONE
        begin_s = max(now_s, replica.link_s)
        # What an earlier request left here needs not come again.
        transfer_s = rule.latency_s + rule.token_s * (item.input - item.computed)
        item.land_s = begin_s + (transfer_s if item.first != NONE else 0.0)
        replica.link_s = item.land_s
        if replica.land_head == NONE:
            replica.land_head = job
        else:
            state.jobs[replica.land_tail].after = job
        replica.land_tail = job
