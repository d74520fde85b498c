"""The platform: regions, reserved pools, schedulers, start-ups by runtime, and its policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, TraceError, require
from steelyard.sim.serverless.policies import Delay, KeepAlive, PoolSizer, Prewarm, RegionChoice
from steelyard.sim.serverless.startup import EmpiricalQuantiles, StartUp
from steelyard.sim.serverless.workload import Workload

__all__ = ["Platform", "Pool", "Schedulers"]


@dataclass(frozen=True)
class Pool:
    """Pods of one size class that wait in each region, started but without code.

    Attributes:
        size_class: size class that functions name.
        sizer: how many wait.
        refill_s: time to bring in a pod in place of one taken.
    """

    size_class: str
    sizer: PoolSizer
    refill_s: float = 10.2

    def __post_init__(self) -> None:
        require(self, refill_s=(self.refill_s > 0, "above 0"))


@dataclass(frozen=True)
class Schedulers:
    """Starts of a region queue for so many schedulers, each busy for a fixed time.

    Attributes:
        count: schedulers of a region.
        service_s: time that one is busy with a start; waiting adds to the part `part`.
        part: name of that part.
    """

    count: int
    service_s: float
    part: str = "scheduling"

    def __post_init__(self) -> None:
        require(
            self,
            count=(self.count >= 1, "at least 1"),
            service_s=(self.service_s >= 0, "0 or more"),
        )


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A serverless platform with its policies.

    Attributes:
        start_ups: parts of a start by runtime; all have the same parts.
        keep_alive: how long idle pods stay.
        regions: names.
        rtt_s: round trip between regions [R, R], seconds; 0 when left out.
        clusters: clusters of a region, over which each pool is spread.
        pools: reserved pods; without any, the drawn allocation stands.
        pool_part: part of a start that a pool replaces.
        stages: time to take a pod from the own cluster's pool, from another's, and from none.
        schedulers: where starts queue; None for nowhere.
        prewarm: who orders pods ahead, asked in this order.
        placement: where pods start; None for the function's home.
        delay: who may wait; None for nobody.
        step_s: time between decisions on pools and placement.

    Source: Joosen et al. 2025 (arXiv 2410.06145), section 2.
    """

    start_ups: Mapping[str, StartUp]
    keep_alive: KeepAlive
    regions: tuple[str, ...] = ("home",)
    rtt_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    clusters: int = 4
    pools: tuple[Pool, ...] = ()
    pool_part: str = "pod_allocation"
    stages: tuple[EmpiricalQuantiles, ...] = ()
    schedulers: Schedulers | None = None
    prewarm: tuple[Prewarm, ...] = ()
    placement: RegionChoice | None = None
    delay: Delay | None = None
    step_s: float = 600.0

    def __post_init__(self) -> None:
        count = len(self.regions)
        # An empty table stands for "not given": its size depends on the regions.
        if not self.rtt_s.size:
            object.__setattr__(self, "rtt_s", np.zeros((count, count)))
        names = self.part_names
        require(
            self,
            start_ups=(
                all(tuple(item.parts) == names for item in self.start_ups.values()),
                "runtimes with the same parts in the same order",
            ),
            regions=(count >= 1, "at least one"),
            rtt_s=(self.rtt_s.shape == (count, count), f"[{count}, {count}]"),
            clusters=(self.clusters >= 1, "at least 1"),
            stages=(
                len(self.stages) == (3 if self.pools else len(self.stages)),
                "three times where there are pools: own cluster, other cluster, none",
            ),
            pool_part=(not self.pools or self.pool_part in names, f"one of {', '.join(names)}"),
            schedulers=(
                self.schedulers is None or self.schedulers.part in names,
                f"of a part among {', '.join(names)}",
            ),
            step_s=(self.step_s > 0, "above 0"),
        )

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts of a start."""
        return tuple(next(iter(self.start_ups.values())).parts) if self.start_ups else ()

    def with_policies(self, **changes: object) -> "Platform":
        """Return this platform with other policies, such as `keep_alive=...`."""
        return replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def check(self, workload: Workload) -> None:
        """Refuse a workload that names what is not here.

        Args:
            workload: whose functions are looked up.

        Raises:
            TraceError: a size class has no pool while pools are kept.
            ConfigError: a runtime or a region is unknown.
        """
        sizes = [pool.size_class for pool in self.pools]
        for item in workload.functions:
            if item.runtime not in self.start_ups:
                raise ConfigError(
                    f"function {item.name!r} has runtime {item.runtime!r}, but start-ups are known "
                    f"of {', '.join(self.start_ups)}"
                )
            if item.home and item.home not in self.regions:
                raise ConfigError(
                    f"function {item.name!r} lives in {item.home!r}, but regions are "
                    f"{', '.join(self.regions)}"
                )
            # A user's own image never starts in a reserved pod.
            is_pooled = self.start_ups[item.runtime].is_pooled
            if sizes and is_pooled and item.size_class not in sizes:
                raise TraceError(
                    f"function {item.name!r} has size class {item.size_class!r}, but pools are "
                    f"{', '.join(sizes)}",
                    hint="add a pool of that class, or correct the function",
                )
