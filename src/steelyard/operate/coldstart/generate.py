"""Workloads made to the published shares: timers, callers, bursts of events, and workflows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require
from steelyard.operate.coldstart.profile import DemandProfile
from steelyard.sim.serverless.published import published_mix
from steelyard.sim.serverless.workload import CloudFunction, Workload

__all__ = ["WorkloadGenerator"]

_DAY_S, _KEEP_S = 86_400.0, 60.0
_PERIODS_S = np.array([60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 86_400.0])
_PERIOD_SHARES = np.array([0.15, 0.08, 0.27, 0.15, 0.12, 0.15, 0.08])
_SIZES = ("300-128", "400-256", "600-512", "1000-1024")
_SIZE_SHARES = np.array([0.35, 0.25, 0.15, 0.25])
_WORKFLOW = 3
"""Functions of a workflow: the first calls the second and the third, or each the next."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class WorkloadGenerator:
    """Draws functions and their requests.

    Each pair of trigger and runtime has so many functions, called at such rates, that it causes its
    published share of the cold starts under a keep-alive of 60 s. Rates within a pair follow Zipf's
    law. What is assumed and not published: periods of timers and when they
    begin, durations, sizes and bursts.

    Attributes:
        cold_starts_per_day: cold starts to aim at; a week's simulation says how well that is met.
        days: length.
        profile: demand over time.
        mix: shares of cold starts by trigger and runtime; those of the published region when empty.
        rate_factors: factor on the cold starts aimed at, by trigger.
        zipf: exponent of the rates.
        aligned: fraction of timers that fire at whole multiples of their period, as cron does; the
            others begin at any time.
        burst: mean requests of one event of the storage or queue triggers (OBS-A, other-A).
        slots: requests that a pod serves at a time.
        regions: homes; functions are spread evenly.
    """

    cold_starts_per_day: float = 3000.0
    days: float = 7.0
    profile: DemandProfile = field(default_factory=DemandProfile)
    mix: Mapping[tuple[str, str], float] = field(default_factory=dict)
    rate_factors: Mapping[str, float] = field(default_factory=dict)
    zipf: float = 1.1
    aligned: float = 0.5
    burst: float = 3.0
    slots: int = 1
    regions: tuple[str, ...] = ("home",)

    def __post_init__(self) -> None:
        require(
            self,
            cold_starts_per_day=(self.cold_starts_per_day > 0, "above 0"),
            days=(self.days > 0, "above 0"),
            zipf=(self.zipf > 0, "above 0"),
            aligned=(0 <= self.aligned <= 1, "in [0, 1]"),
            burst=(self.burst >= 1, "at least 1"),
            slots=(self.slots >= 1, "at least 1"),
            regions=(bool(self.regions), "at least one"),
        )

    def make(self, seed: int) -> Workload:
        """Draw a workload.

        Args:
            seed: seed of all draws.

        Returns:
            Requests over `days`, sorted.
        """
        rng = np.random.default_rng(seed)
        functions: list[CloudFunction] = []
        rates: list[float] = []
        for (trigger, runtime), share in (self.mix or published_mix()).items():
            factor = self.rate_factors.get(trigger, 1.0)
            aimed = share * self.cold_starts_per_day * factor
            made, rate = self._cell(trigger, runtime, aimed, len(functions), rng)
            functions += made
            rates += rate
        medians_s = np.exp(rng.normal(np.log(0.5), 1.0, len(functions)))
        return self._requests(functions, np.array(rates), medians_s, rng)

    def _cell(
        self, trigger: str, runtime: str, aimed: float, first: int, rng: np.random.Generator
    ) -> tuple[list[CloudFunction], list[float]]:
        """Return the functions of a trigger and runtime, and their events per second."""
        is_timer, is_flow = trigger.startswith("TIMER"), trigger.startswith("workflow")
        # A caller's function at its best rate has 530 cold starts a day; 40 leave room for Zipf.
        count = max(round(aimed / 40.0), 1)
        if is_flow:
            count = -(-count // _WORKFLOW) * _WORKFLOW
        periods = _periods(aimed, rng) if is_timer else np.zeros(count)
        count = len(periods)
        sizes = rng.choice(len(_SIZES), count, p=_SIZE_SHARES)
        functions = [
            CloudFunction(
                name=f"{trigger}/{runtime}/{row}",
                runtime=runtime,
                size_class=_SIZES[sizes[row]],
                trigger=trigger,
                slots=self.slots,
                period_s=float(periods[row]),
                home=self.regions[(first + row) % len(self.regions)],
                children=_children(row, first) if is_flow else (),
            )
            for row in range(count)
        ]
        if is_timer:
            return functions, [0.0] * count
        is_burst = trigger in ("OBS-A", "other-A")
        per_event = self.burst if is_burst else _WORKFLOW if is_flow else 1.0
        heads = count // _WORKFLOW if is_flow else count
        rates = _rates(aimed / per_event, heads, self.zipf)
        if is_flow:
            spread = np.zeros(count)
            spread[::_WORKFLOW] = rates
            rates = spread
        return functions, rates.tolist()

    def _requests(
        self,
        functions: list[CloudFunction],
        rates: _Floats,
        medians_s: _Floats,
        rng: np.random.Generator,
    ) -> Workload:
        """Draw arrivals of each function and what they cause."""
        horizon_s = self.days * _DAY_S
        times: list[_Floats] = [np.zeros(0)] * len(functions)
        durations: list[_Floats] = [np.zeros(0)] * len(functions)
        for at, item in enumerate(functions):
            if item.period_s:
                is_aligned = rng.random() < self.aligned
                begin_s = item.period_s if is_aligned else rng.uniform(0, item.period_s)
                times[at] = np.arange(begin_s, horizon_s, item.period_s)
            elif rates[at]:
                times[at] = self._arrivals(rates[at], item.trigger, horizon_s, rng)
            # Children stand behind their parent, so their arrivals are there by now.
            durations[at] = medians_s[at] * np.exp(rng.normal(0, 0.5, len(times[at])))
            for child in item.children:
                times[child] = times[at] + durations[at] + 0.02
        function = np.repeat(np.arange(len(functions)), [len(row) for row in times])
        time_s, duration_s = np.concatenate(times), np.concatenate(durations)
        order = np.argsort(time_s, kind="stable")
        order = order[time_s[order] <= horizon_s]
        return Workload(functions, time_s[order], function[order], duration_s[order], horizon_s)

    def _arrivals(
        self, rate: float, trigger: str, horizon_s: float, rng: np.random.Generator
    ) -> _Floats:
        """Draw a non-homogeneous Poisson process by thinning; bursts where events come so."""
        most = rate * self.profile.most
        drawn = np.sort(rng.uniform(0, horizon_s, rng.poisson(most * horizon_s)))
        kept = drawn[rng.uniform(0, self.profile.most, len(drawn)) < self.profile.at(drawn)]
        if trigger in ("OBS-A", "other-A") and self.burst > 1:
            kept = np.repeat(kept, rng.geometric(1 / self.burst, len(kept)))
            kept = np.sort(kept + rng.exponential(1.0, len(kept)))
        return kept


def _children(row: int, first: int) -> tuple[int, ...]:
    """Return whom a workflow's function calls: every other one is a chain, the rest fan out."""
    flow, place = divmod(row, _WORKFLOW)
    begin = first + flow * _WORKFLOW
    if flow % 2:
        return (begin + place + 1,) if place + 1 < _WORKFLOW else ()
    return tuple(range(begin + 1, begin + _WORKFLOW)) if not place else ()


def _periods(aimed: float, rng: np.random.Generator) -> _Floats:
    """Draw timers until their firings of more than a minute apart are as many a day as aimed at."""
    firings = np.where(_PERIODS_S > _KEEP_S, _DAY_S / _PERIODS_S, 0.0)
    found, rest = [], aimed
    while rest > 0.05 * aimed or not found:
        # In a small cell one frequent timer would be several times what is left.
        fits = (firings > 0) & (firings <= max(1.2 * rest, 1.0))
        shares = np.where(fits, _PERIOD_SHARES, 0.0)
        at = rng.choice(len(shares), p=shares / shares.sum())
        found.append(_PERIODS_S[at])
        rest -= firings[at]
    # Timers that keep their pod cause no cold starts, so no count of these bounds them: they are as
    # many per cold start as in a large cell, which makes them rare in a small one.
    kept = _PERIODS_S[firings == 0]
    per_start = _PERIOD_SHARES[firings == 0] / float(_PERIOD_SHARES @ firings)
    return np.append(found, np.repeat(kept, rng.poisson(aimed * per_start)))


def _rates(events_per_day: float, count: int, zipf: float, keep_s: float = _KEEP_S) -> _Floats:
    """Return Zipf rates, 1/s, whose calls come so often after more than the keep-alive.

    A Poisson process of rate r has r exp(-60 r) such calls per second; the smaller of two scales
    with the sum that is asked for is taken, or the scale of the largest sum.
    """
    weights = np.arange(1, count + 1) ** -zipf
    scales = np.geomspace(1e-9, 1.0, 400)[:, None]
    sums = (scales * weights * np.exp(-keep_s * scales * weights)).sum(axis=1) * _DAY_S
    top = int(np.argmax(sums))
    scale = np.interp(events_per_day, sums[: top + 1], scales[: top + 1, 0])
    return scale * weights
