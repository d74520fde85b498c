"""Requests of a row from a trace: repeated for its time, with priorities and clients."""

from collections import Counter
from pathlib import Path

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.power import HIGH, LOW, RowRequests, RowScenario

__all__ = ["requests_of"]

_CLIENTS = 8
_OTHERS = "others"


def requests_of(
    path: Path, scenario: RowScenario, high_share: float
) -> tuple[RowRequests, tuple[str, ...]]:
    """Read requests and repeat them until a row's time is over.

    Args:
        path: any file that `serve bench` replays.
        scenario: the row; its time and seed count.
        high_share: share of the requests that are of high priority, drawn.

    Returns:
        The requests, and names of their kinds: the clients with the most requests, then others.

    Raises:
        ConfigError: the share is out of range, or all requests arrive at once.
        TraceError: the file cannot be used.
    """
    from steelyard.serve.traces import load_rows

    if not 0 <= high_share <= 1:
        raise ConfigError(f"--high-share is {high_share}, but must be in [0, 1]")
    rng = np.random.default_rng(scenario.seed)
    rows = load_rows(path, rng)
    arrival = np.array([row.arrival_s for row in rows])
    # The next round begins a mean gap after the last arrival.
    span_s = float(arrival[-1] - arrival[0]) * len(rows) / max(len(rows) - 1, 1)
    if not span_s:
        raise ConfigError(
            f"all requests of {path} arrive at once", hint="give a trace with arrival times"
        )
    rounds = int(np.ceil(scenario.duration_s / span_s))
    starts = np.repeat(np.arange(rounds) * span_s, len(rows))
    times = np.tile(arrival - arrival[0], rounds) + starts
    kept = times < scenario.duration_s
    names, kind = _kinds([row.client for row in rows])
    columns = np.array([[row.input_tokens, row.output_tokens] for row in rows]).T
    prompts, outputs, kinds = np.tile(np.vstack([columns, kind]), (1, rounds))[:, kept]
    priority = np.where(rng.random(int(kept.sum())) < high_share, HIGH, LOW)
    return RowRequests.of(times[kept], prompts, outputs, priority, kinds), names


def _kinds(clients: list[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return names of the clients with the most requests, and the place of each request's."""
    # A trace may name thousands of clients, and each has its own account.
    most = [name for name, _ in Counter(clients).most_common(_CLIENTS)]
    place = {name: index for index, name in enumerate(most)}
    kind = np.array([place.get(name, len(most)) for name in clients])
    return (*most, *([_OTHERS] if kind.max() == len(most) else [])), kind
