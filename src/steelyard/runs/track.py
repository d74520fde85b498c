"""How good a forecaster has been on this machine so far, read from the user's own ledger."""

import contextlib
import math
import sqlite3

from steelyard.files import user_dir

__all__ = ["track_record"]

_SHARE = 0.9
_QUERY = "SELECT quantity, value, measured FROM checks WHERE forecaster = ? AND machine = ?"


def track_record(forecaster: str) -> dict[str, str]:
    """Sum up how near a forecaster has come to what was measured on this machine.

    The store's own reader loads libraries that take longer than most answers, and makes tables
    where there are none; this one reads a file that is there and leaves everything as it was.

    Args:
        forecaster: name in the ledger, such as "cost.training_step".

    Returns:
        By quantity, such as "within 12 % in 9 of 10 so far"; empty without a record.
    """
    place = user_dir() / "runs" / "runs.sqlite"
    if not place.is_file():
        return {}
    errors: dict[str, list[float]] = {}
    # A ledger that is locked, damaged or of another version is no reason to withhold an answer.
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(
            sqlite3.connect(f"{place.resolve().as_uri()}?mode=ro", uri=True, timeout=0.1)
        ) as connection,
    ):
        for quantity, value, measured in connection.execute(_QUERY, (forecaster, "this-machine")):
            if measured:
                errors.setdefault(quantity, []).append(abs(value / measured - 1))
    return {quantity: _words(sorted(found)) for quantity, found in errors.items()}


def _words(errors: list[float]) -> str:
    """Say within what nine tenths of the errors lie."""
    count = math.ceil(_SHARE * len(errors))
    return f"within {100 * errors[count - 1]:.2g} % in {count} of {len(errors)} so far"
