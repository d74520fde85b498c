"""Energy, carbon and money of answers, by kind: from a row's servers up to the grid."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.energy import J_PER_KWH
from steelyard.errors import ConfigError
from steelyard.sim.power import RowPlant
from steelyard.sim.power.kernel import settle
from steelyard.sim.power.state import IDLE

__all__ = ["KindAccount", "RowMeters", "account_kinds", "row_meters"]

Array = NDArray[np.float64]
_BINS_PER_HOUR = 4


@dataclass(frozen=True, slots=True)
class RowMeters:
    """Where the energy of a row went.

    Attributes:
        kinds: names of services or clients.
        spent_j: energy of each kind, then of idle and of starting servers, by quarter of an hour,
            [bins, kinds + 2].
        request_j: energy of each request, [requests].
        meter_j: energy by the row's own meter.
    """

    kinds: tuple[str, ...]
    spent_j: Array
    request_j: Array
    meter_j: float

    @property
    def gaps(self) -> dict[str, float]:
        """Relative gaps between levels: requests and rest to the meter, quarters to the meter."""
        rest_j = self.spent_j[:, IDLE:].sum()
        return {
            "requests to row": float(abs((self.request_j.sum() + rest_j) / self.meter_j - 1)),
            "quarters to row": float(abs(self.spent_j.sum() / self.meter_j - 1)),
        }


def row_meters(plant: RowPlant, kinds: Sequence[str]) -> RowMeters:
    """Return where the energy of a row went up to its present.

    Args:
        plant: the row.
        kinds: name of each kind of its requests.

    Returns:
        The meters.

    Raises:
        ConfigError: another number of names than kinds.
    """
    settle(plant.tables, plant.state)
    state = plant.state
    if state.spent_j.shape[1] > len(kinds) + 2:
        raise ConfigError(
            f"{len(kinds)} names for {state.spent_j.shape[1] - 2} kinds of requests",
            hint="name each kind",
        )
    spent = np.zeros((len(state.spent_j), len(kinds) + 2))
    # A kind that no request is of has no column.
    spent[:, : state.spent_j.shape[1] - 2] = state.spent_j[:, :IDLE]
    spent[:, IDLE:] = state.spent_j[:, IDLE:]
    return RowMeters(tuple(kinds), spent, state.request_j.copy(), float(state.totals[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class KindAccount:
    """What the answers of one kind took.

    Attributes:
        kind: name of the service or client.
        requests: requests that were worked on.
        finished: answers that were finished.
        output_tokens: tokens of these.
        row_j: energy of its requests on the servers.
        row_j_p50: median of a finished answer's.
        row_j_p90: 90th percentile.
        grid_j: energy bought for it: its own, and its share of idle and starting servers, each with
            the cooling of that quarter of an hour.
        carbon_g: carbon of that energy.
        usd: its price.
        carbon_g_by_hour: carbon of its own energy in each hour, [hours].
    """

    kind: str
    requests: int
    finished: int
    output_tokens: int
    row_j: float
    row_j_p50: float
    row_j_p90: float
    grid_j: float
    carbon_g: float
    usd: float
    carbon_g_by_hour: Array

    @property
    def j_per_answer(self) -> float:
        """Energy bought for a finished answer, NaN without any."""
        return self.grid_j / self.finished if self.finished else float("nan")

    @property
    def j_per_token(self) -> float:
        """Energy bought for a generated token, NaN without any."""
        return self.grid_j / self.output_tokens if self.output_tokens else float("nan")

    @property
    def g_per_answer(self) -> float:
        """Carbon of a finished answer, NaN without any."""
        return self.carbon_g / self.finished if self.finished else float("nan")


def account_kinds(
    plant: RowPlant, meters: RowMeters, pue: Array, carbon_g_per_kwh: Array, usd_per_kwh: float
) -> list[KindAccount]:
    """Account for the energy of a row by kind.

    What no request caused, servers that idle and start, is divided among kinds in proportion to
    their own energy over the whole time.

    Args:
        plant: the row.
        meters: where its energy went.
        pue: energy bought over that of the row, [bins].
        carbon_g_per_kwh: carbon intensity of the grid, [bins].
        usd_per_kwh: price.

    Returns:
        One account per kind; sums over kinds are those of the row and of the grid. Where no request
        was worked on, nobody pays for idle servers.
    """
    bought = meters.spent_j * pue[:, None]
    grams = bought / J_PER_KWH * carbon_g_per_kwh[:, None]
    own = meters.spent_j[:, :IDLE].sum(axis=0)
    share = own / own.sum() if own.sum() else own
    grid_j = bought[:, :IDLE].sum(axis=0) + share * bought[:, IDLE:].sum()
    carbon_g = grams[:, :IDLE].sum(axis=0) + share * grams[:, IDLE:].sum()
    hours = np.add.reduceat(grams, np.arange(0, len(grams), _BINS_PER_HOUR))
    found = []
    for place, kind in enumerate(meters.kinds):
        of = plant.requests.kind == place
        is_done = of & np.isfinite(plant.state.finish_s)
        joules = meters.request_j[is_done]
        middle, high = np.quantile(joules, [0.5, 0.9]) if len(joules) else (np.nan, np.nan)
        found.append(
            KindAccount(
                kind=kind,
                requests=int((meters.request_j[of] > 0).sum()),
                finished=int(is_done.sum()),
                output_tokens=int(plant.requests.output_tokens[is_done].sum()),
                row_j=float(own[place]),
                row_j_p50=float(middle),
                row_j_p90=float(high),
                grid_j=float(grid_j[place]),
                carbon_g=float(carbon_g[place]),
                usd=float(grid_j[place]) / J_PER_KWH * usd_per_kwh,
                carbon_g_by_hour=hours[:, place],
            )
        )
    return found
