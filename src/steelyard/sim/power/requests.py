"""Requests of two priorities that arrive at a row over weeks, by day and night."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError, TraceError, require

__all__ = [
    "HIGH",
    "LOW",
    "PUBLISHED_MIX",
    "RequestKind",
    "RowRequests",
    "daily_shape",
    "draw_requests",
]

Array = NDArray[np.float64]
HIGH, LOW = 0, 1
"""Priorities: rows of every table by priority are in this order."""
STEP_S = 300.0
"""Length of a step of `daily_shape`."""
_DAY_S = 86_400.0
_HOURS = 24.0
_PEAK_HOUR = 15.0
_DRIFT_S = 6 * 3600.0


class RowRequests(NamedTuple):
    """Requests by arrival.

    Attributes:
        arrival_s: seconds from the start, never falling, float64 [requests].
        prompt_tokens: length of the prompt, 1 or more, int64 [requests].
        output_tokens: tokens to generate, 1 or more, int64 [requests].
        priority: `HIGH` or `LOW`, int64 [requests].
        kind: service or client that each belongs to, from 0, int64 [requests].
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    priority: NDArray[np.int64]
    kind: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        arrival_s: ArrayLike,
        prompt_tokens: ArrayLike,
        output_tokens: ArrayLike,
        priority: ArrayLike,
        kind: ArrayLike | None = None,
    ) -> "RowRequests":
        """Make requests of any columns of one length.

        Args:
            arrival_s: seconds, in any order, 0 or more.
            prompt_tokens: lengths, 1 or more.
            output_tokens: lengths, 1 or more.
            priority: `HIGH` or `LOW` of each.
            kind: service or client of each, from 0; all are of one kind when not given.

        Returns:
            The requests by arrival.

        Raises:
            TraceError: there are none, columns differ in length, or a row is out of range.
        """
        made = cls(
            np.asarray(arrival_s, np.float64),
            np.asarray(prompt_tokens, np.int64),
            np.asarray(output_tokens, np.int64),
            np.asarray(priority, np.int64),
            np.zeros(len(np.asarray(priority)), np.int64)
            if kind is None
            else np.asarray(kind, np.int64),
        )
        if not len(made.arrival_s) or len({len(column) for column in made}) != 1:
            raise TraceError(
                f"columns of {', '.join(str(len(column)) for column in made)} requests",
                hint="give one request or more, and each column for all of them",
            )
        good = (
            np.isfinite(made.arrival_s)
            & (made.arrival_s >= 0)
            & (made.prompt_tokens >= 1)
            & (made.output_tokens >= 1)
            & ((made.priority == HIGH) | (made.priority == LOW))
            & (made.kind >= 0)
        )
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise TraceError(
                f"request {row}: {', '.join(str(column[row]) for column in made)}, but arrivals "
                "are finite and 0 or more, lengths 1 or more, priorities 0 (high) or 1 (low), and "
                "kinds 0 or more",
                hint="drop the row",
            )
        order = np.argsort(made.arrival_s, kind="stable")
        return cls(
            made.arrival_s[order],
            made.prompt_tokens[order],
            made.output_tokens[order],
            made.priority[order],
            made.kind[order],
        )


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One service of a mix; lengths are drawn evenly between two bounds.

    Attributes:
        name: what it does.
        share: share of the requests.
        prompt_tokens: shortest and longest prompt.
        output_tokens: shortest and longest answer.
        high_share: share of its requests that are of high priority.
    """

    name: str
    share: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    high_share: float

    def __post_init__(self) -> None:
        """Refuse lengths and shares that cannot be."""
        require(
            self,
            share=(0 < self.share <= 1, "in (0, 1]"),
            high_share=(0 <= self.high_share <= 1, "in [0, 1]"),
            prompt_tokens=(1 <= self.prompt_tokens[0] <= self.prompt_tokens[1], "rising from 1"),
            output_tokens=(1 <= self.output_tokens[0] <= self.output_tokens[1], "rising from 1"),
        )


PUBLISHED_MIX = (
    RequestKind("summarize", 0.25, (2048, 8192), (256, 512), 0.0),
    RequestKind("search", 0.25, (512, 2048), (1024, 2048), 1.0),
    RequestKind("chat", 0.5, (2048, 4096), (128, 2048), 0.5),
)
"""Source: arXiv 2308.12908, table of workloads."""


def daily_shape(
    days: float,
    rng: np.random.Generator,
    *,
    night: float = 0.5,
    weekend: float = 0.85,
    drift: float = 0.03,
) -> Array:
    """Return the rate of requests over its highest, in steps of 5 minutes from a Monday's midnight.

    Args:
        days: length.
        rng: draws the drift.
        night: rate in the small hours over that of the afternoon.
        weekend: rate of a Saturday or Sunday over that of a working day.
        drift: standard deviation of a slow noise of the logarithm, which forgets in six hours.

    Returns:
        Shares in (0, 1], [steps]; the highest is 1.

    Raises:
        ConfigError: the length is not above 0.
    """
    if not 0 < days < float("inf"):
        raise ConfigError(f"{days} days of requests", hint="give a time above 0")
    count = max(round(days * _DAY_S / STEP_S), 1)
    hours = np.arange(count) * STEP_S / 3600
    wave = 0.5 + 0.5 * np.cos(2 * np.pi * (hours - _PEAK_HOUR) / _HOURS)
    level = night + (1 - night) * wave
    level *= np.where((hours // _HOURS) % 7 >= 5, weekend, 1.0)
    kept = np.exp(-STEP_S / _DRIFT_S)
    shocks = rng.standard_normal(count) * np.sqrt(1 - kept**2)
    slow, found = 0.0, np.empty(count)
    for step, shock in enumerate(shocks.tolist()):
        slow = kept * slow + shock
        found[step] = slow
    # The noise multiplies, so that a calm night is moved by little and no rate becomes negative.
    level *= np.exp(drift * found)
    return level / level.max()


def draw_requests(
    rates_per_s: ArrayLike,
    rng: np.random.Generator,
    *,
    mix: Sequence[RequestKind] = PUBLISHED_MIX,
    step_s: float = STEP_S,
) -> RowRequests:
    """Draw Poisson arrivals at given rates, and the lengths and priorities of a mix.

    Args:
        rates_per_s: requests per second in each step, 0 or more, [steps].
        rng: source of chance.
        mix: services; their shares sum to 1.
        step_s: length of a step.

    Returns:
        The requests.

    Raises:
        ConfigError: shares do not sum to 1.
        TraceError: no request was drawn.
    """
    shares = np.array([kind.share for kind in mix])
    if abs(shares.sum() - 1) > 1e-9:
        raise ConfigError(f"shares of a mix sum to {shares.sum():g}, but must sum to 1")
    rates = np.asarray(rates_per_s, float)
    counts = rng.poisson(rates * step_s)
    starts = np.repeat(np.arange(len(rates)) * step_s, counts)
    arrival = np.sort(starts + rng.random(len(starts)) * step_s)
    kind = rng.choice(len(mix), len(starts), p=shares / shares.sum())
    bounds = np.array([[*item.prompt_tokens, *item.output_tokens] for item in mix])
    low, high, short, long = bounds[kind].T
    is_high = rng.random(len(starts)) < np.array([item.high_share for item in mix])[kind]
    return RowRequests.of(
        arrival,
        rng.integers(low, high, endpoint=True),
        rng.integers(short, long, endpoint=True),
        np.where(is_high, HIGH, LOW),
        kind,
    )
