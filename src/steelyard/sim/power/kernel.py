"""The compiled event loop of a row: prompts, tokens and clocks change the power of its servers."""

import math
from typing import NamedTuple

import numpy as np

from steelyard.jit import njit

__all__ = ["RowState", "RowTables", "advance", "scan", "set_clock"]

NOW, POWER_W, METER_J, OVER_SINCE, OVER_S, LONGEST_S = range(6)
_NONE = -1


class RowTables(NamedTuple):
    """What does not change while a row is simulated.

    Attributes:
        arrival_s: arrivals, [requests].
        prompt_s: seconds of each prompt alone at the full clock, [requests].
        prompt_clocked: share of that which lengthens as the clock falls, [requests].
        prompt_w: power of a server's accelerators meanwhile, [requests].
        work_s: seconds of each request's tokens if it is alone, at the full clock, [requests].
        order: requests by priority and arrival, first those of high priority, [requests].
        bounds: where each priority begins in `order`, and where the last ends, [priorities + 1].
        priority: priority that each server serves, [servers].
        slow: seconds of a token over those of a lone request, by requests at once, [slots + 1].
        token_w: power of a server's accelerators while they generate, by requests at once; idle
            power first, [slots + 1].
        host_w: power of a server beside its accelerators.
        cubic: share of the power above idle that falls with the third power of the clock.
        token_clocked: share of the time of tokens that lengthens as the clock falls.
        budget_w: power that the row may draw.
    """

    arrival_s: np.ndarray
    prompt_s: np.ndarray
    prompt_clocked: np.ndarray
    prompt_w: np.ndarray
    work_s: np.ndarray
    order: np.ndarray
    bounds: np.ndarray
    priority: np.ndarray
    slow: np.ndarray
    token_w: np.ndarray
    host_w: float
    cubic: float
    token_clocked: float
    budget_w: float


class RowState(NamedTuple):
    """What changes.

    Attributes:
        totals: time, power now, energy by the meter, since when the budget is exceeded (infinity
            when it is not), seconds above it, longest of them, [6].
        clock: clock of each priority over the highest, [priorities].
        arrived: next of `order` to arrive, by priority, [priorities].
        taken: next of `order` to be served, [priorities].
        since_s: time up to which a server's state is right, [servers].
        next_s: its next event, [servers].
        watts: its power, [servers].
        speed: progress per second of its prompt, or of its tokens, [servers].
        energy_j: its energy while it worked, and while it idled, [servers, 2].
        prompt: request whose prompt it works on, -1 for none, [servers].
        left_s: what is left of that prompt, [servers].
        done_s: work of each slot's request at its end, on the server's own scale, [servers, slots].
        work_s: place on that scale now, [servers].
        request: request in each slot, [servers, slots].
        active: requests whose tokens are generated, [servers].
        first_s: time of each request's first token, NaN before, [requests].
        finish_s: and of its last, [requests].
    """

    totals: np.ndarray
    clock: np.ndarray
    arrived: np.ndarray
    taken: np.ndarray
    since_s: np.ndarray
    next_s: np.ndarray
    watts: np.ndarray
    speed: np.ndarray
    energy_j: np.ndarray
    prompt: np.ndarray
    left_s: np.ndarray
    done_s: np.ndarray
    work_s: np.ndarray
    request: np.ndarray
    active: np.ndarray
    first_s: np.ndarray
    finish_s: np.ndarray


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
            server = _free_server(tables, state, from_class)
            if server != _NONE:
                _bring(state, server, first_s)
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
    totals[NOW] = time_s


@njit(error_model="numpy")
def _bring(state: RowState, server: int, time_s: float) -> None:
    """Bring one server up to a time between its events.

    Args:
        state: of the row.
        server: number of the server.
        time_s: seconds, at most its next event.
    """
    spent = time_s - state.since_s[server]
    is_busy = state.prompt[server] != _NONE or state.active[server] > 0
    state.energy_j[server, 0 if is_busy else 1] += spent * state.watts[server]
    if state.prompt[server] != _NONE:
        state.left_s[server] -= spent * state.speed[server]
    elif state.active[server] > 0:
        state.work_s[server] += spent * state.speed[server]
    state.since_s[server] = time_s


@njit(error_model="numpy")
def _end(tables: RowTables, state: RowState, server: int) -> None:
    """End what a server's next event ends: a prompt, or the tokens of some requests."""
    now_s = state.totals[NOW]
    _bring(state, server, now_s)
    request = state.prompt[server]
    if request != _NONE:
        state.prompt[server] = _NONE
        state.first_s[request] = now_s
        if tables.work_s[request] <= 0:
            state.finish_s[request] = now_s
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
        state.finish_s[state.request[server, slot]] = now_s
        last = state.active[server] - 1
        state.request[server, slot] = state.request[server, last]
        state.done_s[server, slot] = state.done_s[server, last]
        state.active[server] = last
    if state.active[server] == 0:
        state.work_s[server] = 0.0  # else the scale would lose digits over weeks


@njit(error_model="numpy")
def _take(tables: RowTables, state: RowState, server: int) -> None:
    """Begin the prompt of the first request that waits, where the server has a slot."""
    priority = tables.priority[server]
    place = state.taken[priority]
    is_full = state.active[server] + 1 >= len(tables.slow)
    if place >= state.arrived[priority] or is_full or state.prompt[server] != _NONE:
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
        is_free = tables.priority[server] == priority and state.prompt[server] == _NONE
        if is_free and state.active[server] < fewest:
            found, fewest = server, state.active[server]
    return found


@njit(error_model="numpy")
def set_clock(tables: RowTables, state: RowState, priority: int, clock: float) -> None:
    """Let a clock take effect on the servers of a priority now.

    Args:
        tables: what does not change.
        state: what does; it stands at the present.
        priority: of the servers.
        clock: over the highest, in (0, 1].
    """
    state.clock[priority] = clock
    for server in range(len(tables.priority)):
        if tables.priority[server] == priority:
            _bring(state, server, state.totals[NOW])
            _refresh(tables, state, server)


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
    if request != _NONE:
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
    state.watts[server] = watts
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
