"""Return curves of reinforcement learning, and the environment steps to reach a return."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array

__all__ = [
    "DataNeeds",
    "ReturnCurve",
    "best_setting",
    "data_needs",
    "first_crossings",
    "return_thresholds",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReturnCurve:
    """Returns of all seeds of one task at one updates-to-data ratio.

    Attributes:
        task: name of the task.
        utd: number of gradient steps per environment step, positive.
        step: environment steps, rising, [T].
        returns: returns of every seed, failed ones included, normalized so that 1000 is the task's
            maximum, [T, seeds].
        resets: environment steps at which the agent was reset; after each the points up to recovery
            are left out.
    """

    task: str
    utd: float
    step: Array
    returns: Array
    resets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together."""
        step = np.asarray(self.step, dtype=np.float64)
        returns = np.asarray(self.returns, dtype=np.float64)
        if returns.ndim != 2 or step.shape != returns.shape[:1] or not returns.size:
            raise FitError(
                f"task {self.task}, UTD {self.utd:g}: steps {step.shape} and returns "
                f"{returns.shape}; needed [T] and [T, seeds]"
            )
        if (
            not np.isfinite(returns).all()
            or not (np.diff(step) > 0).all()
            or not step[0] > 0
            or not self.utd > 0
        ):
            raise FitError(
                f"task {self.task}, UTD {self.utd:g}: returns must be finite, steps positive and "
                f"rising, the UTD positive",
                hint="give a seed that failed its real low returns; leaving it out or calling it "
                "0 biases the law",
            )
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "returns", returns)

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Points outside the dips after resets, judged on the mean over seeds, [T]."""
        mean = self.returns.mean(axis=1)
        keep = np.ones(len(self.step), dtype=np.bool_)
        for reset in self.resets:
            before, after = np.flatnonzero(self.step <= reset), np.flatnonzero(self.step > reset)
            if len(before) and len(after):
                recovered = after[mean[after] >= mean[before[-1]]]
                keep[after[after < (recovered[0] if len(recovered) else len(mean))]] = False
        return keep


def return_thresholds(
    lowest: float, highest: float = 800.0, count: int = 10, maximum: float = 1000.0
) -> Array:
    """Choose the returns to ask for, denser towards the maximum, where each point is dearer.

    Args:
        lowest: first threshold, such as 200 (DeepMind Control) or 300 (Gym).
        highest: last threshold.
        count: how many, at least 2.
        maximum: highest normalized return.

    Returns:
        Thresholds, ascending, [count].

    Raises:
        FitError: the order lowest < highest < maximum does not hold.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), appendix D.
    """
    if not lowest < highest < maximum or count < 2:
        raise FitError(
            f"{count} thresholds from {lowest:g} to {highest:g} below {maximum:g}: need at least "
            f"2 in rising order"
        )
    return maximum - np.geomspace(maximum - lowest, maximum - highest, count)


def first_crossings(step: Array, returns: Array, thresholds: Array) -> Array:
    """Find where the isotonic regression of each curve first reaches each threshold.

    No regression is run: a non-decreasing fit is at or above J exactly from the minimum of the
    cumulated y - J on.

    Args:
        step: environment steps, [T].
        returns: returns of R curves, [T, R].
        thresholds: returns to reach, [J].

    Returns:
        Steps, [R, J]; NaN where a curve never gets there.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), section 4; cumulative-sum form after Barlow et
    al. 1972.
    """
    ends = np.append(step, np.nan)
    found = np.empty((returns.shape[1], len(thresholds)))
    for index, level in enumerate(thresholds):
        below = np.concatenate(
            [np.zeros((1, returns.shape[1])), np.cumsum(returns - level, axis=0)]
        )
        found[:, index] = ends[below.argmin(axis=0)]
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class DataNeeds:
    """Environment steps needed per UTD and threshold, averaged over tasks.

    Attributes:
        utds: ascending, [U].
        thresholds: returns, ascending, [J].
        steps: environment steps, [U, J].
        samples: the same from resampled seeds, NaN where one did not get there, [B, U, J].
        unit: the median task's median need, environment steps; normalized needs are in units of it.
    """

    utds: Array
    thresholds: Array
    steps: Array
    samples: Array
    unit: float = 1.0


def data_needs(
    curves: Sequence[ReturnCurve],
    thresholds: Array,
    *,
    bootstraps: int = 100,
    generator: np.random.Generator | None = None,
) -> DataNeeds:
    """Measure the data every UTD needs for every threshold, over tasks of different difficulty.

    Each task is divided by its median need, tasks are averaged, and the median of the tasks'
    medians turns the average back into environment steps. Seeds are resampled within each curve;
    the resampled means are stretched by sqrt(n / (n - 1)), because the means of n resampled seeds
    vary too little.

    Args:
        curves: one per task and UTD, every task with the same UTDs.
        thresholds: returns, ascending, [J].
        bootstraps: resamplings of the seeds; 0 for none.
        generator: random generator of the resampling; needed when there is any.

    Returns:
        The needs with their resamplings.

    Raises:
        FitError: a task misses a UTD or a threshold is never reached; task, UTD, threshold and the
            highest common one are named.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), appendix D.
    """
    tasks = sorted({curve.task for curve in curves})
    utds = sorted({curve.utd for curve in curves})
    by_cell = {(curve.task, curve.utd): curve for curve in curves}
    missing = [(task, utd) for task in tasks for utd in utds if (task, utd) not in by_cell]
    if not curves or missing or len(by_cell) != len(curves) or (bootstraps and generator is None):
        where = (
            f"; missing {', '.join(f'{task} at UTD {utd:g}' for task, utd in missing[:5])}"
            if missing
            else ""
        )
        raise FitError(
            f"needs take one curve per task and UTD, and a generator to resample seeds{where}",
            hint=f"given {len(curves)} curves",
        )
    found = np.array(
        [
            [_resampled(by_cell[task, utd], thresholds, bootstraps, generator) for utd in utds]
            for task in tasks
        ]
    )
    _refuse_unreached(found[:, :, 0], tasks, utds, thresholds)
    medians = np.median(found[:, :, 0], axis=(1, 2))
    # Tasks differ in difficulty by orders of magnitude; without the division the hardest would be
    # the average.
    unit = float(np.median(medians))
    mean = unit * (found / medians[:, None, None, None]).mean(axis=0)
    return DataNeeds(
        utds=np.array(utds),
        thresholds=np.asarray(thresholds, dtype=np.float64),
        steps=mean[:, 0],
        samples=mean[:, 1:].transpose(1, 0, 2),
        unit=unit,
    )


def _resampled(
    curve: ReturnCurve, thresholds: Array, bootstraps: int, generator: np.random.Generator | None
) -> Array:
    """Return the crossings of the mean over seeds, then those of resampled means, [1 + B, J]."""
    returns, seeds = curve.returns[curve.kept], curve.returns.shape[1]
    mean = returns.mean(axis=1, keepdims=True)
    parts = [mean]
    if bootstraps and generator is not None:
        counts = generator.multinomial(seeds, np.full(seeds, 1 / seeds), bootstraps)
        parts.append(
            mean + np.sqrt(seeds / max(seeds - 1, 1)) * (returns @ counts.T / seeds - mean)
        )
    return first_crossings(curve.step[curve.kept], np.concatenate(parts, axis=1), thresholds)


def _refuse_unreached(
    found: Array, tasks: Sequence[str], utds: Sequence[float], thresholds: Array
) -> None:
    """Refuse thresholds that some task never reaches at some UTD, [tasks, U, J]."""
    lost = np.argwhere(np.isnan(found))
    if not len(lost):
        return
    task, utd, level = min(lost.tolist(), key=lambda cell: cell[2])
    common = np.flatnonzero(~np.isnan(found).any(axis=(0, 1)))
    best = f"{thresholds[common[-1]]:g}" if len(common) else "none of them"
    raise FitError(
        f"task {tasks[task]} never reaches return {thresholds[level]:g} at UTD {utds[utd]:g}, "
        f"as {len(lost)} of {found.size} cells do not; the highest that all reach: {best}",
        hint="leave the higher thresholds out, or train longer",
    )


def best_setting(needed: Array, values: Array) -> float:
    """Return the mean best value of a hyper-parameter at one UTD over all resamplings.

    The mean keeps the noise among seeds from choosing the value.

    Args:
        needed: environment steps to the highest threshold by value, by the other hyper-parameter
            and by resampling, NaN where it is never reached, [V, O, R].
        values: values of the hyper-parameter, [V].

    Returns:
        The mean winner over the other hyper-parameter and the resamplings in which any value got
        there.

    Raises:
        FitError: no setting ever reaches the threshold.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), appendix C: uncertainty-corrected best settings.
    """
    costs = np.where(np.isnan(needed), np.inf, needed)
    reached = np.isfinite(costs).any(axis=0)
    if not reached.any():
        raise FitError(
            f"no setting among {values.tolist()} reaches the threshold",
            hint="lower the threshold or train longer",
        )
    return float(values[costs.argmin(axis=0)][reached].mean())
