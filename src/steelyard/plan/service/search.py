"""Which phases share machines and how each is split: the placements with the best goodput."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from steelyard.errors import CapacityError, InfeasibleError
from steelyard.plan.service.arrangement import Arranger, FleetInstance, ServiceLimits
from steelyard.plan.service.goodput import Attained, Goodput, attained, capacity, goodput, unloaded
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.options import EngineOption
from steelyard.serve.client.summary import Slo
from steelyard.sim.fleet.instance import ReplicaRole
from steelyard.units import pretty

__all__ = [
    "FleetInstance",
    "ServiceCandidate",
    "ServiceLimits",
    "ServiceSearch",
]

PHASE_ROLES: tuple[ReplicaRole, ...] = ("prefill", "decode")
_SLACK = 1.05
"""A pair may carry a little more than its decoding half alone, as prompts come to it evened out."""
_WIDE_SLACK = 1.25
"""The end of a run, when fewer and fewer requests are left, makes a replica look slower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceCandidate:
    """An arrangement with what it carries.

    Attributes:
        arrangement: the instance.
        goodput: highest rate of the instance; None where a bound already said that it loses.
        bound_per_s: highest rate that it could have.
        reason: why it is not the first; empty for the first.
    """

    arrangement: FleetInstance
    goodput: Goodput | None
    bound_per_s: float = float("inf")
    reason: str = ""

    @property
    def per_device(self) -> float:
        """Requests per second and accelerator; its bound where it was not simulated."""
        rate = self.goodput.rate_per_s if self.goodput else self.bound_per_s
        return rate / self.arrangement.num_devices


@dataclass(frozen=True, kw_only=True)
class ServiceSearch:
    """The search for one load and its limits.

    Attributes:
        load: requests.
        slo: limits of the first and of further tokens.
        share: share of the requests that has to keep both.
        options: splits of the model.
        limits: how engines work, and what joins them.
        progress: told of each arrangement that was simulated.
        drift: how far steps move from their measurement to the service, beside their own spread.

    Source: Zhong et al. 2024 (arXiv 2401.09670), algorithms 1 and 2.
    """

    load: ServiceLoad
    slo: Slo
    share: float
    options: tuple[EngineOption, ...]
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    progress: Callable[[str], None] = lambda _: None
    drift: float = 0.0

    @cached_property
    def usable(self) -> list[EngineOption]:
        """Splits that hold the longest request in each of their micro-batches."""
        return [item for item in self.options if self._lacks(item) == ""]

    def lacking(self) -> list[tuple[EngineOption, str]]:
        """Return the splits that do not, with what they lack."""
        return [(item, why) for item in self.options if (why := self._lacks(item))]

    @property
    def arranger(self) -> Arranger:
        """Makes instances for this load."""
        return Arranger(self.limits, self.load.longest)

    def colocated(self, option: EngineOption, *, whole: bool) -> FleetInstance:
        """Return replicas that do both, as `Arranger.colocated`."""
        return self.arranger.colocated(option, whole=whole)

    def apart(
        self, prefill: EngineOption, decode: EngineOption, *, counts: tuple[int, int] = (1, 1)
    ) -> FleetInstance:
        """Return replicas for prompts and others that decode, as `Arranger.apart`."""
        return self.arranger.apart(prefill, decode, counts=counts)

    def takes(self, option: EngineOption, role: ReplicaRole, *, whole: bool = False) -> bool:
        """Return whether replicas of a split have room for the longest request."""
        return self.arranger.takes(option, role, whole=whole)

    def _lacks(self, option: EngineOption) -> str:
        """Say what a split lacks to serve the longest request in chunks, empty for nothing."""
        if option.num_devices > self.limits.most_devices:
            return f"takes {option.num_devices} of {self.limits.most_devices} accelerators"
        if option.reason:
            return option.reason
        tokens = self.arranger.room(option, "both", whole=False)
        if tokens >= self.load.longest:
            return ""
        return (
            f"holds keys and values of {tokens:,} tokens in each of {option.pipeline} "
            f"micro-batches, but the longest request has {self.load.longest:,}"
        )

    def carried(self, arrangement: FleetInstance) -> Goodput:
        """Return what an arrangement carries."""
        self.progress(f"{arrangement.kind}: {arrangement.words}")
        return goodput(arrangement.groups, self.load, self.slo, self.share)

    def relative(self, arrangement: FleetInstance) -> float:
        """Return the 80 % half-width of an arrangement's step times, relative."""
        return math.hypot(arrangement.relative_spread, self.drift)

    def curve(self, arrangement: FleetInstance, rates_per_s: Iterable[float]) -> list[Attained]:
        """Return what becomes of the requests at several rates."""
        return [
            attained(arrangement.groups, self.load, rate, self.slo, self.share)
            for rate in rates_per_s
        ]

    def alone(self, option: EngineOption, role: ReplicaRole) -> Goodput:
        """Return what a replica of one phase carries: its own limit is all that counts."""
        group = self.arranger.group(option, role=role)
        slo = Slo(ttft_s=self.slo.ttft_s) if role == "prefill" else Slo(tpot_s=self.slo.tpot_s)
        return goodput((group,), self.load, slo, self.share)

    @cached_property
    def phases(self) -> dict[str, list[tuple[EngineOption, Goodput]]]:
        """What replicas of each split carry of each phase alone, by "prefill" and "decode"."""
        found: dict[str, list[tuple[EngineOption, Goodput]]] = {}
        for role in PHASE_ROLES:
            taken = [item for item in self.usable if self.takes(item, role)]
            found[role] = [(item, self.alone(item, role)) for item in taken]
        return found

    def search_colocated(self) -> list[ServiceCandidate]:
        """Try every split for replicas that do both, with chunked and with whole prompts.

        What a replica gets through when all requests wait bounds it, as in `search_in_node`.
        """
        bounded = []
        for option, whole in itertools.product(self.usable, (False, True)):
            if not self.takes(option, "both", whole=whole):
                continue
            made = self.colocated(option, whole=whole)
            bounded.append((_WIDE_SLACK * capacity(made.groups, self.load), made))
        return self._from_bounds(bounded)

    def _from_bounds(self, bounded: list[tuple[float, FleetInstance]]) -> list[ServiceCandidate]:
        """Simulate arrangements from the highest bound per accelerator until none can win."""
        bounded.sort(key=lambda item: -item[0] / item[1].num_devices)
        best, found = 0.0, []
        # From the highest bound down, so that the first simulations rule most others out.
        for bound, arrangement in bounded:
            is_open = bound / arrangement.num_devices > best
            made = ServiceCandidate(
                arrangement=arrangement,
                goodput=self.carried(arrangement) if is_open else None,
                bound_per_s=bound,
            )
            best = max(best, made.per_device if is_open else 0.0)
            found.append(made)
        return found

    def search_in_node(self) -> list[ServiceCandidate]:
        """Try pairs of splits whose stages share nodes, so that keys and values stay in a node.

        What each phase carries alone bounds a pair: pairs are simulated from the highest bound
        downward until none left can win.

        Returns:
            All pairs, those beyond the last one simulated with their bound only.
        """
        pairs = []
        for (prefill, first), (decode, second) in itertools.product(
            self.phases["prefill"], self.phases["decode"]
        ):
            bound = min(first.rate_per_s, _SLACK * second.rate_per_s)
            if bound > 0 and self.arranger.in_node(prefill, decode):
                pairs.append((bound, self.apart(prefill, decode)))
        return self._from_bounds(pairs)

    def search_apart(self, rate_per_s: float) -> list[ServiceCandidate]:
        """Take the best split of each phase by itself, and as many of each as a rate needs.

        Args:
            rate_per_s: requests per second of the service.

        Returns:
            The one fleet; empty where a phase breaks its limit even alone, or keys and values do
            not cross the network.
        """
        best = []
        for role in PHASE_ROLES:
            held = [item for item in self.phases[role] if item[1].rate_per_s > 0]
            if not held or self.limits.network_transfer_s_per_token == float("inf"):
                return []
            best.append(max(held, key=lambda item: item[1].rate_per_s / item[0].num_devices))
        counts = [-int(-rate_per_s // item[1].rate_per_s) for item in best]
        made = self.apart(best[0][0], best[1][0], counts=(counts[0], counts[1]))
        return [ServiceCandidate(arrangement=made, goodput=self.carried(made))]

    def run(self, rate_per_s: float) -> list[ServiceCandidate]:
        """Search all arrangements.

        Args:
            rate_per_s: requests per second of the service.

        Returns:
            Candidates, that with the most goodput per accelerator first; the others say why they
            are not.

        Raises:
            CapacityError: no split holds the model and the longest request.
            InfeasibleError: no arrangement keeps the limits; names what binds, and the best that
                can be reached.
        """
        if not self.usable:
            _, why = self.lacking()[-1]
            raise CapacityError(
                f"no split of the model serves these requests: {self.options[-1].words} {why}",
                hint="allow more accelerators, or leave longer requests out",
            )
        found = self.search_colocated() + self.search_in_node() + self.search_apart(rate_per_s)
        held = [item for item in found if item.goodput and item.goodput.rate_per_s > 0]
        if not held:
            raise self._infeasible()
        best = max(held, key=lambda item: item.per_device)
        rest = sorted((item for item in found if item is not best), key=lambda it: -it.per_device)
        return [best, *rest]

    def _infeasible(self) -> InfeasibleError:
        """Say which limit no arrangement keeps, and the best value of it that can be reached."""
        alone = [
            (item, unloaded(item.groups, self.load, self.slo, self.share))
            for option in self.usable
            for whole in (False, True)
            if self.takes(option, "both", whole=whole)
            for item in (self.colocated(option, whole=whole),)
        ]
        words = {"ttft": ("time to the first token", "s"), "tpot": ("time per token", "s")}
        for name, limit_s in (("ttft", self.slo.ttft_s), ("tpot", self.slo.tpot_s)):
            best, at = min(alone, key=lambda item: getattr(item[1], f"{name}_s"))
            reached_s = getattr(at, f"{name}_s")
            if reached_s > limit_s:
                what, unit = words[name]
                return InfeasibleError(
                    f"{name} of {pretty(limit_s, unit)} cannot be kept by {self.share:.0%} of the "
                    f"requests: the best {what} without any load is {pretty(reached_s, unit)}, on "
                    f"{best.words}",
                    hint=f"allow {pretty(reached_s, unit)}, or ask for a lower share",
                )
        best, at = max(alone, key=lambda item: item[1].both)
        return InfeasibleError(
            f"no arrangement keeps both limits for {self.share:.0%} of the requests: without any "
            f"load {best.words} does for {at.both:.1%}",
            hint="raise a limit, or ask for a lower share",
        )
