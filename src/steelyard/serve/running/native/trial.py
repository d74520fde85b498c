"""Are the native kernels worth using here? Measured once per machine against the numba path, on equal results."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.errors import DataError
from steelyard.files import read_json, write_json
from steelyard.nn.transformer import Transformer, build
from steelyard.serve.running.model_steps import ModelSteps
from steelyard.serve.running.native.steps import NativeSteps
from steelyard.serve.running.pool import KVPool
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["MIN_SPEEDUP", "Verdict", "verdict"]

MIN_SPEEDUP = 1.2
"""Native kernels run only when they are this much faster."""

_ROWS, _CONTEXT, _BLOCK = 32, 256, 16

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


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the trial found.

    Attributes:
        speedup: seconds of the numba path over those of the native one, best of several turns.
        difference: largest absolute difference of their logits, which are of order 1.
        threads: that took part.
    """

    speedup: float
    difference: float
    threads: int

    @property
    def refusal(self) -> str:
        """Why the kernels are not used; empty when they are."""
        if not self.difference < 1e-3:
            return f"native results differ by {self.difference:.1e}"
        return "" if self.speedup >= MIN_SPEEDUP else f"native is only {self.speedup:.2f}x as fast"


def verdict(library: ctypes.CDLL, threads: int) -> Verdict:
    """Read what an earlier trial on this machine found, or hold one (under a second) and keep it beside the library.

    Args:
        library: the kernels.
        threads: that will share a step.

    Returns:
        The verdict.
    """
    path = Path(library._name).with_suffix(f".{threads}.json")
    try:
        return msgspec.convert(read_json(path), Verdict)
    except (DataError, OSError, msgspec.ValidationError):
        found = _hold(library, threads)
        write_json(path, msgspec.to_builtins(found))
        return found


@torch.inference_mode()
def _hold(library: ctypes.CDLL, threads: int) -> Verdict:
    """Run the same decoding step both ways, in turn."""
    model = build(_ARCHITECTURE).eval()
    plan = _plan()
    pool = _filled(model)
    with ThreadPoolExecutor(max(threads - 1, 1)) as helpers:
        numba = ModelSteps(model, pool, compiled=True, helpers=helpers if threads > 1 else None)
        native = NativeSteps(model, pool, library, rows=_ROWS, threads=threads)
        best = [float("inf")] * 2
        found = [torch.empty(0)] * 2
        for turn in range(8):
            for side, steps in enumerate((numba, native)):
                start = time.perf_counter()
                logits = steps.logits(plan, plan.token_ids)
                assert logits is not None
                found[side] = logits
                best[side] = min(best[side], time.perf_counter() - start) if turn else best[side]
    return Verdict(
        speedup=best[0] / best[1],
        difference=float((found[0] - found[1]).abs().max()),
        threads=threads,
    )


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
