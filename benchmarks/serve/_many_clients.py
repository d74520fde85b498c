"""Fair orders under a hundred thousand clients, each of which asks once and never comes back."""

import time
from dataclasses import dataclass
from typing import Literal

from benchmarks.common import Check, ratio

from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig

__all__ = ["entries", "many_client_checks"]

_BLOCK = 1000
"""Requests that are timed together."""
_ROUNDS = 9
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
    """Cost of clients that are gone.

    Attributes:
        seconds: time of a request after many clients over that after a thousand.
        entries: entries that the order holds after many clients over those after a thousand.
    """

    seconds: float
    entries: float


class _Stream:
    """Clients that come one after the other to a scheduler of their own."""

    def __init__(self, policy: Literal["vtc", "dlpm"], *, is_one_payer: bool) -> None:
        """Start without a client.

        Args:
            policy: the order.
            is_one_payer: whether all are users of one client.
        """
        config = SchedulerConfig(
            num_blocks=128,
            token_budget=64,
            max_num_seqs=_FLYING // 2,
            max_model_len=32,
            prefix_caching=False,
            policy=policy,
        )
        self.scheduler = Scheduler(config)
        self._is_one_payer = is_one_payer
        self._count = 0

    def serve(self, count: int) -> float:
        """Serve more clients; return the seconds of processor time."""
        params = SamplingParams(max_tokens=2, ignore_end=True)
        start = time.process_time()
        for _ in range(count):
            self._count += 1
            name = f"c{self._count}"
            client, user = ("owner", name) if self._is_one_payer else (name, "")
            request = Request(id=name, prompt=[1] * 8, params=params, client=client, user=user)
            self.scheduler.add(request, 0.0)
            while self.scheduler.num_requests >= _FLYING:
                plan = self.scheduler.schedule(0.0)
                assert plan is not None
                self.scheduler.complete(plan, plan.blank_output(), 0.0)
        return time.process_time() - start


def _grow(policy: Literal["vtc", "dlpm"], count: int, *, is_one_payer: bool) -> _Growth:
    """Compare an order that has seen many clients with one that has seen a thousand, in turn."""
    old = _Stream(policy, is_one_payer=is_one_payer)
    old.serve(count)
    seconds: list[tuple[float, float]] = []
    sizes: list[tuple[float, float]] = []
    for _ in range(_ROUNDS):
        young = _Stream(policy, is_one_payer=is_one_payer)
        young.serve(_BLOCK)
        seconds.append((old.serve(_BLOCK), young.serve(_BLOCK)))
        sizes.append((entries(old.scheduler.policy), entries(young.scheduler.policy)))
    return _Growth(
        ratio([late for late, _ in seconds], [early for _, early in seconds]).median,
        ratio([late for late, _ in sizes], [early for _, early in sizes]).median,
    )


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
            f"5 cost per request with {count:,} clients over 1,000, {name}",
            run.seconds,
            1.5,
            "lower",
        )
        for name, run in runs.items()
    ]
    most = max(run.entries for run in runs.values())
    found.append(
        Check(f"5 entries kept with {count:,} clients over 1,000, most of them", most, 1.5, "lower")
    )
    return found
