"""An instance of a service: its replicas with the room that their memory leaves for requests."""

from dataclasses import dataclass
from typing import Any

from steelyard.errors import require
from steelyard.plan.service.options import EngineOption
from steelyard.sim.fleet.instance import ReplicaGroup, ReplicaRole

__all__ = ["Arranger", "FleetInstance", "ServiceLimits"]

_WHOLE_TOKENS = 2048
"""Tokens of prompts that run together where they are not divided, as servers set it by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceLimits:
    """How engines work, and what joins them.

    Attributes:
        per_node: accelerators of a node.
        nodes: nodes over which one instance may spread.
        max_devices: most accelerators of an instance; 0 for those of its nodes.
        prefill_budget: tokens up to which prompts run together where a replica only runs prompts.
        token_budget: most tokens of a step where prompts are divided.
        max_num_seqs: most sequences of a micro-batch.
        block_size: token slots per block.
        node_transfer_s_per_token: seconds in which keys and values of a token pass within a node.
        network_transfer_s_per_token: the same between nodes; infinity keeps phases together.
        transfer_latency_s: seconds before they begin to.
    """

    per_node: int = 8
    nodes: int = 1
    max_devices: int = 0
    prefill_budget: int = 512
    token_budget: int = 512
    max_num_seqs: int = 256
    block_size: int = 16
    node_transfer_s_per_token: float = 0.0
    network_transfer_s_per_token: float = float("inf")
    transfer_latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse counts below 1."""
        names = ("per_node", "nodes", "prefill_budget", "token_budget", "max_num_seqs")
        require(self, **{name: (getattr(self, name) >= 1, "at least 1") for name in names})

    @property
    def most_devices(self) -> int:
        """Most accelerators of an instance."""
        return self.max_devices or self.per_node * self.nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetInstance:
    """An instance: what is repeated until the load is carried.

    Attributes:
        kind: "colocated, chunked prompts", "colocated, whole prompts", "apart in one node" or
            "apart over the network".
        options: split of each group, that of the prompts first.
        groups: the same as the simulator takes them.
    """

    kind: str
    options: tuple[EngineOption, ...]
    groups: tuple[ReplicaGroup, ...]

    @property
    def relative_spread(self) -> float:
        """Relative error that is expected of its steps: that of the least certain group."""
        return max(option.step_time.relative_spread for option in self.options)

    @property
    def num_devices(self) -> int:
        """Accelerators of the instance."""
        pairs = zip(self.options, self.groups, strict=True)
        return sum(option.num_devices * group.count for option, group in pairs)

    @property
    def words(self) -> str:
        """Such as "prefill TP 2 + decode 2 x TP 1"."""
        names = ("",) if len(self.groups) == 1 else ("prefill ", "decode ")
        parts = [
            f"{name}{f'{group.count} x ' if group.count > 1 else ''}{option.words}"
            for name, option, group in zip(names, self.options, self.groups, strict=True)
        ]
        return " + ".join(parts)


@dataclass(frozen=True, slots=True)
class Arranger:
    """Makes instances of splits.

    Attributes:
        limits: how engines work, and what joins them.
        longest: tokens of the longest request, prompt and output.
    """

    limits: ServiceLimits
    longest: int

    def budget(self, role: ReplicaRole, *, whole: bool = False) -> int:
        """Return the most tokens of a step of a role, but for a prompt that is longer alone."""
        limits = self.limits
        if role == "prefill":
            return limits.prefill_budget
        if role == "decode":
            return max(limits.token_budget, limits.max_num_seqs)
        return max(limits.token_budget, _WHOLE_TOKENS) if whole else limits.token_budget

    def step_tokens(self, role: ReplicaRole, *, whole: bool = False) -> int:
        """Return the tokens of the largest step of a role, which memory has to be left for."""
        # A request that was preempted runs again undivided, with the output that it had.
        is_whole = role == "prefill" or (whole and role == "both")
        return max(self.budget(role, whole=whole), self.longest if is_whole else 0)

    def room(self, option: EngineOption, role: ReplicaRole, *, whole: bool) -> int:
        """Return the tokens, in whole blocks, that each micro-batch of a replica holds."""
        lanes = 1 if role == "prefill" else option.pipeline
        size = self.limits.block_size
        return option.room(self.step_tokens(role, whole=whole)) // lanes // size * size

    def takes(self, option: EngineOption, role: ReplicaRole, *, whole: bool = False) -> bool:
        """Return whether each micro-batch has room for the longest request."""
        return self.room(option, role, whole=whole) >= self.longest

    def colocated(self, option: EngineOption, *, whole: bool) -> FleetInstance:
        """Return replicas that do both, with prompts whole or in chunks."""
        group = self.group(option, role="both", whole_prompts=whole)
        kind = f"colocated, {'whole' if whole else 'chunked'} prompts"
        return FleetInstance(kind=kind, options=(option,), groups=(group,))

    def apart(
        self, prefill: EngineOption, decode: EngineOption, *, counts: tuple[int, int] = (1, 1)
    ) -> FleetInstance:
        """Return replicas for prompts and others that decode; several of one go over the network.

        Args:
            prefill: split of those for prompts.
            decode: split of those that decode.
            counts: replicas of each.

        Returns:
            The pair, or the fleet.
        """
        in_node = self.in_node(prefill, decode) and counts == (1, 1)
        limits = self.limits
        token_s = (
            limits.node_transfer_s_per_token if in_node else limits.network_transfer_s_per_token
        )
        groups = (
            self.group(prefill, role="prefill", count=counts[0]),
            self.group(decode, role="decode", count=counts[1], transfer_s_per_token=token_s),
        )
        kind = "apart in one node" if in_node else "apart over the network"
        return FleetInstance(kind=kind, options=(prefill, decode), groups=groups)

    def in_node(self, prefill: EngineOption, decode: EngineOption) -> bool:
        """Return whether each stage of both phases finds room in one node with its counterpart."""
        devices = prefill.num_devices + decode.num_devices
        return devices <= self.limits.most_devices and any(
            prefill.pipeline % nodes == decode.pipeline % nodes == 0
            and devices // nodes <= self.limits.per_node
            for nodes in range(1, self.limits.nodes + 1)
        )

    def group(
        self, option: EngineOption, *, role: ReplicaRole, whole_prompts: bool = False, **given: Any
    ) -> ReplicaGroup:
        """Return a group of replicas of a split.

        Args:
            option: the split.
            role: what they do.
            whole_prompts: whether prompts run undivided; always where they only run prompts.
            **given: further fields of the group, before those that follow from its role.

        Returns:
            The group, with as many blocks as its memory leaves.
        """
        limits = self.limits
        whole = whole_prompts
        budgets = {
            "prefill": {"token_budget": limits.prefill_budget, "whole_prompts": True},
            "decode": {"token_budget": self.budget(role)},
            "both": {"token_budget": self.budget(role, whole=whole), "whole_prompts": whole},
        }
        settings: dict[str, Any] = {
            "step_time": option.step_time,
            "role": role,
            "blocks": self.room(option, role, whole=whole) // limits.block_size,
            "stages": option.pipeline,
            "block_size": limits.block_size,
            "transfer_latency_s": limits.transfer_latency_s,
            **budgets[role],
            **given,
        }
        most = min(limits.max_num_seqs, settings["token_budget"])
        return ReplicaGroup(max_num_seqs=most, **settings)
