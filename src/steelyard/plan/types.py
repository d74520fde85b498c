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
    """Say the layout of a choice in a few words."""
    return (
        f"{choice['num_accelerators']} = {choice['data']} data x {choice['tensor']} tensor x "
        f"{choice['pipeline']} pipeline, ZeRO {choice['zero_stage']}, micro-batch "
        f"{choice['micro_batch']}, recompute {choice['recompute']}"
    )
