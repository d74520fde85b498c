"""What a benchmark file uses.

The Check it returns, medians with their spread, and timing of rivals in turn.

A benchmark is `benchmarks/<room>/<name>.py` with two public names: `PAPER`, a list of keys from
`papers.toml` (it may be empty), and `run(quick: bool) -> list[Check]`. A check is a ratio or
relation against a baseline of the same run, or an error against a published or measured number;
never bare seconds.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "Spread", "alternate", "median_spread", "ratio"]


@dataclass(frozen=True)
class Check:
    """A number that has to clear a bar.

    Attributes:
        name: number of the group of checks, and what is checked: "1 throughput, ours over theirs".
        value: as measured in this run.
        bar: value that is just good enough.
        better: "higher" when the value must be at least the bar, "lower" when at most.
    """

    name: str
    value: float
    bar: float
    better: Literal["higher", "lower"]

    @property
    def ok(self) -> bool:
        """Whether the bar is met; never for NaN."""
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar


@dataclass(frozen=True)
class Spread:
    """The median of repeated samples with their smallest and largest."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """(high - low) / median, a fraction; 0 when the median is 0."""
        return (self.high - self.low) / abs(self.median) if self.median else 0.0


def median_spread(samples: list[float]) -> Spread:
    """Summarize at least one sample."""
    return Spread(statistics.median(samples), min(samples), max(samples))


def ratio(numerators: list[float], denominators: list[float]) -> Spread:
    """Divide samples pair by pair and summarize the ratios.

    Args:
        numerators: one sample per round, such as the baseline's seconds.
        denominators: the rival's sample of the same round, none of them 0.

    Returns:
        Median, lowest and highest ratio; pairing by round cancels what disturbed a whole round.
    """
    return median_spread(
        [top / bottom for top, bottom in zip(numerators, denominators, strict=True)]
    )


def alternate(
    rivals: dict[str, Callable[[], object]], *, rounds: int, warm_up: int = 1, rest_s: float = 0.0
) -> dict[str, list[float]]:
    """Time rivals in turn, so that a disturbance of the machine hits all of them alike.

    Args:
        rivals: by name, the work to time; results are thrown away.
        rounds: timed rounds; every rival runs once in each.
        warm_up: rounds before, not timed.
        rest_s: pause before each timed run, in which threads of the rival before stop spinning.

    Returns:
        Seconds per rival, one per round.
    """
    for _ in range(warm_up):
        for work in rivals.values():
            work()
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, work in rivals.items():
            time.sleep(rest_s)
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return seconds
