"""One decoding step natively and with numba: what the table of processors rests on."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from benchmarks.common import Spread, alternate, ratio

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build
from steelyard.serve.running.model_steps import ModelSteps
from steelyard.serve.running.native.library import compiled_library
from steelyard.serve.running.native.steps import NativeSteps
from steelyard.serve.running.pool import KVPool
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["native_speedup"]

_ROWS, _CONTEXT, _BLOCK = 32, 256, 16
_ARCHITECTURE = Architecture(
    name="step",
    hidden_size=512,
    num_layers=2,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=1408,
    vocab_size=512,
    max_positions=_CONTEXT,
)


@torch.inference_mode()
def native_speedup(rounds: int) -> Spread:
    """Run 32 sequences at 256 tokens of context by both kernels, in turn.

    Args:
        rounds: timed runs of each.

    Returns:
        Seconds with numba over seconds natively.
    """
    model = build(_ARCHITECTURE).eval()
    plan = _plan()
    threads = torch.get_num_threads()
    pool = KVPool(_ARCHITECTURE, plan.block_tables.size, _BLOCK, torch.float32, torch.device("cpu"))
    pool.kv.normal_(generator=torch.Generator().manual_seed(0))
    with ThreadPoolExecutor(max(threads - 1, 1)) as helpers:
        numba = ModelSteps(model, pool, compiled=True, helpers=helpers if threads > 1 else None)
        native = NativeSteps(model, pool, compiled_library(), rows=_ROWS, threads=threads)
        seconds = alternate(
            {
                "numba": lambda: numba.logits(plan, plan.token_ids),
                "native": lambda: native.logits(plan, plan.token_ids),
            },
            rounds=rounds,
            rest_s=0.01,
        )
    return ratio(seconds["numba"], seconds["native"])


def _plan() -> StepPlan:
    """Let every sequence decode its last position."""
    tables = np.arange(_ROWS * _CONTEXT // _BLOCK, dtype=np.int64).reshape(_ROWS, -1)
    ones = np.ones(_ROWS, dtype=np.int64)
    return StepPlan(
        request_ids=[str(row) for row in range(_ROWS)],
        num_decodes=_ROWS,
        token_ids=np.arange(_ROWS, dtype=np.int64),
        positions=ones * (_CONTEXT - 1),
        slot_mapping=tables[:, -1] * _BLOCK + _BLOCK - 1,
        query_lengths=ones,
        context_lengths=ones * _CONTEXT,
        block_tables=tables,
        sample_rows=np.arange(_ROWS, dtype=np.int64),
        sampled=[],
        output_positions=ones,
    )
