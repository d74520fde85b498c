"""The mixed fleet of the serverless benchmark: step times, memory, and its groups of instances."""

from dataclasses import replace

from steelyard import catalog
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.roofline import Machine
from steelyard.plan.service.options import engine_options
from steelyard.sim.fleet.instance import ReplicaGroup

__all__ = ["BLOCK", "groups"]

BLOCK = 128
"""Token slots per block; it divides the trace's blocks of 512."""
_BUDGET = 2048


def groups(model: str, machine: str, tensor: int) -> dict[str, ReplicaGroup]:
    """Return one instance of each role, its time and room by the roofline."""
    arch = catalog.architecture_by_name(model)
    record = catalog.accelerator(machine)
    wanted = Machine.from_accelerator(record)
    option = next(
        item
        for item in engine_options(arch, wanted, step_tokens=_BUDGET, tensors=(tensor,))
        if item.pipeline == 1
    )
    link = wanted.scale_up_bytes_per_s or 50e9
    per_token = kv_bytes_per_token(arch, wanted.dtype_bytes) / link
    both = ReplicaGroup(
        step_time=option.step_time,
        blocks=option.kv_tokens // BLOCK,
        block_size=BLOCK,
        token_budget=_BUDGET,
        max_num_seqs=256,
        prefix_caching=True,
    )
    return {
        "both": both,
        "prefill": replace(both, role="prefill", whole_prompts=True),
        "decode": replace(both, role="decode", transfer_s_per_token=per_token),
    }
