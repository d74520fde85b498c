"""Forecasts of builds beside what was measured, and the ledger that learns from them."""

from collections.abc import Sequence
from typing import Any

from steelyard.errors import StoreError
from steelyard.quantity import Check, Forecast, check
from steelyard.retrieve.forecasts import FORECASTER, BuildFigures
from steelyard.runs.ledger import Ledger
from steelyard.runs.store import RunStore

__all__ = ["check_values", "checked", "keep_checks", "past_checks"]


def past_checks(forecaster: str = FORECASTER) -> list[Check]:
    """Return how earlier forecasts of builds came out on this machine, oldest first.

    Args:
        forecaster: name in the ledger.

    Returns:
        The checks; none where there is no ledger yet.
    """
    try:
        return [item for _, item in Ledger(RunStore.existing()).checks(forecaster)]
    except StoreError:
        return []


def checked(said: Sequence[Forecast], measured: BuildFigures | None) -> list[Check]:
    """Pair forecasts with what was measured.

    Args:
        said: the forecasts.
        measured: the figures after the build; None where nothing was measured.

    Returns:
        One check per quantity that has both.
    """
    return check(list(said), measured.measurements()) if measured else []


def keep_checks(checks: list[Check], forecaster: str = FORECASTER) -> None:
    """Write checks into the user's ledger.

    Args:
        checks: forecasts beside what was measured.
        forecaster: name in the ledger.
    """
    if checks:
        Ledger(RunStore()).record(forecaster, checks)


def check_values(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return checks as plain values, for programs."""
    return [
        {
            "quantity": item.forecast.quantity,
            "forecast": item.forecast.value,
            "low": item.forecast.low,
            "high": item.forecast.high,
            "measured": item.measurement.value,
        }
        for item in checks
    ]
