"""What a simulated platform did: waits, starts with their parts, pod-seconds, utility."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.serverless.kernel import COLD, LATE, WARM
from steelyard.sim.serverless.platform import Platform
from steelyard.sim.serverless.workload import Workload

__all__ = ["ServerlessResult"]


@dataclass(frozen=True)
class ServerlessResult:
    """Columns by request and by pod, and sums.

    Attributes:
        seed: seed of the start-ups.
        horizon_s: end of the run, seconds.
        part_names: parts of a start.
        wait_s: seconds from arrival until the request ran [N]; NaN where it never did.
        status: [N]: 0 warm, 1 started a pod, 2 waited for a starting pod, 3 held back for a slot.
        function: whose pod, [pods].
        region: where it ran, [pods].
        is_ahead: started ahead of a request, [pods].
        is_late: started ahead, yet a request waited for it, [pods].
        stage: stage of the pools' search that found it [pods]: 0 own cluster, 1 another, 2 none,
            -1 without pools.
        start_s: when its start began, [pods].
        ready_s: when it could serve; after the horizon for the last ones.
        end_s: when it ended; infinite where the horizon came first.
        last_end_s: end of its last request, -1 for none.
        busy_s: time with at least one request, [pods].
        parts_s: parts of its start, [pods, P].
        peak_pods: most pods alive or starting at a time.
        pool_s: reserved pods over time, pod-seconds.
        num_events: events of the run.
    """

    seed: int
    horizon_s: float
    part_names: tuple[str, ...]
    wait_s: NDArray[np.float64]
    status: NDArray[np.int64]
    function: NDArray[np.int64]
    region: NDArray[np.int64]
    is_ahead: NDArray[np.bool_]
    is_late: NDArray[np.bool_]
    stage: NDArray[np.int64]
    start_s: NDArray[np.float64]
    ready_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    last_end_s: NDArray[np.float64]
    busy_s: NDArray[np.float64]
    parts_s: NDArray[np.float64]
    peak_pods: int
    pool_s: float
    num_events: int

    @classmethod
    def of_pods(
        cls,
        platform: Platform,
        workload: Workload,
        seed: int,
        pods: NDArray,
        parts_s: NDArray[np.float64],
        *,
        wait_s: NDArray[np.float64],
        status: NDArray[np.int64],
        peak_pods: int,
        pool_s: float,
        num_events: int,
    ) -> "ServerlessResult":
        """Make the result of a table of pods; those still busy are busy up to the horizon."""
        slots = np.array([item.slots for item in workload.functions], dtype=np.int64)
        function = pods["place"] // len(platform.regions)
        # What is busy at the horizon has not been added up by an end, and may have yet to begin.
        still = (pods["free"] < slots[function]) if len(function) else np.zeros(0, dtype=bool)
        open_s = np.where(still, np.maximum(workload.horizon_s - pods["since_s"], 0.0), 0.0)
        return cls(
            seed=seed,
            horizon_s=workload.horizon_s,
            part_names=platform.part_names,
            wait_s=wait_s,
            status=status,
            function=function,
            region=pods["place"] % len(platform.regions),
            is_ahead=pods["kind"] == 1,
            is_late=pods["is_late"] == 1,
            stage=pods["stage"].copy(),
            start_s=pods["start_s"].copy(),
            ready_s=pods["ready_s"].copy(),
            end_s=pods["end_s"].copy(),
            last_end_s=pods["last_end_s"].copy(),
            busy_s=pods["busy_s"] + open_s,
            parts_s=parts_s.copy(),
            peak_pods=peak_pods,
            pool_s=pool_s,
            num_events=num_events,
        )

    @property
    def is_cold(self) -> NDArray[np.bool_]:
        """Cold starts by pod: begun by a request, or ahead of one that came too early, [pods]."""
        return ~self.is_ahead | self.is_late

    @property
    def num_cold_starts(self) -> int:
        """Cold starts as `is_cold` counts them."""
        return int(self.is_cold.sum())

    @property
    def pod_s(self) -> float:
        """Time of all pods from the beginning of their start to their end, pod-seconds."""
        return float((np.minimum(self.end_s, self.horizon_s) - self.start_s).sum())

    @property
    def starting_s(self) -> float:
        """Part of `pod_s` in which pods started."""
        ends_s = np.minimum(np.minimum(self.ready_s, self.end_s), self.horizon_s)
        return float((ends_s - self.start_s).sum())

    @property
    def cold_wait_s(self) -> NDArray[np.float64]:
        """Waits of the requests that waited for a start, seconds."""
        return self.wait_s[(self.status == COLD) | (self.status == LATE)]

    def utility_ratios(self) -> NDArray[np.float64]:
        """Return useful lifetime over start-up time of each pod that ended.

        The useful lifetime goes from ready to the end of the last request. Pods alive at the
        horizon are censored and left out; a pod never asked has the ratio 0.

        Source: Joosen et al. 2025 (arXiv 2410.06145), section 4.5.
        """
        ended = np.isfinite(self.end_s)
        useful_s = np.maximum(self.last_end_s[ended] - self.ready_s[ended], 0.0)
        start_s = self.ready_s[ended] - self.start_s[ended]
        return useful_s / np.maximum(start_s, 1e-9)

    def summary(self) -> dict[str, float]:
        """Return the figures that policies are compared by, names with units."""
        served = self.wait_s[np.isfinite(self.wait_s)]
        ratios = self.utility_ratios()
        busy_s = float(self.busy_s.sum())
        return {
            "requests": float(len(self.wait_s)),
            "cold_starts": float(self.num_cold_starts),
            "starts_ahead": float(self.is_ahead.sum()),
            "starts_from_scratch": float((self.stage == 2).sum()),
            "warm_fraction": float((self.status == WARM).mean()) if len(self.status) else 0.0,
            "wait_sum_s": float(served.sum()),
            "wait_p99_s": float(np.quantile(served, 0.99)) if len(served) else 0.0,
            "pod_s": self.pod_s,
            "starting_s": self.starting_s,
            "busy_s": busy_s,
            "idle_s": max(self.pod_s - self.starting_s - busy_s, 0.0),
            "pool_s": self.pool_s,
            "peak_pods": float(self.peak_pods),
            "utility_p50": float(np.median(ratios)) if len(ratios) else 0.0,
        }
