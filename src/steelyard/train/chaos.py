"""Faults on purpose: drawn from a seed, then done to real processes and files or simulated ones."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from steelyard.errors import ConfigError, DataError

__all__ = ["ChaosFault", "FaultKind", "draw_faults", "flip_bit", "strike", "truncate"]

FaultKind = Literal["kill", "stop", "resume", "restart", "cut", "heal"]
_END: Mapping[str, FaultKind] = {"kill": "restart", "stop": "resume", "cut": "heal"}
"""What ends a fault: a new process, a process that goes on, a link that works again."""
_SIGNAL = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "resume": signal.SIGCONT}


@dataclass(frozen=True, slots=True, order=True)
class ChaosFault:
    """One event of a sequence.

    Attributes:
        time_s: when, seconds from the start.
        target: name of the node.
        kind: "kill", "stop" (it hangs) and "cut" (nobody reaches it) begin a fault; "restart",
            "resume" and "heal" end it.
    """

    time_s: float
    target: str
    kind: FaultKind


def draw_faults(
    names: Sequence[str],
    generator: np.random.Generator,
    *,
    horizon_s: float,
    every_s: float,
    mean_s: float,
    kinds: Sequence[FaultKind] = ("kill", "stop", "cut"),
) -> list[ChaosFault]:
    """Draw a sequence of faults.

    Faults begin as a Poisson process and strike a node that has none; each lasts an exponential
    time, so that several nodes may be down at once.

    Args:
        names: nodes.
        generator: source of times and targets.
        horizon_s: faults begin before it; their ends may lie after.
        every_s: mean time between beginnings.
        mean_s: mean time that a fault lasts.
        kinds: what may begin.

    Returns:
        Faults and their ends in the order of time.

    Raises:
        ConfigError: there are no nodes, a time is not above 0, or a kind begins nothing.
    """
    if not names or min(horizon_s, every_s, mean_s) <= 0 or not set(kinds) <= set(_END):
        raise ConfigError(
            f"faults {list(kinds)} for {len(names)} nodes over {horizon_s} s, one in {every_s} s "
            f"of {mean_s} s",
            hint=f"times are above 0, and kinds are of {', '.join(_END)}",
        )
    found: list[ChaosFault] = []
    free_from_s = dict.fromkeys(names, 0.0)
    now_s = float(generator.exponential(every_s))
    while now_s < horizon_s:
        # A second fault on a node would be ended by the end of the first.
        healthy = [name for name in names if free_from_s[name] <= now_s]
        if healthy:
            name = healthy[int(generator.integers(len(healthy)))]
            kind = kinds[int(generator.integers(len(kinds)))]
            # It may end after the horizon: cut off there, the last faults would all be short.
            end_s = now_s + float(generator.exponential(mean_s))
            free_from_s[name] = end_s
            found += [ChaosFault(now_s, name, kind), ChaosFault(end_s, name, _END[kind])]
        now_s += float(generator.exponential(every_s))
    return sorted(found)


def strike(kind: FaultKind, process: int) -> None:
    """Do a fault to a process.

    Args:
        kind: "kill", "stop" or "resume".
        process: its number.

    Raises:
        ConfigError: the fault is none of processes.
        DataError: there is no such process.
    """
    if kind not in _SIGNAL:
        raise ConfigError(f"{kind!r} cannot be done to a process", hint=f"use {', '.join(_SIGNAL)}")
    try:
        os.kill(process, _SIGNAL[kind])
    except ProcessLookupError as error:
        raise DataError(f"no process {process}", hint="it has ended already") from error


def flip_bit(path: Path, generator: np.random.Generator, *, start: int = 0) -> int:
    """Flip one bit of a file in place, as a bad cell would.

    Args:
        path: the file.
        generator: source of the place.
        start: byte from which on a bit may be flipped.

    Returns:
        The byte whose bit was flipped.

    Raises:
        DataError: the file has no byte from there on.
    """
    size = path.stat().st_size
    if size <= start:
        raise DataError(f"{path} has {size} bytes, none from {start} on", hint="lower start")
    place = int(generator.integers(start, size))
    with path.open("r+b") as stream:
        stream.seek(place)
        # Exclusive or: the bit is another one for certain, whatever it was.
        value = stream.read(1)[0] ^ (1 << int(generator.integers(8)))
        stream.seek(place)
        stream.write(bytes([value]))
    return place


def truncate(path: Path, keep: float) -> None:
    """Cut a file to a share of its bytes, as a power cut may; `keep` is 0 to 1."""
    if not 0 <= keep <= 1:
        raise ConfigError(f"keep is {keep}, but must be in [0, 1]", hint="give a share")
    os.truncate(path, int(path.stat().st_size * keep))
