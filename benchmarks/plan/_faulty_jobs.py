"""Logs of simulated jobs with a fault planted, and of the same jobs while they were healthy."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.cost.roofline import Machine
from steelyard.plan.explain.log import StepLog
from steelyard.plan.explain.terms import StepModel, StepTerms, WorkFactors
from steelyard.plan.timeline import closed_form
from steelyard.sim.step.training import Links, TrainingStep

__all__ = ["FAULTS", "FaultyJob", "draw_job"]

Array = NDArray[np.float64]

FAULTS = (
    "slow rank",
    "kernels",
    "memory traffic",
    "tensor traffic",
    "all-reduce",
    "data wait",
    "bubble",
    "pauses",
)
_SIZES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt3-6.7b", {"pipeline": 1, "data": 8, "tensor": 2, "num_micro_batches": 2}),
    ("gpt3-6.7b", {"pipeline": 4, "data": 2, "tensor": 1, "num_micro_batches": 8}),
    ("gpt3-6.7b", {"pipeline": 2, "data": 8, "tensor": 1, "num_micro_batches": 4}),
    ("gpt3-13b", {"pipeline": 4, "data": 4, "tensor": 2, "num_micro_batches": 8}),
    ("gpt3-175b", {"pipeline": 8, "data": 2, "tensor": 4, "num_micro_batches": 16}),
    ("gpt3-175b", {"pipeline": 4, "data": 4, "tensor": 8, "num_micro_batches": 8}),
)
_LEAST_COST = 0.05
"""A fault costs at least this share of the step: a lesser one changes nothing worth a name."""
_SPREADS = {"compute": 0.12, "tensor": 0.5, "update": 0.12, "data": 0.5}
"""Standard deviations of the logarithms by which healthy jobs differ from the forecast: kernels as
the package believes, traffic half of it, as its fit met one very slow network."""


@dataclass(frozen=True)
class FaultyJob:
    """A job's logs.

    Attributes:
        fault: what was planted, empty for nothing.
        rank: the rank it was planted in, -1 for all.
        severity: step's time with the fault over without.
        step: layout as its user states it.
        before: log of the job while it was healthy.
        log: log with the fault.
    """

    fault: str
    rank: int
    severity: float
    step: TrainingStep
    before: StepLog
    log: StepLog


def draw_job(fault: str, seed: int, num_steps: int = 48) -> FaultyJob:
    """Simulate a job.

    Args:
        fault: one of `FAULTS`, or nothing.
        seed: seed of its size, noise and severity.
        num_steps: steps of each log.

    Returns:
        The job; its fault costs at least 5 % of the step.
    """
    rng = np.random.default_rng(seed)
    while True:
        step = _size(fault, rng)
        truth = _Truth.draw(step, rng)
        bad = _planted(truth, fault, rng)
        before_s = truth.usual().time_s
        severity = bad.usual().time_s / before_s + bad.pause_share
        if not fault or severity > 1 + _LEAST_COST:
            return FaultyJob(
                fault=fault,
                rank=bad.slow_rank,
                severity=severity if fault else 1.0,
                step=step,
                before=truth.log(num_steps, rng),
                log=bad.log(num_steps, rng),
            )


def _size(fault: str, rng: np.random.Generator) -> TrainingStep:
    """Draw a layout that can have the fault."""
    needs = {"tensor traffic": "tensor", "all-reduce": "data", "bubble": "pipeline"}.get(fault)
    able = [item for item in _SIZES if not needs or item[1][needs] > 1]
    model, drawn = able[rng.integers(len(able))]
    sizes: dict[str, Any] = dict(drawn)
    if fault == "bubble" and rng.random() < 0.5:
        sizes["num_chunks"] = 2
    cluster = catalog.cluster("Selene")
    machine = Machine.from_accelerator(catalog.accelerator(cluster.accelerator), cluster=cluster)
    return TrainingStep(
        arch=catalog.architecture_by_name(model), machine=machine, sequence_length=2048, **sizes
    )


@dataclass(frozen=True)
class _Truth:
    """A job as it runs: its own machine, its noise, its fault."""

    model: StepModel
    work: WorkFactors
    chips: Array
    jitter: float
    has_products: bool
    slow_rank: int = -1
    slow_factor: float = 1.0
    late: tuple[float, bool] = (0.0, False)
    pause_every: int = 0
    pause_share: float = 0.0
    regular: bool = True

    @classmethod
    def draw(cls, step: TrainingStep, rng: np.random.Generator) -> "_Truth":
        """Draw how a healthy job differs from its forecast, and its noise."""
        off = {name: float(np.exp(rng.normal(0, spread))) for name, spread in _SPREADS.items()}
        links = Links.of(step.machine, tensor=step.tensor, data=step.data, pipeline=step.pipeline)
        links = replace(links, data_bytes_per_s=links.data_bytes_per_s / off.pop("data"))
        shape = (step.data, step.pipeline, step.tensor)
        return cls(
            model=StepModel(replace(step, links=links)),
            work=WorkFactors(**off),
            chips=np.exp(rng.normal(0, 0.01, shape)),
            jitter=float(rng.uniform(0.005, 0.03)),
            has_products=bool(rng.integers(2)),
        )

    def usual(self) -> StepTerms:
        """Return the step without noise."""
        return self._step(self._members(np.ones(self.chips.shape)).max(axis=-1), 1.0, 1.0, 0.0)

    def _members(self, noise: Array) -> Array:
        """Return the factor of each rank's kernels, [data, pipeline, tensor]."""
        found = self.work.compute * self.chips * noise
        if self.slow_rank >= 0:
            inner, tensor = divmod(self.slow_rank, self.chips.shape[2])
            pipeline, data = divmod(inner, self.chips.shape[0])
            found[data, pipeline, tensor] *= self.slow_factor
        return found

    def _step(self, compute: Array, tensor: Any, update: Any, load: Any) -> StepTerms:
        late = np.zeros(self.model.shape)
        seconds, one = self.late
        late[0 if one else slice(None), 0] = seconds
        return self.model.simulate(
            replace(
                self.work,
                compute=compute,
                tensor=self.work.tensor * tensor,
                update=self.work.update * update,
                load_s=late + load,
            )
        )

    def log(self, num_steps: int, rng: np.random.Generator) -> StepLog:
        """Log some steps with their noise."""
        usual_s = self.usual().time_s
        pauses = self._pauses(num_steps, usual_s, rng)
        rows = [self._row(usual_s, pause, rng) for pause in pauses]
        count = self.chips.size
        names = rows[0].keys()
        # Ranks are numbered tensor first, then data, then pipeline.
        terms = {
            name: np.array([row[name].transpose(1, 0, 2).reshape(count) for row in rows])
            for name in names
        }
        return StepLog(
            steps=np.arange(num_steps),
            ranks=np.arange(count),
            step_s=terms.pop("step_time_s"),
            terms=terms,
        )

    def _pauses(self, num_steps: int, usual_s: float, rng: np.random.Generator) -> Array:
        """Return the seconds that each step pauses; one in a hundred of any job does."""
        found = np.where(rng.random(num_steps) < 0.01, rng.uniform(0.1, 1.0, num_steps), 0.0)
        if self.pause_every:
            at = np.arange(num_steps) % self.pause_every == rng.integers(self.pause_every)
            if not self.regular:
                at = rng.permutation(at)
            found = np.where(at, self.pause_share * self.pause_every, found)
        return found * usual_s

    def _row(self, usual_s: float, pause_s: float, rng: np.random.Generator) -> dict[str, Array]:
        """Simulate one step with its noise, and read every rank's clocks."""
        shape = self.chips.shape
        members = self._members(np.exp(rng.normal(0, self.jitter, shape)))
        slowest = members.max(axis=-1)
        seconds = self._step(
            slowest,
            np.exp(rng.normal(0, 0.05, shape[:2])),
            np.exp(rng.normal(0, 0.02, shape[:2])),
            0.002 * usual_s * rng.exponential(1.0, shape[:2]),
        )
        terms = {
            name: np.repeat(item[..., None], shape[2], 2) for name, item in seconds.terms.items()
        }
        # Members of a tensor-parallel group wait for the slowest within their traffic.
        waited = terms["compute_s"] * (1 - members / slowest[..., None])
        terms["compute_s"] = terms["compute_s"] - waited
        terms["tensor_s"] = terms["tensor_s"] + waited
        if self.has_products:
            cost = closed_form(self.model.step)
            terms["product_s"] = terms["compute_s"] * float(cost.product_s / cost.compute_s)
        rest_s = pause_s + 0.01 * usual_s * rng.exponential(1.0)
        whole_s = (seconds.time_s + rest_s) * (1 + rng.normal(0, 1e-4, shape))
        found: dict[str, Array] = {"step_time_s": whole_s}
        for name, item in terms.items():
            found[name] = np.maximum(item, 0.0).round(5)
        return found


def _planted(truth: _Truth, fault: str, rng: np.random.Generator) -> _Truth:
    """Plant a fault."""
    step, work = truth.model.step, truth.work
    usual_s = truth.usual().time_s
    match fault:
        case "slow rank":
            rank = int(rng.integers(truth.chips.size))
            return replace(truth, slow_rank=rank, slow_factor=float(rng.uniform(1.1, 2.0)))
        case "kernels":
            factor = rng.uniform(1.15, 1.8)
            return replace(truth, work=replace(work, compute=work.compute * factor))
        case "memory traffic":
            machine = step.machine
            slow = replace(
                machine, memory_bytes_per_s=machine.memory_bytes_per_s / rng.uniform(2.0, 6.0)
            )
            return replace(truth, model=StepModel(replace(step, machine=slow, links=step.links)))
        case "tensor traffic":
            one = rng.random() < 0.5
            factor = np.ones(truth.model.shape) * (1.0 if one else rng.uniform(1.5, 6.0))
            if one:
                factor[tuple(rng.integers(truth.model.shape))] = rng.uniform(2.0, 8.0)
            return replace(truth, work=replace(work, tensor=work.tensor * factor))
        case "all-reduce":
            return _slow_replicas(truth, rng)
        case "data wait":
            late = (float(rng.uniform(0.05, 0.5)) * usual_s, bool(rng.random() < 0.5))
            return replace(truth, late=late)
        case "bubble" if step.num_chunks > 1:
            # The stages of a rank were not interleaved after all.
            return replace(truth, model=StepModel(replace(step, num_chunks=1)))
        case "bubble":
            return replace(truth, work=replace(work, transfer=float(rng.uniform(5, 400))))
        case "pauses":
            share = float(rng.uniform(0.05, 0.2))
            every = int(rng.integers(5, 13))
            regular = bool(rng.random() < 0.7)
            return replace(truth, pause_every=every, pause_share=share, regular=regular)
    return truth


def _slow_replicas(truth: _Truth, rng: np.random.Generator) -> _Truth:
    """Slow the links between replicas down: all of them, or those of one stage."""
    step = truth.model.step
    links = step.links
    assert links is not None  # `_Truth.draw` sets them
    factor = float(rng.uniform(2.0, 10.0))
    if rng.random() < 0.5 or step.pipeline == 1:
        slow = replace(links, data_bytes_per_s=links.data_bytes_per_s / factor)
        return replace(truth, model=StepModel(replace(step, links=slow)))
    scatter = step.times().scatter_s
    assert scatter is not None  # the step has replicas
    extra = np.zeros(step.pipeline)
    stage = int(rng.integers(step.pipeline))
    extra[stage] = 2 * (factor - 1) * float(scatter[stage])
    return replace(truth, work=replace(truth.work, data_extra_s=extra))
