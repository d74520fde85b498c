"""A log summed up for each place of a layout, so that it can stand beside a simulated step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.plan.explain.log import StepLog
from steelyard.plan.explain.terms import TERMS, StepTerms
from steelyard.sim.step.training import TrainingStep

__all__ = ["Seen", "seen_in", "simulated"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Usual seconds of each term; medians over steps.

    Without ranks there is one place, the mean of all.

    Attributes:
        step_s: seconds of a step.
        terms: seconds of each term, [data, pipeline]; of a tensor group, the slowest member's
            kernels, and the wait of the one that waits least for the group's traffic.
        data_own_s: wait for collectives of the replica that comes last, [pipeline].
        load_s: wait for data of the rank that waits longest.
        kernels_s: kernels by rank, [data, pipeline, tensor]; NaN for ranks that were not logged.
    """

    step_s: float
    terms: dict[str, Array]
    data_own_s: Array
    load_s: float
    kernels_s: Array

    @property
    def shape(self) -> tuple[int, int]:
        """Places: replicas and pipeline ranks."""
        return self.kernels_s.shape[0], self.kernels_s.shape[1]

    def means(self) -> dict[str, float]:
        """Return the mean over all places of each term."""
        return {name: float(values.mean()) for name, values in self.terms.items() if name in TERMS}


def seen_in(log: StepLog, step: TrainingStep) -> Seen:
    """Sum up a log.

    Args:
        log: measured steps.
        step: layout of the job; ranks are numbered tensor first, then data, then pipeline.

    Returns:
        What is usual.

    Raises:
        DataError: the log has ranks that the layout has not, or lacks whole groups of it.
    """
    # The steps' own times have every rank, also where no term was logged.
    _grid(log.step_s, log, step)
    grids = {name: _grid(values, log, step) for name, values in log.terms.items()}
    usual = {name: np.median(values, axis=0) for name, values in grids.items()}
    folded = {name: _folded(name, values) for name, values in usual.items()}
    shape = (step.data, step.pipeline, step.tensor) if len(log.ranks) else (1, 1, 1)
    load = grids.get("load_s")
    data = grids.get("data_s", np.zeros((1, *shape)))
    return Seen(
        step_s=float(np.median(log.job_step_s)),
        terms=folded,
        data_own_s=np.median(np.nanmin(data, axis=(1, 3)), axis=0),
        load_s=0.0 if load is None else float(np.median(np.nanmax(load, axis=(1, 2, 3)))),
        kernels_s=usual.get("compute_s", np.full(shape, np.nan)),
    )


def _grid(values: Array, log: StepLog, step: TrainingStep) -> Array:
    """Lay [S, R] out as [S, data, pipeline, tensor], NaN where a rank was not logged."""
    if not len(log.ranks):
        return values[:, :, None, None]
    if log.ranks[-1] >= step.num_accelerators:
        raise DataError(
            f"the log has rank {log.ranks[-1]}, but the layout has {step.num_accelerators} ranks",
            hint="give the layout that the job runs",
        )
    inner, tensor = np.divmod(log.ranks, step.tensor)
    pipeline, data = np.divmod(inner, step.data)
    found = np.full((len(values), step.data, step.pipeline, step.tensor), np.nan)
    found[:, data, pipeline, tensor] = values
    lost = np.argwhere(np.isnan(found[0]).all(axis=-1))
    if len(lost):
        raise DataError(
            f"no rank of replica {lost[0][0]}, stage {lost[0][1]} is in the log ({len(lost)} of "
            f"{step.data * step.pipeline} places lack one)",
            hint="log one rank of each tensor-parallel group at least, or none",
        )
    return found


def _folded(name: str, values: Array) -> Array:
    """Fold tensor-parallel members into one."""
    if name in ("compute_s", "product_s"):
        return np.nanmax(values, axis=-1)
    # Members that are done early wait for the slowest one within the traffic.
    return np.nanmin(values, axis=-1) if name == "tensor_s" else np.nanmean(values, axis=-1)


def simulated(found: StepTerms, log: StepLog, tensor: int = 1) -> Seen:
    """Sum up a simulated step as a log would show it.

    Args:
        found: the step.
        log: whether it has ranks decides what is shown.
        tensor: members of a tensor-parallel group.

    Returns:
        What would be usual.
    """
    terms, own = found.terms, found.data_own_s
    if not len(log.ranks):
        terms = {name: np.full((1, 1), values.mean()) for name, values in terms.items()}
        own, tensor = terms["data_s"][0], 1
    return Seen(
        step_s=found.time_s,
        terms=terms,
        data_own_s=own,
        load_s=float(terms["load_s"].max()),
        kernels_s=np.repeat(terms["compute_s"][:, :, None], tensor, axis=2),
    )
