"""A log beside what is expected of it: ratios, what the waits should be, what changes cost."""

from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.plan.beliefs import PARTS, Beliefs
from steelyard.plan.explain.log import StepLog
from steelyard.plan.explain.seen import Seen, seen_in, simulated
from steelyard.plan.explain.terms import StepModel, StepTerms, WorkFactors
from steelyard.plan.timeline import closed_form
from steelyard.quantity import Z80
from steelyard.sim.step.training import TrainingStep

__all__ = ["Case"]

Array = NDArray[np.float64]

_AS_BEFORE = 0.10
"""How far a term may depart from the same job's earlier log."""
_ROUNDS = 3
_ALARM = 2.0
"""Standard deviations beyond which a term departs: one healthy term in 40 does."""


class Case:
    """A log with what is expected of it.

    Attributes:
        log: measured steps.
        baseline: an earlier log of the same job, None to compare with the forecast.
        model: the step as it is simulated.
        forecast: what the forecast says.
        seen: what the log says.
        alarm: standard deviations beyond which a term departs.
        expected: what the earlier log says, the forecast without one.
        work: work as it was measured, over the forecast.
        expected_work: the same of what is expected.
        predicted: the step that follows from the work as it was measured.
        expected_step: the step that follows from the work as it is expected.
    """

    def __init__(
        self, log: StepLog, step: TrainingStep, baseline: StepLog | None, beliefs: Beliefs
    ) -> None:
        """Put a log beside what is expected.

        Args:
            log: measured steps.
            step: model, machine and layout.
            baseline: an earlier log of the same job, None to compare with the forecast.
            beliefs: spreads of the forecast's errors.
        """
        self.log, self.baseline = log, baseline
        self.model = StepModel(step)
        self.forecast = simulated(self.model.simulate(), log, step.tensor)
        self.seen = seen_in(log, step)
        self.expected = seen_in(baseline, step) if baseline else self.forecast
        self._spreads: dict[str, float] = dict(zip(PARTS, beliefs.parts, strict=True))
        # Traffic of all kinds crosses the same links, and little was known of the replicas'.
        links = max(self._spreads["tensor_s"], self._spreads["data_s"])
        self._spreads |= {"tensor_s": links, "data_s": links}
        self._own = beliefs.own
        self.alarm = _ALARM
        self.work, self.predicted = self._measured(self.seen)
        self.expected_work, self.expected_step = self._measured(self.expected)

    @property
    def high_s(self) -> float:
        """High end of the 80 % interval of the step's time."""
        return self.expected.step_s * float(np.exp(Z80 * self.spread))

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of the step's time over what is expected."""
        if self.baseline:
            return _AS_BEFORE / Z80
        means = self.forecast.means()
        whole = sum(means.values())
        parts = [self._spreads.get(name, 0.0) * value / whole for name, value in means.items()]
        return float(np.sqrt(np.square(parts).sum() + self._own**2))

    @cached_property
    def product_share(self) -> float:
        """Share of the kernels' time that is forecast for products and attention."""
        cost = closed_form(self.model.step)
        return float(cost.product_s / cost.compute_s)

    def tolerance(self, term: str) -> float:
        """Return the factor from which a term departs."""
        spread = _AS_BEFORE / _ALARM if self.baseline else self._spreads.get(term, self._own)
        return float(np.exp(self.alarm * spread))

    def without_doubt(self) -> "Case":
        """Return the case as it were if the forecast of every term were exact."""
        found = copy(self)
        found.alarm = 0.0
        return found

    def ratio(self, term: str) -> Array:
        """Return how many times longer than expected a term lasts at each place."""
        return _over(self.seen.terms.get(term), self.expected.terms.get(term), self.seen.shape)

    def time_s(self, **changed: Array | float) -> float:
        """Return the seconds of the step if some of its work were otherwise.

        Args:
            **changed: fields of the work as it was measured.

        Returns:
            Simulated seconds.
        """
        return self.model.simulate(replace(self.work, **changed)).time_s

    def wait_beyond(self, term: str) -> float:
        """Return the usual seconds of a wait that do not follow from the work, nor were expected.

        Args:
            term: name of the wait.

        Returns:
            The median over all places, in seconds.
        """

        def beyond(seen: Seen, found: StepTerms) -> float:
            said = simulated(found, self.log).terms[term]
            return float(np.median(seen.terms.get(term, said) - said))

        return beyond(self.seen, self.predicted) - beyond(self.expected, self.expected_step)

    def _measured(self, seen: Seen) -> tuple[WorkFactors, StepTerms]:
        """Return the work that a log shows, over the forecast's, and the step that follows."""
        shape = seen.shape

        def over(term: str) -> Array:
            return _over(seen.terms.get(term), self.forecast.terms.get(term), shape)

        work = WorkFactors(
            compute=over("compute_s"),
            tensor=over("tensor_s"),
            update=over("update_s"),
            load_s=seen.terms.get("load_s", np.zeros(shape)),
        )
        found = self.model.simulate(work)
        if "data_s" not in seen.terms or self.model.shape[0] == 1:
            return work, found
        # Only what kernels do not hide is seen of a collective: it is lengthened until as much
        # shows. Of longer ones all that is added shows, so that few rounds are enough.
        for _ in range(_ROUNDS):
            lacks = seen.data_own_s - simulated(found, self.log).data_own_s
            work = replace(work, data_extra_s=work.data_extra_s + lacks)
            found = self.model.simulate(work)
        return work, found


def _over(ours: Array | None, theirs: Array | None, shape: tuple[int, int]) -> Array:
    """Divide terms; 1 where one of them is not known or nothing."""
    if ours is None or theirs is None:
        return np.ones(shape)
    return np.where(theirs > 0, ours / np.where(theirs > 0, theirs, 1.0), 1.0)
