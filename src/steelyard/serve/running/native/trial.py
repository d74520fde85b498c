"""Are the native kernels worth using here?

One decoding step runs both ways, once per machine and number of threads. The numba path is what
the native one has to beat, as it is itself 1.6 to 9 times as fast as the model's own forward when
8 to 32 sequences decode at 256 to 1,024 tokens of context.
"""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.native import Verdict, race, verdict
from steelyard.nn.transformer import Transformer, build
from steelyard.serve.running.model_steps import ModelSteps
from steelyard.serve.running.native.steps import NativeSteps
from steelyard.serve.running.pool import KVPool
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["refusal"]

_TOLERANCE = 1e-3
"""Logits are of order 1, and sums of some hundred products in another order differ by 1e-5."""

_ROWS = 32
_CONTEXT = 256
_BLOCK = 16

_ARCHITECTURE = Architecture(
    name="trial",
    hidden_size=512,
    num_layers=2,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=1408,
    vocab_size=512,
    max_positions=_CONTEXT,
)


def refusal(library: ctypes.CDLL, threads: int) -> str:
    """Say why the native kernels are not used here, by a race held once (under a second).

    Args:
        library: the kernels.
        threads: number of threads that will share a step.

    Returns:
        The reason, empty when they are used.
    """
    found = verdict(library, str(threads), lambda: _hold(library, threads))
    return found.refusal(_TOLERANCE)


@torch.inference_mode()
def _hold(library: ctypes.CDLL, threads: int) -> Verdict:
    """Run the same decoding step both ways, in turn."""
    model = build(_ARCHITECTURE).eval()
    plan = _plan()
    pool = _filled(model)
    with ThreadPoolExecutor(max(threads - 1, 1)) as helpers:
        numba = ModelSteps(model, pool, compiled=True, helpers=helpers if threads > 1 else None)
        native = NativeSteps(model, pool, library, rows=_ROWS, threads=threads)

        def step(steps: ModelSteps | NativeSteps) -> Tensor:
            logits = steps.logits(plan, plan.token_ids)
            assert logits is not None
            return logits

        return race(lambda: step(numba), lambda: step(native))


def _filled(model: Transformer) -> KVPool:
    """Make a pool of random keys and values."""
    pool = KVPool(
        model.architecture, _ROWS * _CONTEXT // _BLOCK, _BLOCK, torch.float32, torch.device("cpu")
    )
    pool.kv.normal_(generator=torch.Generator().manual_seed(0))
    return pool


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
