"""A composition of experts on a node: where they lie, what a prompt waits for, how many nodes."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cost.efficiency import Efficiencies
from steelyard.cost.held import parameter_count
from steelyard.cost.roofline import Machine
from steelyard.cost.switching import ExpertNode, expert_run_s, nodes_for
from steelyard.errors import ConfigError
from steelyard.plan.machines import nodes_of
from steelyard.serve.experts import ExpertOrder, ExpertQueue, ExpertResidency, PendingPrompt
from steelyard.sim.experts import CompositionRun, run_composition

__all__ = ["CompositionLoad", "CompositionPlan", "expert_node", "plan_composition"]

_NODES = {
    # name: accelerator, devices, device bytes, host bytes, bytes per second of switches
    "SN40L": ("SN40L", 8, 512 * 2**30, 12 * 2**40, 1.0e12),
    "DGX-A100": ("A100-SXM4-80GB", 8, 640e9, 2e12, 32e9),
    "DGX-H100": ("H100-SXM5-80GB", 8, 640e9, 2e12, 64e9),
}
"""Nodes as the paper compares them: experts reach a DGX over one host link."""


def expert_node(name: str) -> ExpertNode:
    """Return a node by its name.

    Args:
        name: "SN40L", "DGX-A100" or "DGX-H100".

    Returns:
        The node. A dataflow chip's kernels have no launches between them, and its collectives run
        within them.

    Raises:
        ConfigError: the name is unknown.

    Source: Prabhakar et al. 2024 (SN40L, arXiv 2405.07518), sections 4 and 6; host memory of DGX
        nodes from their datasheets.
    """
    if name not in _NODES:
        raise ConfigError(f"no node {name!r}", hint=f"known nodes: {', '.join(_NODES)}")
    chip, devices, device_bytes, host_bytes, rate = _NODES[name]
    record = catalog.accelerator(chip)
    is_dataflow = record.kind == "rdu"
    efficiencies = Efficiencies.typical(record.peak_flops_per_s["bf16"])
    if is_dataflow:
        efficiencies = replace(efficiencies, launch_s=0.0)
    machine = Machine.from_accelerator(
        record, cluster=nodes_of(record, devices), efficiencies=efficiencies
    )
    return ExpertNode(
        name=name,
        machine=machine,
        devices=devices,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        switch_bytes_per_s=rate,
        disk_bytes_per_s=5e9,
        hidden_collectives=is_dataflow,
        resident_only=not is_dataflow,
    )


@dataclass(frozen=True, kw_only=True)
class CompositionLoad:
    """What is asked of a composition.

    Attributes:
        arch: architecture of every expert and of the router.
        shares: share of the prompts that each expert gets, [experts], summing to 1.
        prompt: tokens of a prompt.
        output: tokens of an answer.
        rate_per_s: prompts per second; 0 for one group after the other.
        group: prompts that arrive together, at least 1.
        num_prompts: prompts that are simulated.
    """

    arch: Architecture
    shares: NDArray[np.float64]
    prompt: int = 512
    output: int = 20
    rate_per_s: float = 0.0
    group: int = 1
    num_prompts: int = 2000

    def __post_init__(self) -> None:
        """Refuse loads that mean nothing."""
        sizes = (self.prompt, self.output, self.group, self.num_prompts, len(self.shares))
        if min(sizes) < 1 or self.rate_per_s < 0 or not np.isclose(self.shares.sum(), 1.0):
            raise ConfigError(
                f"prompts of {self.prompt} tokens, answers of {self.output}, groups of "
                f"{self.group} among {self.num_prompts}, {self.rate_per_s:g} per second: need at "
                f"least 1 of each, a rate of at least 0, and shares that sum to 1"
            )

    @property
    def expert_bytes(self) -> float:
        """Bytes of one expert's weights in 16 bits."""
        return 2.0 * sum(parameter_count(self.arch))

    def prompts(self, generator: np.random.Generator, spacing_s: float) -> list[PendingPrompt]:
        """Draw the prompts.

        Args:
            generator: source of experts and, at a rate, of Poisson arrivals.
            spacing_s: time between groups where there is no rate.

        Returns:
            Prompts by arrival.
        """
        count = self.num_prompts
        experts = generator.choice(len(self.shares), size=count, p=self.shares)
        groups = np.arange(count) // self.group
        if self.rate_per_s:
            gaps = generator.exponential(self.group / self.rate_per_s, size=groups[-1] + 1)
            arrival = np.cumsum(gaps)[groups]
        else:
            arrival = groups * spacing_s
        pairs = enumerate(zip(experts.tolist(), arrival.tolist(), strict=True))
        return [PendingPrompt(row, expert, at) for row, (expert, at) in pairs]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompositionPlan:
    """How a node serves a composition.

    Attributes:
        node: the node.
        nodes: nodes that hold all experts.
        resident: experts that the devices hold at once.
        staged: experts that the host's memory holds.
        router_s: mean seconds of the router per prompt.
        switch_s: mean seconds that a prompt waits for its expert's weights.
        run_s: mean seconds in which the expert answers it.
        wait_s: mean seconds that it waits for its turn.
        wait_p99_s: seconds that 99 % wait at most, the switch left out.
        rate_per_s: prompts answered per second.
        switches: experts brought to the devices.
    """

    node: str
    nodes: int
    resident: int
    staged: int
    router_s: float
    switch_s: float
    run_s: float
    wait_s: float
    wait_p99_s: float
    rate_per_s: float
    switches: int

    @property
    def latency_s(self) -> float:
        """Mean seconds from a prompt's turn to its answer."""
        return self.router_s + self.switch_s + self.run_s


def plan_composition(
    load: CompositionLoad,
    node: ExpertNode,
    *,
    order: ExpertOrder = "grouped",
    max_batch: int = 8,
    max_wait_s: float = 0.0,
    max_resident: int = 0,
    prefetch: bool = False,
    seed: int = 0,
) -> CompositionPlan:
    """Simulate a node that serves a composition of experts.

    The router stays in the devices' memory and classifies a prompt in one pass. Experts beyond the
    host's memory come from disk.

    Args:
        load: experts and prompts.
        node: what they run on.
        order: how the next batch is chosen.
        max_batch: most prompts of a batch.
        max_wait_s: longest wait under "least-switch".
        max_resident: experts kept in the devices' memory; as many as fit when 0.
        prefetch: whether the next expert is brought while one runs.
        seed: seed of experts and arrivals.

    Returns:
        Means over all prompts.

    Raises:
        CapacityError: an expert does not fit beside the router.
        ConfigError: a bound or the order is out of range.
    """
    size = load.expert_bytes
    fitting, staged = node.held(size)
    # The router and, with prefetch, the expert that comes take room of their own.
    kept = min(max_resident or fitting, fitting) - 1 - int(prefetch)
    resident = ExpertResidency(kept)
    on_disk = set(np.argsort(-load.shares, kind="stable")[max(staged, fitting) :].tolist())
    runs = {
        count: expert_run_s(load.arch, node, batch=count, prompt=load.prompt, output=load.output)
        for count in range(1, max_batch + 1)
    }
    router_s = expert_run_s(load.arch, node, batch=1, prompt=load.prompt, output=1)
    # Without a rate the next group comes when the one before is certainly done.
    spacing_s = load.group * (
        router_s + runs[1] + max(runs.values()) + node.switch_s(size, from_disk=bool(on_disk))
    )
    seen = run_composition(
        load.prompts(np.random.default_rng(seed), spacing_s),
        ExpertQueue(order, max_batch=max_batch, max_wait_s=max_wait_s),
        resident,
        run_s=runs.__getitem__,
        switch_s=lambda expert: node.switch_s(size, from_disk=expert in on_disk),
        router_s=router_s,
        prefetch=prefetch,
    )
    return _plan(load, node, seen, kept, staged, router_s)


def _plan(
    load: CompositionLoad,
    node: ExpertNode,
    seen: CompositionRun,
    kept: int,
    staged: int,
    router_s: float,
) -> CompositionPlan:
    """Return means over the prompts."""
    return CompositionPlan(
        node=node.name,
        nodes=nodes_for(node, len(load.shares), load.expert_bytes),
        resident=kept,
        staged=staged,
        router_s=router_s,
        switch_s=float(seen.switch_s.mean()),
        run_s=float(seen.run_s.mean()) - router_s,
        wait_s=float(seen.wait_s.mean()),
        wait_p99_s=float(np.percentile(seen.wait_s, 99)),
        rate_per_s=seen.rate_per_s,
        switches=seen.switches,
    )
