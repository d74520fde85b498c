"""May the native kernels be used here?

They are where they proved faster: a race at each first start would hold up a server for seconds,
and lose by chance on a busy machine. The benchmark `serve_start` runs that race: on x86-64 with
AVX-512 the numba path takes 1.4 times as long for a decoding step, and is itself 1.6 to 9 times as
fast as the model's own forward. Other processors than those of the table have not been measured, so
the native kernels run there only for who asks for them.

What a machine has to show for itself is that the results are right: one small step runs both ways,
once per library, number of threads and type of weights.
"""

import ctypes

import numpy as np
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.native import verdict
from steelyard.nn.transformer import Transformer, build
from steelyard.serve.running.model_steps import ModelSteps
from steelyard.serve.running.native.steps import NativeSteps
from steelyard.serve.running.packed_model import model_with
from steelyard.serve.running.pool import KVPool
from steelyard.serve.running.rounded import RoundedLinear
from steelyard.serve.running.weights import ComputedIn
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["refusal", "step_difference"]

_MEASURED = ("AVX2", "AVX512")
"""Instruction sets, as PyTorch names the processor's best one, on which the race was won."""

_TOLERANCES: dict[ComputedIn, float] = {"fp32": 1e-3, "bf16": 5e-2, "int8": 5e-2, "int4": 5e-2}
"""Logits are of order 1, and sums of some hundred products in another order differ by 1e-5. Where
rows are rounded, such a difference may turn one number of a row to the next step: a hundredth of
it. A wrong scale, zero point or place of a weight moves logits by as much as they are."""

_BLOCK = 16
_CONTEXTS = (1, 16, 37, 40)
"""Tokens of each sequence; the last one is a prompt of `_PROMPT` tokens, the others decode."""
_PROMPT = 23

_ARCHITECTURE = Architecture(
    name="trial",
    hidden_size=72,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=24,
    intermediate_size=152,
    vocab_size=89,
    max_positions=64,
)
"""Odd widths, so that the ends of rows and panels count."""


def refusal(library: ctypes.CDLL, threads: int, weights: ComputedIn = "fp32") -> str:
    """Say why the native kernels are not used here, by a table and a comparison held once.

    Args:
        library: the kernels.
        threads: number of threads that will share a step.
        weights: type of the products.

    Returns:
        The reason, empty when they are used.
    """
    best = torch.backends.cpu.get_cpu_capability()
    if best not in _MEASURED:
        return (
            f"native kernels have not been measured on processors with {best}; --native runs them"
        )
    return verdict(
        library,
        f"{threads}-{weights}",
        lambda: step_difference(build(_ARCHITECTURE).eval(), library, threads, weights),
        _TOLERANCES[weights],
    )


@torch.inference_mode()
def step_difference(
    model: Transformer, library: ctypes.CDLL, threads: int, weights: ComputedIn
) -> float:
    """Run one step natively and in plain PyTorch, over the same keys and values.

    Args:
        model: one of at least 26 tokens and 40 positions that `layout.fits`.
        library: the kernels.
        threads: number of threads that share the step.
        weights: type of the products; plain PyTorch rounds weights and rows to it as well.

    Returns:
        Largest difference of a logit, or of a key or value that the step wrote.
    """
    arch, plan = model.architecture, _plan()
    pools = [
        KVPool(arch, plan.block_tables.size, _BLOCK, torch.float32, torch.device("cpu"))
        for _ in range(2)
    ]
    for pool in pools:
        pool.kv.normal_(generator=torch.Generator().manual_seed(0))
    twin, _ = model_with(RoundedLinear, model, weights)
    plain = ModelSteps(twin, pools[0], compiled=False).logits(plan, plan.token_ids)
    native = NativeSteps(
        model, pools[1], library, rows=len(plan.token_ids), threads=threads, weights=weights
    ).logits(plan, plan.token_ids)
    assert plain is not None and native is not None
    # What the step wrote for later ones counts as much as what it answered.
    found = (plain - native, pools[0].kv - pools[1].kv)
    return max(float(item.abs().max()) for item in found)


def _plan() -> StepPlan:
    """Let some sequences decode, and one run a part of its prompt behind what it has."""
    count = len(_CONTEXTS)
    contexts = np.array(_CONTEXTS, dtype=np.int64)
    queries = np.array([*[1] * (count - 1), _PROMPT], dtype=np.int64)
    blocks = -(-max(_CONTEXTS) // _BLOCK)
    tables = np.arange(count * blocks, dtype=np.int64).reshape(count, blocks)[:, ::-1]
    rows = np.repeat(np.arange(count), queries)
    positions = np.concatenate(
        [np.arange(end - size, end) for end, size in zip(contexts, queries, strict=True)]
    )
    slots = tables[rows, positions // _BLOCK] * _BLOCK + positions % _BLOCK
    return StepPlan(
        request_ids=[str(row) for row in range(count)],
        num_decodes=count - 1,
        token_ids=np.arange(len(rows), dtype=np.int64),
        positions=positions,
        slot_mapping=slots,
        query_lengths=queries,
        context_lengths=contexts,
        block_tables=np.ascontiguousarray(tables),
        sample_rows=np.cumsum(queries) - 1,
        sampled=[],
        output_positions=np.ones(count, dtype=np.int64),
    )
