"""Logs with known templates and sessions with known faults, for tests and measurements."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.data.logs.parsers.parsed import WILDCARD
from steelyard.errors import ConfigError
from steelyard.files import atomic_path, write_bytes

__all__ = ["FAULTS", "LabelledSession", "synthesize_lines", "synthesize_sessions"]

FAULTS = ("missing", "extra", "reordered", "late")
"""Kinds of faults: an event is left out, another comes, two are swapped, one takes long."""
_DIGIT_RUNS = re.compile(r"[0-9]+")
_FRESH_SHARE = 0.5
_BEGIN, _END, _HEARTBEAT, _SHARED = 0, 1, 2, 3
_FAULT_EVENTS, _WORKFLOWS, _SHORTEST = 4, 4, 5
_LONGEST_LOOP = 4
_PAUSE_S, _LATE = 0.2, 40.0


@dataclass(frozen=True, kw_only=True)
class LabelledSession:
    """Events of one job, with what is wrong with it.

    Attributes:
        events: numbers of templates in the order of time.
        times_s: when they happened, [events].
        fault: one of `FAULTS`, empty where there is none.
        culprit: template of the event that the fault concerns, -1 where there is none.
    """

    events: tuple[int, ...]
    times_s: NDArray[np.float64]
    fault: str = ""
    culprit: int = -1


def synthesize_lines(
    frames: Sequence[Sequence[str]],
    variables: Sequence[Sequence[str]],
    lines: int,
    seed: int,
    *,
    header: int = 0,
) -> Iterator[str]:
    """Yield lines that read as observed ones do, with other values.

    The frames of observed lines come in their order, again and again, with the headers they had. Of
    the other variables half are drawn from those observed at the same place of the same frame, half
    are such ones with other digits.

    Args:
        frames: texts around the variables of observed lines, [observed, variables + 1].
        variables: variables of the same lines, [observed, variables].
        lines: how many to yield.
        seed: seed of the draws.
        header: variables at the beginning of each line that are its header.

    Yields:
        Lines.

    Raises:
        ConfigError: there is nothing to begin with.
    """
    if not frames or lines < 0:
        raise ConfigError("lines are made from observed ones: give at least one frame")
    # Python's own draws: one number at a time takes NumPy several times as long.
    rng = random.Random(seed)
    seen: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for frame, values in zip(frames, variables, strict=True):
        seen.setdefault(tuple(frame), []).append(values)
    for place in range(lines):
        at = place % len(frames)
        frame = frames[at]
        rows = seen[tuple(frame)]
        text = frame[0]
        for slot in range(len(frame) - 1):
            is_header = slot < header
            value = variables[at][slot] if is_header else rng.choice(rows)[slot]
            if not is_header and rng.random() < _FRESH_SHARE:
                value = _DIGIT_RUNS.sub(lambda run: _other_digits(run.group(), rng), value)
            text += value + frame[slot + 1]
        yield text


def _other_digits(digits: str, rng: random.Random) -> str:
    """Return as many digits, of which the first is 0 only where it was."""
    least, most = 10 ** (len(digits) - 1), 10 ** len(digits)
    # Numbers of 19 digits are those of 64 bits.
    drawn = str(rng.randrange(least, min(most, 1 << 63) if len(digits) == 19 else most))
    return "0" + drawn[1:] if digits[0] == "0" else drawn


def synthesize_sessions(
    num_templates: int,
    sessions: int,
    seed: int,
    *,
    fault_share: float = 0.05,
    kinds: Sequence[str] = FAULTS,
) -> list[LabelledSession]:
    """Return sessions of a few workflows, some of them with one fault.

    All sessions begin with event 0, end with event 1, and have event 2 now and then. Between them
    the events of one of four workflows come in their order; its third and fourth open and close
    something, once to four times. The last four templates come where something extra does.

    Args:
        num_templates: templates that events are drawn from, at least 27.
        sessions: how many.
        seed: seed of the draws.
        fault_share: sessions that have a fault, a fraction.
        kinds: kinds of `FAULTS`, equally frequent.

    Returns:
        The sessions.

    Raises:
        ConfigError: too few templates, a fraction outside of 0 to 1, or an unknown kind.
    """
    size = (num_templates - _SHARED - _FAULT_EVENTS) // _WORKFLOWS
    if size < _SHORTEST or not 0 <= fault_share <= 1 or not set(kinds) <= set(FAULTS) or not kinds:
        raise ConfigError(
            f"{num_templates} templates, a share of faults of {fault_share} and the kinds "
            f"{', '.join(kinds)} were given",
            hint=f"sessions need at least 27 templates, a share from 0 to 1, and some of {FAULTS}",
        )
    rng = np.random.default_rng(seed)
    flows = [
        list(range(_SHARED + flow * size, _SHARED + (flow + 1) * size))
        for flow in range(_WORKFLOWS)
    ]
    strange = range(num_templates - _FAULT_EVENTS, num_templates)
    return [
        _session(flows, strange, kinds if rng.random() < fault_share else (), rng)
        for _ in range(sessions)
    ]


def _session(
    flows: list[list[int]], strange: range, kinds: Sequence[str], rng: np.random.Generator
) -> LabelledSession:
    """Return a session with a fault of one of some kinds, with none where there are none."""
    flow = flows[int(rng.integers(len(flows)))]
    loops = int(rng.integers(1, _LONGEST_LOOP + 1))
    events = [_BEGIN, *flow[:2], *(flow[2:4] * loops), *flow[4:], _END]
    for _ in range(int(rng.poisson(0.5))):
        events.insert(int(rng.integers(1, len(events))), _HEARTBEAT)
    pauses = rng.exponential(_PAUSE_S, len(events))
    kind = kinds[int(rng.integers(len(kinds)))] if kinds else ""
    culprit = -1
    if kind:
        # The heartbeat comes and goes by itself: a fault of it would be none.
        own = [place for place in range(1, len(events)) if events[place] != _HEARTBEAT]
        place = own[int(rng.integers(len(own)))]
        culprit = events[place]
        if kind == "missing":
            del events[place]
            pauses = np.delete(pauses, place)
        elif kind == "extra":
            culprit = int(rng.choice(strange))
            events.insert(place, culprit)
            pauses = np.insert(pauses, place, _PAUSE_S)
        elif kind == "reordered":
            other = own[own.index(place) - 1] if place != own[0] else 0
            events[other], events[place] = events[place], events[other]
        else:
            pauses[place] = _LATE * _PAUSE_S
    return LabelledSession(
        events=tuple(events), times_s=np.cumsum(pauses), fault=kind, culprit=culprit
    )


_TEMPLATES = ("<*> starts", "<*> ends after <*> ms", "<*> is alive at <*>")
_VERBS = ["open", "read", "check", "copy", "send", "close", "move", "merge", "seal", "index"]
_THINGS = ["Table", "Shard", "File", "Queue", "Lease", "Block", "Page", "Route", "View", "Cache"]


def session_templates(count: int) -> list[str]:
    """Return texts for the events of sessions, all different and each with the job's number."""
    pairs = [f"{verb}{thing} of <*>" for thing in _THINGS for verb in _VERBS]
    return [*_TEMPLATES, *pairs][:count]


def write_sessions(
    path: Path, sessions: int, num_templates: int, seed: int, fault_share: float
) -> tuple[int, int]:
    """Write a log of sessions that run side by side, and their faults beside it.

    Lines have the header of Spark: date, time, level and component.

    Args:
        path: log to write; faults are written to a file of its name that ends in .faults.jsonl.
        sessions: how many.
        num_templates: number of templates, 27 to 103.
        seed: seed of the draws.
        fault_share: sessions that have a fault, a fraction.

    Returns:
        Lines, and sessions with a fault.

    Raises:
        ConfigError: there are too few or too many templates, or the share is none.
    """
    texts = session_templates(num_templates)
    if len(texts) < num_templates or sessions < 1:
        raise ConfigError(
            f"{num_templates} templates and {sessions} sessions were given",
            hint=f"27 to {len(texts)} templates and at least 1 session",
        )
    made = synthesize_sessions(num_templates, sessions, seed, fault_share=fault_share)
    rng = np.random.default_rng(seed + 1)
    starts = np.cumsum(rng.exponential(_PAUSE_S, sessions))
    rows = sorted(
        (starts[job] + time_s, job, event)
        for job, session in enumerate(made)
        for time_s, event in zip(session.times_s.tolist(), session.events, strict=True)
    )
    with atomic_path(path) as beside, beside.open("w") as file:
        for time_s, job, event in rows:
            stamp = datetime.fromtimestamp(1.8e9 + time_s, UTC).strftime("%y/%m/%d %H:%M:%S")
            text = texts[event].replace(WILDCARD, f"job_{job}", 1)
            text = text.replace(WILDCARD, str(rng.integers(1, 10_000)))
            file.write(f"{stamp} INFO worker.Runner: {text}\n")
    faults = [
        {"session": f"job_{job}", "fault": item.fault, "culprit": texts[item.culprit]}
        for job, item in enumerate(made)
        if item.fault
    ]
    told = "".join(json.dumps(fault) + "\n" for fault in faults)
    write_bytes(path.with_name(path.name + ".faults.jsonl"), told.encode())
    return len(rows), len(faults)
