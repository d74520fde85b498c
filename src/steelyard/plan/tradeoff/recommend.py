"""Ranks configurations for goals: context and performance predicted, accuracy only as measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.errors import ConfigError
from steelyard.plan.tradeoff.configuration import Configuration
from steelyard.plan.tradeoff.predicted import Goals, Predicted, candidates, predict
from steelyard.plan.tradeoff.table import TradeoffPoint, TradeoffTable
from steelyard.plan.tradeoff.techniques import technique

__all__ = ["Advice", "Recommendation", "recommend"]

_MEASURE = "must be measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """One configuration and what speaks for it.

    Attributes:
        configuration: how to serve.
        predicted: what cost says; provenance "derived".
        accuracy_drop: share of right answers lost; None where it must be measured.
        accuracy_source: how that is known.
        misses: goals that are missed, each with the factor by which, 1 for none.
    """

    configuration: Configuration
    predicted: Predicted
    accuracy_drop: float | None
    accuracy_source: str
    misses: dict[str, float]

    @property
    def is_known(self) -> bool:
        """Whether its accuracy is known."""
        return self.accuracy_drop is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What to use for goals.

    Attributes:
        goals: what was asked.
        ranked: configurations that reach them; those of known accuracy first, then by rate.
        nearest: where none does, those that miss by least.
        relax: where none does, goals that alone stand in the way, each with what can be reached.
    """

    goals: Goals
    ranked: tuple[Recommendation, ...]
    nearest: tuple[Recommendation, ...]
    relax: dict[str, str]

    @property
    def is_feasible(self) -> bool:
        """Whether anything reaches the goals."""
        return bool(self.ranked)


def recommend(
    goals: Goals,
    arch: Architecture,
    device: Accelerator | None = None,
    *,
    dtype: str = "bf16",
    memory_bytes: float = 0.0,
    table: TradeoffTable | None = None,
) -> Advice:
    """Rank configurations by what they reach.

    Context and performance on a device are predicted from cost; without a device they are those
    that `table` measured. Accuracy is 0 loss for exact techniques, what `table` measured for
    others, and unknown else: nothing about it is assumed.

    Args:
        goals: what has to be reached.
        arch: model; its `max_positions` are those it was trained for.
        device: accelerator; None for the machine of `table`.
        dtype: number format of weights and cache where nothing is quantized.
        memory_bytes: memory for weights, keys and values; 0 for the device's.
        table: measurement of this very model; its configurations are those that are ranked.

    Returns:
        The advice.

    Raises:
        ConfigError: the device has no rate for the dtype, or neither device nor table is given.

    Source: Zeng et al. 2024 (arXiv 2405.11299), use of the principle; Fu 2024 (arXiv 2405.08944)
        for the predictions.
    """
    if table is None:
        if device is None:
            raise ConfigError("neither a device nor a measurement", hint="give one of them")
        chosen = candidates(goals, arch)
    else:
        chosen = list(table.measured.configurations)
    found = []
    for item in chosen:
        point = None if table is None else table.point(item.name)
        if device is None:
            assert point is not None  # a table holds a point of each of its configurations
            made = _as_measured(point)
        else:
            made = predict(item, goals, arch, device, dtype=dtype, memory_bytes=memory_bytes)
        found.append(_weigh(item, goals, made, table, point))
    reached = [item for item in found if not item.misses]
    order = sorted(reached, key=lambda item: (not item.is_known, -item.predicted.tokens_per_s))
    nearest = sorted(found, key=lambda item: max(item.misses.values(), default=1.0))
    return Advice(
        goals=goals,
        ranked=tuple(order),
        nearest=() if reached else tuple(nearest[:3]),
        relax={} if reached else _relax(found),
    )


def _as_measured(point: TradeoffPoint) -> Predicted:
    """Return what a measurement says in place of a prediction."""
    return Predicted(
        context_tokens=point.context_tokens,
        ttft_s=point.ttft_s,
        tpot_s=point.tpot_s,
        sequences=0,
        tokens_per_s=point.tokens_per_s,
    )


def _weigh(
    chosen: Configuration,
    goals: Goals,
    made: Predicted,
    table: TradeoffTable | None,
    measured: TradeoffPoint | None,
) -> Recommendation:
    """Set one configuration beside the goals."""
    if table is not None and measured is not None:
        # What is not recalled is no context, however much memory there is. A curve that has not
        # fallen at the longest question says nothing of what lies beyond it.
        ends = measured.effective_tokens < table.measured.plan.lengths[-1]
        reach = measured.effective_tokens if ends else math.inf
        made = replace(made, context_tokens=min(made.context_tokens, reach))
    drop, source = _accuracy(chosen, table, measured)
    ratios = {
        "context": goals.context / max(made.context_tokens, 1e-9),
        "ttft": made.ttft_s / goals.ttft_s,
        "tpot": made.tpot_s / goals.tpot_s,
        # A share may be 0, so the miss is counted in points.
        "accuracy": 1.0 if drop is None else 1 + max(0.0, drop - goals.accuracy_drop),
    }
    return Recommendation(
        configuration=chosen,
        predicted=made,
        accuracy_drop=drop,
        accuracy_source=source,
        misses={name: at for name, at in ratios.items() if at > 1 + 1e-9},
    )


def _accuracy(
    chosen: Configuration, table: TradeoffTable | None, measured: TradeoffPoint | None
) -> tuple[float | None, str]:
    """Return the share of answers that is lost, and how it is known."""
    if measured is not None and table is not None:
        return table.points[0].recall - measured.recall, "measured"
    unknown = [name for name in chosen.techniques if not technique(name).exact]
    return (None, f"{_MEASURE}: {', '.join(unknown)}") if unknown else (0.0, "exact")


def _relax(found: Sequence[Recommendation]) -> dict[str, str]:
    """Return the goals that alone stand in the way, with the best that can be reached."""
    words = {
        "context": lambda item: f"{item.predicted.context_tokens:,.0f} tokens",
        "ttft": lambda item: f"{item.predicted.ttft_s:.3g} s to the first token",
        "tpot": lambda item: f"{item.predicted.tpot_s:.3g} s a token",
        "accuracy": lambda item: f"{100 * (item.accuracy_drop or 0):.1f} points lost",
    }
    relaxed = {}
    for goal, say in words.items():
        alone = [item for item in found if set(item.misses) == {goal}]
        if alone:
            best = min(alone, key=lambda item: item.misses[goal])
            relaxed[goal] = f"{say(best)} with {best.configuration.name}"
    return relaxed
