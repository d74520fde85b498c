"""The layouts worth running, how sure their order is, and what to measure to be surer."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.roofline import Machine
from steelyard.plan.beliefs import PARTS, Beliefs, Doubt, part_shares
from steelyard.plan.layouts import LayoutSearch
from steelyard.plan.part_probes import part_probes
from steelyard.plan.probes import Probe, probes_of, with_answer
from steelyard.plan.regret import Regret, regret_of
from steelyard.plan.types import layout_words

__all__ = ["PUBLISHED_BELIEFS", "LayoutAdvice", "advise"]

Array = NDArray[np.float64]

PUBLISHED_BELIEFS = Beliefs(
    parts=(0.088, 1.094, 0.088, 0.088, 0.609, 0.111, 0.088, 0.093), own=0.07
)
"""Spreads that benchmark `frontier_llm` fits on half of the published runs, grouped by source, chip
and model, and on half of the groups of a published sweep of layouts (arXiv:2311.05610) after one
factor of its machine; all scaled so that 80 % of these lie within 80 % intervals. Parts that none
of them has get the spread of kernels. Traffic of tensor groups is so uncertain because the sweep's
links were far slower than assumed."""


@dataclass(frozen=True, kw_only=True)
class LayoutAdvice:
    """Candidates for one model on given machines, the fastest first.

    Attributes:
        search: all candidates that were costed.
        arch: the model.
        machine: accelerator with its links.
        order: places of the candidates in the search, [candidates].
        doubt: what is believed of the errors of their times.
        run_tokens: training tokens of the run; NaN where no run is meant.
        run_usd: money of the run with the fastest of them; NaN where no price is known.
    """

    search: LayoutSearch
    arch: Architecture
    machine: Machine
    order: NDArray[np.int64]
    doubt: Doubt
    run_tokens: float = float("nan")
    run_usd: float = float("nan")

    @cached_property
    def seconds(self) -> Array:
        """Forecast seconds for the tokens of a step of the first candidate, [candidates]."""
        per_token = 1.0 / self.search.tokens_per_s[self.order]
        return per_token * float(np.broadcast_to(self.search.cost.tokens, self._all)[self.order[0]])

    @cached_property
    def regret(self) -> Regret:
        """How sure the choice is, and what choosing wrongly costs."""
        return regret_of(self.seconds, self.doubt, run_usd=self.run_usd)

    @property
    def chosen(self) -> int:
        """Place of the best candidate in the search, what was measured considered."""
        return int(self.order[self.regret.chosen])

    @property
    def step_s(self) -> tuple[float, float, float]:
        """Seconds of a step of the best candidate, and their 80 % interval."""
        place = self.regret.chosen
        # The ranking's seconds are for the tokens of the first one's step; batches differ a little.
        own = float(np.broadcast_to(self.search.cost.time_s, self._all)[self.chosen])
        scale = own / float(self.seconds[place])
        middle, low, high = (float(item[place]) * scale for item in self.interval())
        return middle, low, high

    @property
    def run_s(self) -> float:
        """Expected seconds of the run's tokens with the best candidate."""
        shift = float(self.doubt.shift[self.regret.chosen])
        return self.run_tokens / float(self.search.tokens_per_s[self.chosen]) * np.exp(shift)

    @cached_property
    def words(self) -> list[str]:
        """Words for each candidate."""
        return [layout_words(self.search.choice(int(place))) for place in self.order]

    def interval(self) -> tuple[Array, Array, Array]:
        """Return expected seconds and their 80 % intervals, each [candidates]."""
        return self.doubt.interval(self.seconds)

    def probes(self) -> list[Probe]:
        """Return what could be measured, the most telling for the chosen candidate first."""
        target = self.regret.chosen
        choice, length = self.search.choice(self.chosen), self.search.sequence_length
        parts = part_probes(self.arch, self.machine, choice, length)
        # A part that the chosen one does not have tells nothing of its time, however wide it is.
        shown = [item for item in parts if self.doubt.shares[target][PARTS.index(item.part)] > 0]
        return probes_of(self.doubt, target, self.seconds, names=self.words, parts=shown)

    def answered(self, measured_s: float) -> "LayoutAdvice":
        """Return the advice once the most telling probe was measured.

        Args:
            measured_s: seconds that it took.

        Returns:
            The advice with narrower intervals; another candidate may come first.

        Raises:
            ConfigError: the time is not positive.
        """
        doubt = with_answer(self.doubt, self.probes()[0], measured_s)
        # Money follows time: a run that turns out slower than forecast costs that much more.
        slower = float(doubt.interval(self.seconds)[0].min() / self.interval()[0].min())
        return replace(self, doubt=doubt, run_usd=self.run_usd * slower)

    @property
    def _all(self) -> tuple[int, ...]:
        return self.search.fits.shape


def advise(
    search: LayoutSearch,
    arch: Architecture,
    machine: Machine,
    *,
    most: int = 24,
    beliefs: Beliefs = PUBLISHED_BELIEFS,
    beyond: float = 0.0,
    run_tokens: float = float("nan"),
    run_usd: float = float("nan"),
) -> LayoutAdvice:
    """Rank the layouts that fit.

    Args:
        search: all candidates; one at least fits.
        arch: the model.
        machine: accelerator with its links.
        most: candidates to keep.
        beliefs: spreads of the forecast's errors.
        beyond: spread that all candidates share because no run like theirs was fitted.
        run_tokens: training tokens of the run.
        run_usd: money of the run with the fastest candidate.

    Returns:
        The advice. Of layouts that differ in `_VARIANTS` only, the fastest stands for all.
    """
    order = _distinct(search)[:most]
    shares = part_shares(search.cost)[order]
    return LayoutAdvice(
        search=search,
        arch=arch,
        machine=machine,
        order=order,
        doubt=beliefs.doubt(shares).shared(beyond),
        run_tokens=run_tokens,
        run_usd=run_usd,
    )


_VARIANTS = (
    "virtual_stages",
    "schedule",
    "weight_shards",
    "gradient_shards",
    "optimizer_shards",
    "offload_optimizer",
    "offload_activations",
)
"""Settings that leave kernels and groups as they are: the rests of two such layouts, which the
spreads were not fitted on, are one rest rather than two that are drawn apart."""
_AXES = (
    "data",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "zero_stage",
    "micro_batch",
    "recompute",
    "sequence_parallel",
)


def _distinct(search: LayoutSearch) -> NDArray[np.int64]:
    """Return the places of the layouts that fit, the fastest of each kind alone, by speed."""
    places = np.flatnonzero(search.fits)
    ranked = places[np.argsort(-search.tokens_per_s[places], kind="stable")]
    rows = np.stack([search.column(name)[ranked] for name in _AXES], axis=1)
    _, first = np.unique(rows, axis=0, return_index=True)
    return ranked[np.sort(first)]
