"""Charges the energy of a row to the requests that it is spent on."""

import numpy as np

from steelyard.jit import njit
from steelyard.sim.power.state import BIN_S, IDLE, STARTING, STARTS, RowState, RowTables

__all__ = ["bring"]

_NONE = -1


@njit(error_model="numpy")
def bring(tables: RowTables, state: RowState, server: int, time_s: float) -> None:
    """Bring one server up to a time between its events.

    Args:
        tables: what does not change.
        state: state of the row.
        server: number of the server.
        time_s: seconds, at most its next event.
    """
    spent = time_s - state.since_s[server]
    _charge(tables, state, server, time_s)
    state.mode_s[server, state.mode[server]] += spent
    if state.prompt[server] != _NONE:
        state.left_s[server] -= spent * state.speed[server]
    elif state.active[server] > 0:
        state.work_s[server] += spent * state.speed[server]
    state.since_s[server] = time_s


@njit(error_model="numpy")
def _charge(tables: RowTables, state: RowState, server: int, time_s: float) -> None:
    """Charge what a server drew since it was brought up last, bin by bin."""
    last = len(state.spent_j) - 1
    begin_s, watts = state.since_s[server], state.watts[server]
    while begin_s < time_s:
        place = min(int(begin_s / BIN_S), last)
        # What comes after the last bin counts there, so that nothing is lost.
        end_s = time_s if place == last else min(time_s, (place + 1) * BIN_S)
        _share_out(tables, state, server, state.spent_j[place], (end_s - begin_s) * watts)
        begin_s = end_s


@njit(error_model="numpy")
def _share_out(
    tables: RowTables, state: RowState, server: int, into: np.ndarray, joules: float
) -> None:
    """Charge energy to a prompt in whole, or to the requests that get tokens in equal parts."""
    request, active = state.prompt[server], state.active[server]
    if request != _NONE:
        # The others wait meanwhile.
        state.request_j[request] += joules
        into[tables.kind[request]] += joules
    elif active > 0:
        for slot in range(active):
            request = state.request[server, slot]
            state.request_j[request] += joules / active
            into[tables.kind[request]] += joules / active
    else:
        into[STARTS if state.mode[server] == STARTING else IDLE] += joules
