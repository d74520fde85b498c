"""What a plan needs to know of a scaling law: size, tokens and loss."""

from typing import Any, Protocol

__all__ = ["AllocationLike", "interval"]


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
    if hasattr(value, "value"):
        return float(value.value), float(value.low), float(value.high)
    return float(value), float(value), float(value)
