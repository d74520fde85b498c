"""What the compiled loop of a row reads and changes."""

from typing import NamedTuple

import numpy as np

__all__ = ["BIN_S", "DRAINING", "IDLE", "OFF", "ON", "STARTING", "STARTS", "RowState", "RowTables"]

BIN_S = 900.0
"""Length of a bin of energy: a step of a site."""
ON, STARTING, DRAINING, OFF = range(4)
"""Modes of a server."""
IDLE, STARTS = -2, -1
"""Columns of `RowState.spent_j` behind those of the kinds."""


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
        kind: service or client of each request, from 0, [requests].
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
    kind: np.ndarray
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
        mode: whether it works (`ON`), starts, ends what it has, or is off, [servers].
        mode_s: seconds that it spent in each mode, [servers, modes].
        ready_s: when it is ready, for one that starts, [servers].
        prompt: request whose prompt it works on, -1 for none, [servers].
        left_s: what is left of that prompt, [servers].
        done_s: work of each slot's request at its end, on the server's own scale, [servers, slots].
        work_s: place on that scale now, [servers].
        request: request in each slot, [servers, slots].
        active: requests whose tokens are generated, [servers].
        first_s: time of each request's first token, NaN before, [requests].
        finish_s: and of its last, [requests].
        request_j: energy that each request was charged, [requests].
        spent_j: energy of each kind of request, then of idle and of starting servers, by bin of
            `BIN_S`; the last bin holds all that comes later, [bins, kinds + 2].
        present: requests of each priority that arrived and have not ended, [priorities].
        present_s: their sum over time, [priorities].
    """

    totals: np.ndarray
    clock: np.ndarray
    arrived: np.ndarray
    taken: np.ndarray
    since_s: np.ndarray
    next_s: np.ndarray
    watts: np.ndarray
    speed: np.ndarray
    mode: np.ndarray
    mode_s: np.ndarray
    ready_s: np.ndarray
    prompt: np.ndarray
    left_s: np.ndarray
    done_s: np.ndarray
    work_s: np.ndarray
    request: np.ndarray
    active: np.ndarray
    first_s: np.ndarray
    finish_s: np.ndarray
    request_j: np.ndarray
    spent_j: np.ndarray
    present: np.ndarray
    present_s: np.ndarray
