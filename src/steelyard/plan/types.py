"""A plan: what it needs of a law, what was chosen, what is forecast of it, what lost and why."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from steelyard.cost.why.chain import ChainStep
from steelyard.errors import ConfigError
from steelyard.quantity import Forecast

__all__ = ["AllocationLike", "Change", "Plan", "Rejected", "interval", "layout_words"]


class AllocationLike(Protocol):
    """What a scaling law says of a budget.

    Each is a number, or a value with its interval: anything with `value`, `low` and `high`, such as
    a Forecast.
    """

    @property
    def parameters(self) -> Any:
        """Parameters, embeddings included."""

    @property
    def tokens(self) -> Any:
        """Training tokens."""

    @property
    def loss(self) -> Any:
        """Loss in nats per token."""


def interval(value: Any) -> tuple[float, float, float]:
    """Return (value, low, high) of an interval; a bare number is an interval without width."""
    # Estimates of laws have ends; a size that was given has none.
    if hasattr(value, "value"):
        return float(value.value), float(value.low), float(value.high)
    return float(value), float(value), float(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """An alternative that lost.

    Attributes:
        choice: settings of the alternative, under the same keys as the plan's.
        reason: why it lost, one sentence.
    """

    choice: dict[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A run with one thing changed, priced anew.

    Attributes:
        name: what is changed, in words.
        duration_s: seconds of the run then, failures included.
        saved: share of the time that it saves; below 0 where it takes longer, 0 for a run that had
            no plan before.
        layout: layout that is chosen then.
    """

    name: str
    duration_s: float
    saved: float
    layout: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The chosen configuration with its forecasts.

    Attributes:
        choice: settings, plain values only.
        forecasts: quantities it is expected to reach.
        rejected: best alternatives, the closest first.
        binding_constraint: what keeps the plan from being better.
        notes: assumptions a reader should know.
        unknown: quantities without a forecast, each with what is missing.
        why: chain of formulas behind the forecasts, where it was asked for.
        helps: single changes that would shorten the run, the best first, where they were asked for.
    """

    choice: dict[str, Any]
    forecasts: list[Forecast]
    rejected: list[Rejected] = field(default_factory=list)
    binding_constraint: str = ""
    notes: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    why: list[ChainStep] = field(default_factory=list)
    helps: list[Change] = field(default_factory=list)

    def forecast(self, quantity: str) -> Forecast:
        """Return the forecast of a quantity.

        Args:
            quantity: name of the quantity.

        Returns:
            The plan's forecast.

        Raises:
            ConfigError: the plan has none; the reason is named where it is known.
        """
        found = {item.quantity: item for item in self.forecasts}
        if quantity not in found:
            reason = f": {self.unknown[quantity]}" if quantity in self.unknown else ""
            raise ConfigError(
                f"this plan has no forecast of {quantity!r}{reason}",
                hint=f"it has {', '.join(found)}",
            )
        return found[quantity]

    @property
    def duration_s(self) -> float:
        """Seconds of the whole run, with failures where they are forecast."""
        found = {item.quantity: item.value for item in self.forecasts}
        return found.get("run.duration", found.get("train.total_time", float("nan")))

    def recipe(self) -> dict[str, Any]:
        """Return the settings that an engine runs, as plain values for TOML and JSON."""
        return dict(self.choice)


def layout_words(choice: dict[str, Any]) -> str:
    """Say the layout of a choice in a few words; what is as usual goes without saying.

    Args:
        choice: fields of a `cost.layout.Layout` with its batch; absent ones are its defaults.

    Returns:
        A line.
    """
    degrees = [f"{choice[name]} {name}" for name in ("data", "tensor", "pipeline")]
    if (parts := choice.get("context", 1)) > 1:
        degrees.append(f"{parts} context")
    words = [f"{choice['num_accelerators']} = {' x '.join(degrees)}", *_pipeline_words(choice)]
    # Groups of whole experts lie over the axes above: they are no factor of the accelerators.
    if (group := choice.get("expert", 1)) > 1:
        words.append(f"experts over {group}")
    words.append(f"ZeRO {choice['zero_stage']}{_shard_words(choice)}")
    words += [f"micro-batch {choice['micro_batch']}", f"recompute {choice['recompute']}"]
    kinds = {"offload_optimizer": "optimizer", "offload_activations": "activations"}
    words += [f"{kind} in host memory" for name, kind in kinds.items() if choice.get(name)]
    if choice["tensor"] > 1 and not choice.get("sequence_parallel", True):
        words.append("whole norms")
    return ", ".join(words)


def _pipeline_words(choice: dict[str, Any]) -> list[str]:
    """Say the order of a pipeline's passes where it is no plain one forward one backward."""
    chunks, order = choice.get("virtual_stages", 1), choice.get("schedule", "1f1b")
    return ([f"{chunks} chunks"] if chunks > 1 else []) + ([order] if order != "1f1b" else [])


def _shard_words(choice: dict[str, Any]) -> str:
    """Say over what groups of replicas states are sharded, where not over all alike."""
    states = {"weight": 3, "gradient": 2, "optimizer": 1}
    sizes = {
        name: choice.get(f"{name}_shards", 0) or "all"
        for name, least in states.items()
        if choice["zero_stage"] >= least
    }
    if {*sizes.values()} <= {"all"}:
        return ""
    if len({*sizes.values()}) == 1:
        return f" in groups of {sizes['optimizer']}"
    return f" ({', '.join(f'{name} over {size}' for name, size in sizes.items())})"
