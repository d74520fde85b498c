"""A plan: what was chosen, what it should give, what lost and why."""

from dataclasses import dataclass, field
from typing import Any

from steelyard.errors import ConfigError
from steelyard.quantity import Forecast

__all__ = ["Plan", "Rejected"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """An alternative that lost.

    Attributes:
        choice: its settings, the same keys as the plan's.
        reason: why it lost, one sentence.
    """

    choice: dict[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The chosen configuration with its forecasts.

    Attributes:
        choice: settings, plain values only.
        forecasts: what it should give.
        rejected: best alternatives, the closest first.
        binding_constraint: what keeps the plan from being better.
        notes: assumptions a reader should know.
    """

    choice: dict[str, Any]
    forecasts: list[Forecast]
    rejected: list[Rejected] = field(default_factory=list)
    binding_constraint: str = ""
    notes: list[str] = field(default_factory=list)

    def forecast(self, quantity: str) -> Forecast:
        """Return the forecast of a quantity; ConfigError when the plan has none."""
        for item in self.forecasts:
            if item.quantity == quantity:
                return item
        known = ", ".join(item.quantity for item in self.forecasts)
        raise ConfigError(f"this plan has no forecast of {quantity!r}", hint=f"it has {known}")

    def recipe(self) -> dict[str, Any]:
        """Return the settings an engine runs, as plain values that TOML and JSON hold."""
        return dict(self.choice)
