"""The compiled event loop of a row: prompts, tokens and clocks change the power of its servers."""

import math

import numpy as np

from steelyard.jit import njit
from steelyard.sim.power.charging import bring
from steelyard.sim.power.state import DRAINING, OFF, ON, STARTING, RowState, RowTables

__all__ = ["advance", "scan", "set_clock", "set_servers", "settle"]

NOW, POWER_W, METER_J, OVER_SINCE, OVER_S, LONGEST_S = range(6)
_NONE = -1


@njit(error_model="numpy")
def advance(tables: RowTables, state: RowState, until_s: float) -> None:
    """Run all events up to and at a time, and account for the time up to it.

    Args:
        tables: what does not change.
        state: what does.
        until_s: seconds, not before the state's own time.
    """
    while True:
        server = int(np.argmin(state.next_s))
        first_s = float(state.next_s[server])
        from_class = _NONE
        for priority in range(len(state.arrived)):
            place = state.arrived[priority]
            if place < tables.bounds[priority + 1]:
                time_s = float(tables.arrival_s[tables.order[place]])
                if time_s < first_s:
                    first_s, from_class = time_s, priority
        if first_s > until_s:
            break
        _pass_to(state, first_s, tables.budget_w)
        if from_class == _NONE:
            _end(tables, state, server)
            _take(tables, state, server)
            _refresh(tables, state, server)
        else:
            state.arrived[from_class] += 1
            state.present[from_class] += 1
            server = _free_server(tables, state, from_class)
            if server != _NONE:
                bring(tables, state, server, first_s)
                _take(tables, state, server)
                _refresh(tables, state, server)
    _pass_to(state, until_s, tables.budget_w)


@njit(error_model="numpy")
def _pass_to(state: RowState, time_s: float, budget_w: float) -> None:
    """Let time pass at the power that the row draws."""
    totals = state.totals
    spent = time_s - totals[NOW]
    totals[METER_J] += spent * totals[POWER_W]
    if totals[POWER_W] > budget_w:
        totals[OVER_SINCE] = min(totals[OVER_SINCE], totals[NOW])
        totals[OVER_S] += spent
        totals[LONGEST_S] = max(totals[LONGEST_S], time_s - totals[OVER_SINCE])
    else:
        totals[OVER_SINCE] = math.inf
    for priority in range(len(state.present)):
        state.present_s[priority] += spent * state.present[priority]
    totals[NOW] = time_s


@njit(error_model="numpy")
def _end(tables: RowTables, state: RowState, server: int) -> None:
    """End what a server's next event ends: its start, a prompt, or the tokens of some requests."""
    now_s = state.totals[NOW]
    bring(tables, state, server, now_s)
    if state.mode[server] == STARTING:
        state.mode[server] = ON
        return
    request = state.prompt[server]
    if request != _NONE:
        state.prompt[server] = _NONE
        state.first_s[request] = now_s
        if tables.work_s[request] <= 0:
            _finish(tables, state, server, request)
            return
        slot = state.active[server]
        state.request[server, slot] = request
        state.done_s[server, slot] = state.work_s[server] + tables.work_s[request]
        state.active[server] = slot + 1
        return
    # The event is that of the least work to do: rounding must not leave it for a second event.
    least = np.min(state.done_s[server, : state.active[server]])
    state.work_s[server] = max(state.work_s[server], least)
    slot = 0
    while slot < state.active[server]:
        if state.done_s[server, slot] > state.work_s[server]:
            slot += 1
            continue
        last = state.active[server] - 1
        ended = state.request[server, slot]
        state.request[server, slot] = state.request[server, last]
        state.done_s[server, slot] = state.done_s[server, last]
        state.active[server] = last
        _finish(tables, state, server, ended)
    if state.active[server] == 0:
        state.work_s[server] = 0.0  # else the scale would lose digits over weeks


@njit(error_model="numpy")
def _finish(tables: RowTables, state: RowState, server: int, request: int) -> None:
    """Let a request end now; a server that was only waiting for it goes off."""
    state.finish_s[request] = state.totals[NOW]
    state.present[tables.priority[server]] -= 1
    if state.mode[server] == DRAINING and state.active[server] == 0:
        state.mode[server] = OFF


@njit(error_model="numpy")
def _take(tables: RowTables, state: RowState, server: int) -> None:
    """Begin the prompt of the first request that waits, where the server has a slot."""
    priority = tables.priority[server]
    place = state.taken[priority]
    is_full = state.active[server] + 1 >= len(tables.slow)
    may_take = state.mode[server] == ON and state.prompt[server] == _NONE and not is_full
    if place >= state.arrived[priority] or not may_take:
        return
    request = tables.order[place]
    state.taken[priority] = place + 1
    state.prompt[server] = request
    state.left_s[server] = tables.prompt_s[request]


@njit(error_model="numpy")
def _free_server(tables: RowTables, state: RowState, priority: int) -> int:
    """Return the server of a priority with the fewest requests that can begin a prompt, or -1."""
    found, fewest = _NONE, len(tables.slow) - 1
    for server in range(len(tables.priority)):
        is_on = tables.priority[server] == priority and state.mode[server] == ON
        is_free = is_on and state.prompt[server] == _NONE
        if is_free and state.active[server] < fewest:
            found, fewest = server, state.active[server]
    return found


@njit(error_model="numpy")
def set_clock(tables: RowTables, state: RowState, priority: int, clock: float) -> None:
    """Let a clock take effect on the servers of a priority now.

    Args:
        tables: what does not change.
        state: what does; it stands at the present.
        priority: priority of the servers.
        clock: over the highest, in (0, 1].
    """
    state.clock[priority] = clock
    for server in range(len(tables.priority)):
        if tables.priority[server] == priority:
            bring(tables, state, server, state.totals[NOW])
            _refresh(tables, state, server)


@njit(error_model="numpy")
def settle(tables: RowTables, state: RowState) -> None:
    """Bring all servers to the present, so that every joule is charged."""
    for server in range(len(tables.priority)):
        bring(tables, state, server, state.totals[NOW])


@njit(error_model="numpy")
def set_servers(
    tables: RowTables, state: RowState, priority: int, count: int, delays_s: np.ndarray
) -> None:
    """Let some servers of a priority start, or go off once they have ended what they have.

    Those that drain are kept before others start, and those that start are given up before others
    drain.

    Args:
        tables: what does not change.
        state: what does; it stands at the present.
        priority: priority of the servers.
        count: servers to be on or starting.
        delays_s: seconds until each server would be ready, [servers].
    """
    settle(tables, state)
    more = count
    for server in range(len(tables.priority)):
        if tables.priority[server] == priority and state.mode[server] in (ON, STARTING):
            more -= 1
    for turn in range(3):
        for server in range(len(tables.priority)):
            if tables.priority[server] == priority and more:
                more -= _switched(state, server, more, turn, delays_s[server])
    for server in range(len(tables.priority)):
        if tables.priority[server] == priority:
            _take(tables, state, server)
            _refresh(tables, state, server)


@njit(error_model="numpy")
def _switched(state: RowState, server: int, more: int, turn: int, delay_s: float) -> int:
    """Switch one server if it is its turn; return 1 for one more, -1 for one fewer, else 0."""
    mode = state.mode[server]
    if more > 0:
        if mode == (DRAINING, OFF, OFF)[turn]:
            state.mode[server] = ON if mode == DRAINING else STARTING
            state.ready_s[server] = state.totals[NOW] + delay_s
            return 1
        return 0
    is_idle = state.prompt[server] == _NONE and state.active[server] == 0
    # Idle ones go first: they are off at once.
    if mode == (STARTING, ON, ON)[turn] and (is_idle or turn == 2):
        state.mode[server] = OFF if is_idle else DRAINING
        return -1
    return 0


@njit(error_model="numpy")
def _refresh(tables: RowTables, state: RowState, server: int) -> None:
    """Set a server's power, speed and next event from its state and clock.

    Args:
        tables: what does not change.
        state: what does; the server has been brought to the present.
        server: number of the server.
    """
    clock = state.clock[tables.priority[server]]
    above = (1 - tables.cubic) * clock + tables.cubic * clock**3
    request, active = state.prompt[server], state.active[server]
    full_w, state.next_s[server] = tables.token_w[active], math.inf
    if state.mode[server] == STARTING:
        state.next_s[server] = state.ready_s[server]
    elif request != _NONE:
        full_w = tables.prompt_w[request]
        state.speed[server] = 1 / (1 + tables.prompt_clocked[request] * (1 / clock - 1))
        left = max(state.left_s[server], 0.0)
        state.next_s[server] = state.totals[NOW] + left / state.speed[server]
    elif active > 0:
        longer = 1 + tables.token_clocked * (1 / clock - 1)
        state.speed[server] = 1 / (tables.slow[active] * longer)
        left = np.min(state.done_s[server, :active]) - state.work_s[server]
        state.next_s[server] = state.totals[NOW] + max(left, 0.0) / state.speed[server]
    idle_w = tables.token_w[0]
    watts = tables.host_w + idle_w + (full_w - idle_w) * above
    state.watts[server] = 0.0 if state.mode[server] == OFF else watts
    # Sums of changes would drift over weeks.
    state.totals[POWER_W] = state.watts.sum()


@njit(error_model="numpy")
def scan(
    tables: RowTables,
    state: RowState,
    rng: np.random.Generator,
    ticks: tuple[int, int],
    period_s: float,
    late: int,
    errors: tuple[float, float],
    band: tuple[float, float],
    truth_w: np.ndarray,
    shown_w: np.ndarray,
) -> int:
    """Read the row's meter tick by tick until what a policy sees leaves a band.

    Args:
        tables: what does not change.
        state: what does.
        rng: draws noise and losses, as `sim.control.Meter.shown` does.
        ticks: first tick to read, and the one before which to stop.
        period_s: seconds between ticks.
        late: ticks from a sample until it is seen.
        errors: noise and loss of the meter.
        band: lowest and highest reading that change nothing.
        truth_w: filled with the power at each tick.
        shown_w: filled with what the meter shows, NaN where a sample is lost.

    Returns:
        The tick at which the reading seen is outside, after it was read; the last one otherwise.
    """
    noise, loss = errors
    for tick in range(ticks[0], ticks[1]):
        advance(tables, state, tick * period_s)
        power_w = state.totals[POWER_W]
        truth_w[tick] = power_w
        if loss > 0 and rng.random() < loss:
            shown_w[tick] = math.nan
        else:
            shown_w[tick] = power_w * (1 + noise * rng.standard_normal()) if noise else power_w
        seen = tick - late
        while seen >= 0 and math.isnan(shown_w[seen]):
            seen -= 1
        if seen < 0 or not band[0] <= shown_w[seen] <= band[1]:
            return tick
    return ticks[1] - 1
