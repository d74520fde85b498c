"""Fair orders under a hundred thousand clients, each of which asks once and never comes back."""

import time
from dataclasses import dataclass
from typing import Literal

from benchmarks.common import Check

from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig

__all__ = ["entries", "many_client_checks"]

_BLOCK = 1000
"""Requests that are timed together."""
_FLYING = 32
"""Requests in flight: twice as many as run at once, so that the order decides."""


def entries(thing: object, seen: set[int] | None = None) -> int:
    """Count what the containers of an order hold, at any depth.

    Args:
        thing: an order, or a part of one.
        seen: parts that were counted already.

    Returns:
        Entries of all dictionaries, lists and sets.
    """
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (str, float, Request)) or callable(thing):
        return 0
    seen.add(id(thing))
    if isinstance(thing, dict):
        return len(thing) + sum(entries(item, seen) for item in thing.values())
    if isinstance(thing, (list, set, tuple)):
        return len(thing) + sum(entries(item, seen) for item in thing)
    return sum(entries(item, seen) for item in getattr(thing, "__dict__", {}).values())


@dataclass(frozen=True)
class _Growth:
    """What clients that are gone cost.

    Attributes:
        seconds: time of a block of requests late in the run over that of an early one.
        entries: entries that the order holds at the end over those after a thousand clients.
    """

    seconds: float
    entries: float


def _grow(policy: Literal["vtc", "dlpm"], count: int, *, is_one_payer: bool) -> _Growth:
    """Serve clients that come one after the other.

    Args:
        policy: the order.
        count: clients, a multiple of a thousand.
        is_one_payer: whether all are users of one client.

    Returns:
        How time and memory grew.
    """
    config = SchedulerConfig(
        num_blocks=128,
        token_budget=64,
        max_num_seqs=_FLYING // 2,
        max_model_len=32,
        prefix_caching=False,
        policy=policy,
    )
    scheduler = Scheduler(config)
    params = SamplingParams(max_tokens=2, ignore_end=True)
    seconds: list[float] = []
    sizes: list[int] = []
    for block in range(count // _BLOCK):
        start = time.process_time()
        for number in range(block * _BLOCK, (block + 1) * _BLOCK):
            name = f"c{number}"
            client, user = ("owner", name) if is_one_payer else (name, "")
            scheduler.add(
                Request(id=name, prompt=[1] * 8, params=params, client=client, user=user), 0.0
            )
            while scheduler.num_requests >= _FLYING:
                plan = scheduler.schedule(0.0)
                assert plan is not None
                scheduler.complete(plan, plan.blank_output(), 0.0)
        seconds.append(time.process_time() - start)
        sizes.append(entries(scheduler.policy))
    # Processor time, and of some neighbours the quickest, as the machine may be busy. The first block
    # warms up.
    return _Growth(min(seconds[-3:]) / min(seconds[1:4]), max(sizes[-3:]) / sizes[0])


def many_client_checks(quick: bool) -> list[Check]:
    """Compare a request's cost after many clients with that after a thousand."""
    count = 10_000 if quick else 100_000
    runs = {
        "VTC": _grow("vtc", count, is_one_payer=False),
        "DLPM": _grow("dlpm", count, is_one_payer=False),
        "VTC, users of one client": _grow("vtc", count, is_one_payer=True),
    }
    for name, run in runs.items():
        print(
            f"{name}: after {count:,} clients {run.seconds:.2f}x the time of a request and "
            f"{run.entries:.2f}x the entries of a run of 1,000"
        )
    found = [
        Check(
            f"cost per request with {count:,} clients over 1,000, {name}",
            run.seconds,
            1.5,
            "lower",
        )
        for name, run in runs.items()
    ]
    most = max(run.entries for run in runs.values())
    found.append(
        Check(f"entries kept with {count:,} clients over 1,000, most of them", most, 1.5, "lower")
    )
    return found
