"""Settings of a serving fleet that take the least energy and keep the goals of its requests."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.power import EnergyModel
from steelyard.errors import InfeasibleError, require
from steelyard.plan.energy_models import most_batch
from steelyard.sim.power import RowPlant, RowRequests, ServerRow

__all__ = [
    "EnergyGoal",
    "KnobPlan",
    "KnobSetting",
    "Knobs",
    "evaluate_setting",
    "plan_knobs",
]

_HOST_SHARE = 0.356 / 0.60
"""Power of a server beside its accelerators over their rating, as of `sim.power.ServerRow`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyGoal:
    """What requests must get.

    Attributes:
        ttft_s: longest time to the first token.
        tpot_s: longest mean time per further token.
        violations: share of the requests that may miss either.
    """

    ttft_s: float = 2.0
    tpot_s: float = 0.1
    violations: float = 0.01

    def __post_init__(self) -> None:
        """Refuse goals that cannot be."""
        require(
            self,
            ttft_s=(self.ttft_s > 0, "above 0"),
            tpot_s=(self.tpot_s > 0, "above 0"),
            violations=(0 <= self.violations < 1, "in [0, 1)"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """What may be set.

    Attributes:
        clocks: clocks over the highest, in (0, 1].
        batches: most requests that a copy works on at once.
        cap_w: power cap of each accelerator; infinity for none. The clock follows from it where it
            is the lower of the two.
    """

    clocks: tuple[float, ...] = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    cap_w: float = math.inf

    def __post_init__(self) -> None:
        """Refuse settings that no chip has."""
        require(
            self,
            clocks=(bool(self.clocks) and all(0 < c <= 1 for c in self.clocks), "in (0, 1]"),
            batches=(bool(self.batches) and min(self.batches) >= 1, "1 or more"),
            cap_w=(self.cap_w > 0, "above 0"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KnobSetting:
    """One setting with what it is simulated to give.

    Attributes:
        tensor_parallel: accelerators of a copy.
        replicas: copies.
        clock: clock over the highest.
        batch: most requests that a copy works on at once.
        power_w: mean power of accelerators and hosts.
        energy_per_token_j: energy over the tokens generated; prompts are part of it.
        ttft_s: 99th percentile of the time to the first token.
        tpot_s: 99th percentile of the mean time per further token.
        violations: share of the requests that miss a goal.
        binding: goal that most of those miss, "ttft" or "tpot".
    """

    tensor_parallel: int
    replicas: int
    clock: float
    batch: int
    power_w: float
    energy_per_token_j: float
    ttft_s: float
    tpot_s: float
    violations: float
    binding: str

    @property
    def accelerators(self) -> int:
        """Accelerators of all copies."""
        return self.tensor_parallel * self.replicas


@dataclass(frozen=True, kw_only=True, slots=True)
class KnobPlan:
    """The setting of least energy, beside the one of highest speed.

    Attributes:
        best: the setting.
        fastest: widest copies at the full clock, as many as needed: what is run when nothing is
            tuned; None where even these miss the goal.
        settings: all settings that keep the goal, least energy first.
        binding: what keeps the best from taking less: a goal, or that it is the optimum.
    """

    best: KnobSetting
    fastest: KnobSetting | None
    settings: tuple[KnobSetting, ...]
    binding: str

    @property
    def saving(self) -> float:
        """Share of the energy that the best saves against the fastest; NaN without one."""
        if self.fastest is None:
            return math.nan
        return 1 - self.best.energy_per_token_j / self.fastest.energy_per_token_j


def evaluate_setting(
    model: EnergyModel,
    requests: RowRequests,
    goal: EnergyGoal,
    *,
    replicas: int,
    clock: float,
    batch: int,
    cap_w: float = math.inf,
) -> KnobSetting:
    """Simulate requests on copies with one setting.

    Args:
        model: a copy.
        requests: all of one priority.
        goal: what requests must get.
        replicas: copies.
        clock: clock over the highest.
        batch: most requests that a copy works on at once.
        cap_w: power cap of each accelerator.

    Returns:
        What it gives.
    """
    context = float(np.mean(requests.prompt_tokens + requests.output_tokens / 2))
    row = ServerRow(
        model=model,
        high_servers=replicas,
        low_servers=0,
        budget_w=1e30,
        slots=batch,
        host_w=_HOST_SHARE * model.curve.rated_w * model.tensor_parallel,
        counts_peaks=False,
        context_tokens=context,
    )
    capped = _capped_clock(model, context, batch, clock, cap_w)
    plant = RowPlant(row, requests)
    plant.set_clock(capped)
    # All requests end within the work that there is, one after the other at the lowest clock.
    latest_s = float(requests.arrival_s[-1] + sum(map(np.sum, row.work_s(requests))) / capped)
    plant.advance(float(requests.arrival_s[-1]))
    spent_j, span_s = plant.state.totals[2], plant.state.totals[0]
    plant.advance(latest_s)
    power_w = float(spent_j / max(span_s, 1e-9))
    return _judged(plant, goal, model.tensor_parallel, capped, batch, power_w)


def _judged(
    plant: RowPlant, goal: EnergyGoal, width: int, clock: float, batch: int, power_w: float
) -> KnobSetting:
    """Measure what requests got; the power is that while they arrive."""
    state, requests = plant.state, plant.requests
    ttft = state.first_s - requests.arrival_s
    further = np.maximum(requests.output_tokens - 1, 1)
    tpot = (state.finish_s - state.first_s) / further
    late, slow = ttft > goal.ttft_s, tpot > goal.tpot_s
    span_s = max(float(requests.arrival_s[-1]), 1e-9)
    return KnobSetting(
        tensor_parallel=width,
        replicas=plant.row.servers,
        clock=clock,
        batch=batch,
        power_w=power_w,
        energy_per_token_j=power_w * span_s / float(requests.output_tokens.sum()),
        ttft_s=float(np.percentile(ttft, 99)),
        tpot_s=float(np.percentile(tpot, 99)),
        violations=float(np.mean(late | slow)),
        binding="ttft" if late.sum() >= slow.sum() else "tpot",
    )


def _capped_clock(
    model: EnergyModel, context: float, batch: int, clock: float, cap_w: float
) -> float:
    """Return the clock that a power cap leaves, by the power of a full batch's tokens."""
    if math.isinf(cap_w):
        return clock
    full_w = model.token(context, batch).power_w / model.tensor_parallel
    return min(clock, model.curve.clock_under(cap_w, full_w))


def plan_knobs(
    models: Mapping[int, EnergyModel],
    requests: RowRequests,
    goal: EnergyGoal,
    *,
    accelerators: int,
    knobs: Knobs | None = None,
) -> KnobPlan:
    """Find width, copies, clock and batch of least energy per token that keep a goal.

    Every setting is simulated, but those that cannot win: a setting that misses the goal does so at
    lower clocks too, and copies draw their standing power whatever they do.

    Args:
        models: energy models by the accelerators of a copy.
        requests: all of high priority, which is the only one that copies serve here.
        goal: what requests must get.
        accelerators: accelerators at hand; those that no copy needs are off.
        knobs: what may be set.

    Returns:
        The plan.

    Raises:
        InfeasibleError: no setting keeps the goal; names the best that is reached.

    Source: arXiv 2403.20306 (the knobs and what they do).
    """
    search = _KnobSearch(models, requests, goal, accelerators, knobs or Knobs())
    kept = sorted(search.run(), key=lambda item: (item.energy_per_token_j, item.accelerators))
    if not kept:
        best = search.nearest
        raise InfeasibleError(
            f"no setting of {accelerators} accelerators keeps {1 - goal.violations:.0%} of the "
            f"requests within {goal.ttft_s:g} s and {goal.tpot_s:g} s per token; the most is "
            f"{1 - best.violations:.1%}, missing {best.binding}"
            if best
            else f"{accelerators} accelerators hold no copy of the model",
            hint="allow more accelerators or looser goals",
        )
    widest = max(search.models)
    fastest = [item for item in kept if item.tensor_parallel == widest and item.clock == 1.0]
    # What is run untuned batches as much as it can; of several numbers of copies the fewest.
    plain = min(fastest, key=lambda item: (item.replicas, -item.batch), default=None)
    return KnobPlan(
        best=kept[0], fastest=plain, settings=tuple(kept), binding=search.binding(kept[0])
    )


class _KnobSearch:
    """State of one search."""

    def __init__(
        self,
        models: Mapping[int, EnergyModel],
        requests: RowRequests,
        goal: EnergyGoal,
        accelerators: int,
        knobs: Knobs,
    ) -> None:
        self.models = {width: made for width, made in models.items() if width <= accelerators}
        self.requests, self.goal, self.accelerators = requests, goal, accelerators
        self.knobs = knobs
        self.nearest: KnobSetting | None = None
        self.least_w = math.inf
        self.tried: dict[tuple[int, int, int, float], KnobSetting] = {}

    def run(self) -> list[KnobSetting]:
        """Return all settings that keep the goal and could win."""
        found: list[KnobSetting] = []
        longest: NDArray[np.int64] = self.requests.prompt_tokens + self.requests.output_tokens
        for width, model in self.models.items():
            most = most_batch(model, float(np.mean(longest)))
            batches = [size for size in self.knobs.batches if size <= most]
            counts = range(1, self.accelerators // width + 1)
            for replicas, batch in itertools.product(counts, sorted(batches, reverse=True)):
                standing = (
                    replicas * width * (model.curve.idle_w + _HOST_SHARE * model.curve.rated_w)
                )
                # The widest copies at the full clock are what the plan is compared with.
                if standing > self.least_w and width < max(self.models):
                    continue
                found += self._clocks(model, replicas, batch)
        return found

    def _clocks(self, model: EnergyModel, replicas: int, batch: int) -> list[KnobSetting]:
        """Lower the clock until the goal is missed."""
        found = []
        for clock in sorted(self.knobs.clocks, reverse=True):
            made = evaluate_setting(
                model,
                self.requests,
                self.goal,
                replicas=replicas,
                clock=clock,
                batch=batch,
                cap_w=self.knobs.cap_w,
            )
            self.tried[model.tensor_parallel, replicas, batch, clock] = made
            if made.violations > self.goal.violations:
                if self.nearest is None or made.violations < self.nearest.violations:
                    self.nearest = made
                break
            self.least_w = min(self.least_w, made.power_w)
            found.append(made)
        return found

    def binding(self, best: KnobSetting) -> str:
        """Say what keeps the best from taking less energy."""
        clocks = [clock for clock in self.knobs.clocks if clock < best.clock]
        replicas = best.replicas - 1
        lower = (best.tensor_parallel, best.replicas, best.batch, max(clocks, default=0.0))
        fewer = (best.tensor_parallel, replicas, best.batch, best.clock)
        for words, key in (("a lower clock", lower), ("fewer copies", fewer)):
            made = self.tried.get(key)
            if made is not None and made.violations > self.goal.violations:
                return f"{made.binding}: {words} misses it"
        return "the optimum: no goal binds"
