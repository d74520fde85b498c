"""Nodes that hold many models in tiers of memory: what a switch costs, and how many it takes."""

import math
from dataclasses import dataclass

from steelyard.catalog.architecture import Architecture
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.operators import operators
from steelyard.cost.roofline import Machine, roofline_time_s
from steelyard.errors import CapacityError, ConfigError

__all__ = ["ExpertNode", "expert_run_s", "nodes_for"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertNode:
    """A node of several devices that runs one expert at a time over all of them.

    Attributes:
        name: what people call it.
        machine: one device.
        devices: devices of the node, over which an expert is split.
        device_bytes: memory of all devices.
        host_bytes: memory of the second tier; an expert beyond it comes from disk.
        switch_bytes_per_s: rate from the second tier to the devices.
        disk_bytes_per_s: rate from disk, 0 where there is none.
        hidden_collectives: whether collectives run within the kernels, as in dataflow.
        resident_only: whether experts have to stay in the devices' memory when nodes are counted.
    """

    name: str
    machine: Machine
    devices: int
    device_bytes: float
    host_bytes: float
    switch_bytes_per_s: float
    disk_bytes_per_s: float = 0.0
    hidden_collectives: bool = False
    resident_only: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes and rates that mean nothing."""
        if self.devices < 1 or min(self.device_bytes, self.switch_bytes_per_s) <= 0:
            raise ConfigError(f"{self.name}: devices, memory and rate of switches must be positive")

    def held(self, expert_bytes: float) -> tuple[int, int]:
        """Return how many experts fit the devices, and how many the second tier.

        Args:
            expert_bytes: size of an expert.

        Returns:
            Both counts; the first at least 1.

        Raises:
            CapacityError: one expert exceeds the devices' memory.
        """
        if expert_bytes > self.device_bytes:
            raise CapacityError(
                f"an expert of {expert_bytes / 1e9:.1f} GB exceeds the "
                f"{self.device_bytes / 1e9:.0f} GB of {self.name}",
                hint="take a smaller expert, or a node with more memory",
            )
        return int(self.device_bytes // expert_bytes), int(self.host_bytes // expert_bytes)

    def switch_s(self, expert_bytes: float, *, from_disk: bool = False) -> float:
        """Return the seconds to bring an expert to the devices.

        Read-only weights need no write-back, so that a switch is one copy; from disk it passes at
        the slower of both rates.

        Args:
            expert_bytes: size of an expert.
            from_disk: whether it lies on disk.

        Returns:
            Seconds; infinite where it lies on a disk that the node does not have.

        Source: Prabhakar et al. 2024 (SN40L, arXiv 2405.07518), section 6.
        """
        rate = self.switch_bytes_per_s
        if from_disk:
            rate = min(rate, self.disk_bytes_per_s)
        return expert_bytes / rate if rate else math.inf


def nodes_for(node: ExpertNode, experts: int, expert_bytes: float) -> int:
    """Return how many nodes hold a number of experts.

    Args:
        node: kind of node; where `resident_only`, experts have to stay in device memory.
        experts: experts, at least 1.
        expert_bytes: size of each.

    Returns:
        Nodes, at least 1.

    Raises:
        CapacityError: one expert fits no device memory.

    Source: Prabhakar et al. 2024 (SN40L, arXiv 2405.07518), section 6 (machine footprint).
    """
    resident, staged = node.held(expert_bytes)
    each = resident if node.resident_only else max(resident, staged)
    return math.ceil(experts / each)


def expert_run_s(
    arch: Architecture, node: ExpertNode, *, batch: int, prompt: int, output: int
) -> float:
    """Return the seconds in which an expert that is there answers a batch of prompts.

    Args:
        arch: the expert.
        node: what it runs on, split over all devices.
        batch: prompts, at least 1.
        prompt: tokens of each.
        output: tokens of each answer; the first comes from the prompt's pass.

    Returns:
        Seconds of the prompts' pass and of each further token, by the roofline with two
        all-reduces a layer.
    """
    tensor, hidden = node.devices, arch.hidden_size
    shape = {"dtype_bytes": node.machine.dtype_bytes, "tensor_parallel": tensor}

    def collectives_s(tokens: float) -> float:
        if tensor == 1 or node.hidden_collectives:
            return 0.0
        size = tokens * hidden * node.machine.dtype_bytes
        return 2 * arch.num_layers * float(all_reduce_s(node.machine, size, tensor))

    first = operators(arch, phase="prefill", tokens=prompt, batch=batch, **shape)
    seconds = float(roofline_time_s(first, node.machine)) + collectives_s(batch * prompt)
    if output > 1:
        middle = prompt + output / 2
        step = operators(arch, phase="decode", tokens=1, context=middle, batch=batch, **shape)
        each = float(roofline_time_s(step, node.machine)) + collectives_s(batch)
        seconds += (output - 1) * each
    return seconds
