"""The ledger: how well each forecaster has done, over every forecast that was measured."""

import secrets
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs.database import CHECKS
from steelyard.runs.store import RunStore

__all__ = ["Ledger", "LedgerRow"]

_RENAMED = {"sim.serving": "serve.simulate"}
"""New names of forecasters that stored ledgers know by an old one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRow:
    """How one forecaster did on one quantity.

    Attributes:
        forecaster: name of the forecaster.
        quantity: name from `steelyard.quantity.QUANTITIES`.
        count: checked pairs.
        bias: mean of (forecast - measured) / |measured|; above 0 it forecasts too much.
        median_error: median of the absolute relative error.
        coverage: share of measured values inside the 80 % interval, 0 to 1; an honest forecaster's
            is near 0.8.
    """

    forecaster: str
    quantity: str
    count: int
    bias: float
    median_error: float
    coverage: float


class Ledger:
    """The store's book of checked forecasts."""

    def __init__(self, store: RunStore) -> None:
        """Open the ledger of a store.

        Args:
            store: an open run store.
        """
        self._database = store.database

    def record(
        self, forecaster: str, checks: list[Check], run_id: str | Sequence[str] = ""
    ) -> None:
        """Write checks down.

        Args:
            forecaster: who forecast, such as "laws.chinchilla".
            checks: pairs; a later pair of the same run, forecaster and quantity replaces the
                earlier one.
            run_id: full id of the run they belong to, or a key for each check; without one they
                are always added.
        """
        # A fresh owner never meets the unique key of an earlier pair, so nothing is replaced.
        owner = run_id or f"unnamed-{secrets.token_hex(8)}"
        owners = [owner] * len(checks) if isinstance(owner, str) else owner
        rows = [
            {
                "forecaster": forecaster,
                "run_id": own,
                "quantity": item.forecast.quantity,
                "value": float(item.forecast.value),
                "low": float(item.forecast.low),
                "high": float(item.forecast.high),
                "provenance": item.forecast.provenance,
                "source": item.forecast.source,
                "measured": float(item.measurement.value),
                "spread": float(item.measurement.spread),
                "count": int(item.measurement.count),
                "machine": item.measurement.machine,
                "time_s": item.measurement.time_s or time.time(),
                "pace_s": float(item.forecast.pace_s),
                "measured_pace_s": float(item.measurement.pace_s),
            }
            for item, own in zip(checks, owners, strict=True)
        ]
        with self._database.write() as connection:
            self._database.upsert(connection, CHECKS, ["forecaster", "run_id", "quantity"], rows)

    def checks(self, forecaster: str = "") -> list[tuple[str, Check]]:
        """Read the pairs back, oldest first.

        Args:
            forecaster: only its pairs; empty for all.

        Returns:
            (forecaster, check) each.
        """
        query = sa.select(CHECKS).order_by(CHECKS.c.row)
        if forecaster:
            names = [forecaster, *(old for old, new in _RENAMED.items() if new == forecaster)]
            query = query.where(CHECKS.c.forecaster.in_(names))
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        found = [(str(row["forecaster"]), _check(row)) for row in rows]
        return [(_RENAMED.get(name, name), item) for name, item in found]

    def summary(self) -> list[LedgerRow]:
        """Sum up per forecaster and quantity, in alphabetical order.

        A pair with an infinite relative error counts in the coverage only.
        """
        groups: dict[tuple[str, str], list[Check]] = defaultdict(list)
        for forecaster, item in self.checks():
            groups[forecaster, item.forecast.quantity].append(item)
        return [
            _row(forecaster, name, items) for (forecaster, name), items in sorted(groups.items())
        ]


def _check(row: sa.RowMapping) -> Check:
    """Make a check of a ledger row."""
    said = ("quantity", "value", "low", "high", "provenance", "source", "pace_s")
    came = ("quantity", "spread", "count", "machine", "time_s")
    measurement = Measurement(
        value=row["measured"],
        pace_s=row["measured_pace_s"],
        **{name: row[name] for name in came},
    )
    return Check(Forecast(**{name: row[name] for name in said}), measurement)


def _row(forecaster: str, name: str, items: list[Check]) -> LedgerRow:
    """Sum up the checks of one forecaster and quantity."""
    errors = [item.relative_error for item in items if abs(item.relative_error) != float("inf")]
    return LedgerRow(
        forecaster=forecaster,
        quantity=name,
        count=len(items),
        bias=statistics.fmean(errors) if errors else float("nan"),
        median_error=statistics.median(map(abs, errors)) if errors else float("nan"),
        coverage=sum(item.covered for item in items) / len(items),
    )
