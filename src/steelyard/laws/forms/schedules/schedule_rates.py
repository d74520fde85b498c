"""Learning rates by step, and their drops as the multi-power law sums them: dozens of lumps.

Drops lie exact one by one just before a point and in blocks further back, whose width grows with
the distance. A block is never wider than a fixed factor of the rate and never mixes drops and
rises. Each block acts at its drop-weighted mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.points import refuse_rows
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules import multipliers

__all__ = ["Drops", "LearningRates", "anneal", "collect_drops"]

_SMALLEST_RATE = 1e-6
"""Rates below this fraction of the peak count as this; a rate of 0 has no negative power."""


@dataclass(frozen=True, eq=False, slots=True)
class LearningRates:
    """The learning rate of every step of a run, warm-up included.

    Attributes:
        rates: learning rates of steps 0, 1, ..., T - 1; finite, not negative, at least one
            positive, [T].
    """

    rates: Array

    def __post_init__(self) -> None:
        """Turn the rates into float64 and refuse what no run can have."""
        rates = np.atleast_1d(np.asarray(self.rates, dtype=np.float64))
        bad = np.flatnonzero(~(np.isfinite(rates) & (rates >= 0)))
        if rates.ndim != 1 or len(rates) < 2 or len(bad) or not rates.max() > 0:
            where = f"; step {bad[0]} has {rates.flat[bad[0]]:g}" if len(bad) else ""
            raise FitError(
                f"learning rates must be [T] with T >= 2, finite, not negative and not all zero, "
                f"given shape {rates.shape}{where}",
                hint="give the rate of every step from step 0 on, warm-up included",
            )
        object.__setattr__(self, "rates", rates)

    @property
    def steps(self) -> int:
        """Length T of the run."""
        return len(self.rates)

    @property
    def peak(self) -> float:
        """Largest rate."""
        return float(self.rates.max())

    @classmethod
    def constant(cls, steps: int, peak: float, warmup: int = 0) -> "LearningRates":
        """Rise linearly over `warmup` steps, then stay; see `multipliers.constant`."""
        return cls(peak * multipliers.constant(steps, warmup=warmup))

    @classmethod
    def cosine(
        cls, steps: int, peak: float, warmup: int = 0, final: float = 0.1
    ) -> "LearningRates":
        """Rise linearly, then fall along half a cosine; see `multipliers.cosine`.

        Args:
            steps: length of the run.
            peak: rate after the warm-up, positive.
            warmup: steps of the rise.
            final: rate at the end as a fraction of the peak, 0..1.

        Returns:
            The rates.
        """
        return cls(peak * multipliers.cosine(steps, warmup=warmup, final=final))

    @classmethod
    def trapezoid(
        cls,
        steps: int,
        peak: float,
        warmup: int = 0,
        cooldown: float = 0.2,
        shape: multipliers.CooldownShape = "1-sqrt",
        final: float = 0.0,
    ) -> "LearningRates":
        """Rise linearly, stay, and cool down at the end; see `multipliers.trapezoid`.

        Args:
            steps: length of the run.
            peak: the constant rate, positive.
            warmup: steps of the rise.
            cooldown: fraction of all steps that cool down, 0..1, as the paper counts it.
            shape: form of the fall.
            final: rate after the end as a fraction of the peak, 0..1; positive for "exponential".

        Returns:
            The rates.
        """
        falling = round(cooldown * steps)
        return cls(
            peak
            * multipliers.trapezoid(
                steps, warmup=warmup, cooldown=falling, shape=shape, final=final
            )
        )

    @classmethod
    def two_stage(
        cls, steps: int, first: float, second: float, switch: int, warmup: int = 0
    ) -> "LearningRates":
        """Rise linearly to one rate and drop to another at a step.

        Args:
            steps: length of the run.
            first: rate before the switch.
            second: rate from the switch on.
            switch: step of the drop, between warm-up and end.
            warmup: steps of the rise.

        Returns:
            The rates.

        Raises:
            FitError: the switch lies outside the run.
        """
        if not warmup < switch < steps:
            raise FitError(
                f"the switch at step {switch} must lie between warm-up ({warmup}) and end ({steps})"
            )
        rates = first * multipliers.constant(steps, warmup=warmup)
        rates[switch:] = second
        return cls(rates)

    def until(self, step: int) -> "LearningRates":
        """Cut the run after its first `step` steps."""
        return LearningRates(self.rates[:step])

    def at(self, steps: ArrayLike) -> Array:
        """Return the rates of some steps, [n]."""
        return self.rates[np.asarray(steps, dtype=np.int64)]


@dataclass(frozen=True, slots=True)
class Drops:
    """Lumped drops of n points, R in all.

    Attributes:
        size: learning rate before minus after, negative for a rise, [R].
        log_since: log of the learning-rate sum from the drop to its point, both steps included,
            [R].
        log_rate: log of the rate after the drop, [R].
        owner: index of the point, ascending, every point at least once, [R].
        first: index of each point's first drop, [n].
        log_total: log of the learning-rate sum up to each point, its step included, [n].
    """

    size: Array
    log_since: Array
    log_rate: Array
    owner: NDArray[np.int64]
    first: NDArray[np.int64]
    log_total: Array


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Running sums over the steps of one schedule, and the edges of blocks.

    Attributes:
        drops: sums of the drops, of drop x learning-rate sum before, and of drop x log rate,
            [3, T + 1].
        total: learning-rate sum, [T + 1].
        edges: steps at which a block ends at the latest.
    """

    drops: Array
    total: Array
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, schedule: LearningRates) -> "_Prefix":
        rates = schedule.rates
        before = np.concatenate([[0.0], np.cumsum(rates)])
        drop = np.concatenate([[0.0], rates[:-1] - rates[1:]])
        log = np.log(np.maximum(rates, _SMALLEST_RATE * schedule.peak))
        # A block acts at its mean rate, so it must not hold rates that differ by more than a factor
        # of sqrt(e), nor drops and rises that would cancel.
        level = np.floor(2 * (log - log.max()) + 1e-9)
        change = (np.diff(level) != 0) | (np.diff(np.sign(drop)) != 0)
        sums = np.cumsum([drop, drop * before[:-1], drop * log], axis=1)
        return cls(np.pad(sums, ((0, 0), (1, 0))), before, np.flatnonzero(change) + 1)


def collect_drops(
    schedules: Sequence[LearningRates],
    schedule: Array,
    step: Array,
    *,
    exact: int = 8,
    growth: float = 1.15,
) -> Drops:
    """Lump the drops before each point.

    Args:
        schedules: K of them.
        schedule: number 1..K of each point's schedule, [n].
        step: step of each point, within its schedule, [n].
        exact: steps just before a point that are not lumped, at least 1.
        growth: ratio of successive distances beyond, above 1; 1 + 1e-9 and less leaves every step
            alone.

    Returns:
        The lumped drops.

    Raises:
        FitError: a schedule's number or a step does not exist.
    """
    rows, steps = _checked(schedules, schedule, step)
    prefixes = [_Prefix.of(item) for item in schedules]
    longest = max(item.steps for item in schedules)
    distances = _distances(exact, growth, longest)
    parts = [
        _of_point(prefixes[row], int(at), distances) for row, at in zip(rows, steps, strict=True)
    ]
    counts = np.array([len(part[0]) for part in parts])
    size, since, rate = (np.concatenate([part[index] for part in parts]) for index in range(3))
    total = np.array([prefixes[row].total[at + 1] for row, at in zip(rows, steps, strict=True)])
    return Drops(
        size=size,
        log_since=np.log(since),
        log_rate=rate,
        owner=np.repeat(np.arange(len(parts)), counts),
        first=np.concatenate([[0], np.cumsum(counts)[:-1]]),
        log_total=np.log(total),
    )


def _checked(
    schedules: Sequence[LearningRates], schedule: Array, step: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn numbers into indices and refuse those that do not exist."""
    rows, steps = np.rint(schedule).astype(np.int64) - 1, np.rint(step).astype(np.int64)
    refuse_rows(
        (rows < 0) | (rows >= len(schedules)),
        f"schedules are numbered 1 to {len(schedules)}",
        schedule,
        "number the schedules of the points in the order they are given",
    )
    lengths = np.array([item.steps for item in schedules])[rows]
    bad = np.flatnonzero((steps < 0) | (steps >= lengths))
    if len(bad):
        row = bad[0]
        raise FitError(
            f"step {step[row]:g} in row {row + 1} lies outside schedule {rows[row] + 1}, which "
            f"has {lengths[row]} steps",
            hint="give the whole schedule, or drop the points behind its end",
        )
    return rows, steps


def _distances(exact: int, growth: float, longest: int) -> NDArray[np.int64]:
    """List the distances from a point at which blocks begin, ascending from 0."""
    if growth <= 1 + 1e-9:
        return np.arange(longest + 1)
    count = int(np.log(max(longest / exact, 1.0)) / np.log(growth)) + 2
    far = np.rint(exact * growth ** np.arange(count)).astype(np.int64)
    return np.unique(np.concatenate([np.arange(exact), far]))


def _of_point(
    prefix: _Prefix, step: int, distances: NDArray[np.int64]
) -> tuple[Array, Array, Array]:
    """Return size, learning-rate sum since, and log rate of the blocks before one point."""
    edges = prefix.edges[prefix.edges <= step]
    bounds = np.unique(np.concatenate([[1], edges, (step + 1) - distances[distances <= step]]))
    blocks = np.diff(prefix.drops[:, bounds])
    size, position, rate = blocks[:, blocks[0] != 0]
    # A constant rate has no drops; `reduceat` needs one block per point all the same.
    if not len(size):
        return np.zeros(1), np.ones(1), np.zeros(1)
    since = prefix.total[step + 1] - position / size
    return size, np.maximum(since, 1e-300), rate / size


def anneal(
    drops: Drops, log_c: Array, beta: Array, gamma: Array
) -> tuple[Array, Array, Array, Array]:
    """Sum size [1 - (1 + C rate^-gamma since)^-beta] over each point's drops, for S parameter sets.

    Args:
        drops: lumped drops of n points.
        log_c: log of C, [S, 1] or [S, n].
        beta: exponent, [S, 1] or [S, n].
        gamma: exponent of the rate, [S, 1] or [S, n].

    Returns:
        The sums and their derivatives by log C, beta and gamma, [S, n] each.

    Source: Luo et al. 2025 (Multi-Power Law, ICLR), the loss-reduction term.
    """
    count = max(len(log_c), len(beta), len(gamma))
    out = np.empty((4, count, len(drops.first)))
    # One parameter set at a time: R drops of all sets at once would not stay in the cache.
    for row in range(count):
        power, slope = _of_points(beta, row, drops), _of_points(gamma, row, drops)
        exponent = _of_points(log_c, row, drops) - slope * drops.log_rate + drops.log_since
        grown = np.logaddexp(0.0, exponent)
        left = drops.size * np.exp(-power * grown)
        by_exponent = power * left * np.exp(exponent - grown)
        for index, part in enumerate(
            (drops.size - left, by_exponent, left * grown, -drops.log_rate * by_exponent)
        ):
            out[index, row] = np.add.reduceat(part, drops.first)
    return out[0], out[1], out[2], out[3]


def _of_points(column: Array, row: int, drops: Drops) -> Array:
    """Return a parameter per drop, or as one number."""
    values = column[min(row, len(column) - 1)]
    return values if len(values) == 1 else values[drops.owner]
