"""What failures cost a planned run: interruptions, how often to save, and time with losses."""

import math
from dataclasses import dataclass

from steelyard.cost.memory import MIXED
from steelyard.plan.checkpoint import CheckpointPlan, FaultyJob, plan_checkpoint
from steelyard.quantity import Forecast
from steelyard.sim.faults import Weibull, best_interval

__all__ = ["ACCELERATOR_MTBF_S", "Interruptions", "expected_interruptions", "kept_share"]

ACCELERATOR_MTBF_S = 54 * 86400 * 16_384 / 419
"""Seconds of one accelerator between unexpected interruptions of a job: 419 in 54 days on 16,384
(arXiv 2407.21783, section 3.3.4)."""
_STORAGE_BYTES_PER_S = 2e12 / 3072
"""Rate at which a node writes checkpoints: storage of a sustained 2 TB/s for clusters of 24,576
accelerators in nodes of eight (arXiv 2407.21783, section 3.3.1)."""
_RESTART_S = 600.0
"""Seconds from a failure until work goes on; assumed."""
_RATE_FACTOR = 2.0
"""How far the rate of failures may be off either way, of an 80 % interval; assumed."""
_SOURCE = (
    "failures of Llama 3's training (arXiv 2407.21783, section 3.3.4), restarts of 10 min assumed"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruptions:
    """What failures make of a run.

    Attributes:
        plan: how often to save, and where the time goes.
        forecasts: train.goodput, run.interruptions and run.duration.
    """

    plan: CheckpointPlan
    forecasts: tuple[Forecast, Forecast, Forecast]

    @property
    def duration_s(self) -> float:
        """Wall time of the run with saves, restarts and work done again."""
        return self.forecasts[2].value


def _job(parameters: float, count: float, num_nodes: float, work_s: float) -> FaultyJob:
    """Return the job whose every accelerator can interrupt it."""
    # The fp32 weights and both moments are enough to go on; 16-bit weights follow from them.
    size = float(MIXED.optimizer) * parameters
    return FaultyJob(
        failures=Weibull(ACCELERATOR_MTBF_S / count),
        save_s=size / (_STORAGE_BYTES_PER_S * num_nodes),
        restart_s=_RESTART_S,
        work_s=work_s,
    )


def kept_share(parameters: float, count: float, num_nodes: float) -> float:
    """Return the share of time that a run keeps at its best checkpoint interval.

    Args:
        parameters: parameters of the model.
        count: accelerators of the run.
        num_nodes: nodes that they are in.

    Returns:
        A fraction.
    """
    job = _job(parameters, count, num_nodes, 1.0)
    return best_interval(job.failures, save_s=job.save_s, restart_s=job.restart_s)[1]


def expected_interruptions(
    parameters: float, count: float, num_nodes: float, work: Forecast
) -> Interruptions:
    """Forecast what failures make of a run.

    Args:
        parameters: parameters of the model.
        count: accelerators of the run.
        num_nodes: nodes that they are in.
        work: forecast of the run's time without failures, seconds.

    Returns:
        The best checkpoint interval, and what is kept, interrupted and taken.
    """
    job = _job(parameters, count, num_nodes, work.value)
    made = plan_checkpoint(job)
    kept = made.goodput
    # More failures than there save more often, too.
    worse, better = (
        kept_share(parameters, count * factor, num_nodes)
        for factor in (_RATE_FACTOR, 1 / _RATE_FACTOR)
    )
    goodput = Forecast(
        quantity="train.goodput",
        value=kept.value,
        low=min(kept.low, worse),
        high=max(kept.high, better),
        provenance="assumed",
        source=_SOURCE,
    )
    duration_s = work.value / goodput.value
    interruptions = Forecast.about(
        "run.interruptions",
        duration_s / job.failures.mean_s,
        relative=_RATE_FACTOR - 1,
        provenance="assumed",
        source=_SOURCE,
    )
    # Independent errors of the step's time and of the failures: squares of logarithms add up.
    low = math.hypot(math.log(work.value / work.low), math.log(goodput.high / goodput.value))
    high = math.hypot(math.log(work.high / work.value), math.log(goodput.value / goodput.low))
    duration = Forecast(
        quantity="run.duration",
        value=duration_s,
        low=duration_s * math.exp(-low),
        high=duration_s * math.exp(high),
        provenance=work.provenance,
        source=f"{work.source}; {_SOURCE}",
    )
    return Interruptions(plan=made, forecasts=(goodput, interruptions, duration))
