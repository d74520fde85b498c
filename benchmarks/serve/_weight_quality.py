"""Perplexity that a trained model loses with fewer bits in its weights, or keys and values."""

import math

import numpy as np
import torch
from benchmarks.common import Check
from benchmarks.serve._recall_model import Recipe, trained
from benchmarks.serve._recall_text import real_text
from torch import Tensor

from steelyard.nn.transformer import Transformer
from steelyard.serve import SchedulerConfig
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["quality_checks"]

_LENGTH = 256
_BARS = {"bf16": 0.001, "int8": 0.001, "int4": 0.015}
_KV_TYPES = {"bf16": torch.bfloat16, "int8": torch.int8}


class _Keeper(Sampler):
    """Keeps the logits of every row."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        super().__init__()
        self.logits = torch.empty(0)

    def sample(self, logits: Tensor, plan: StepPlan) -> StepOutput:
        """Keep logits [R, V]; the tokens are not used."""
        self.logits = logits.clone()
        return StepOutput(tokens=np.zeros(len(plan.sampled), dtype=np.int64))


def quality_checks(quick: bool) -> list[Check]:
    """Score held-out text in the engine itself with every type of weights.

    Args:
        quick: a model of fewer updates, and less text.

    Returns:
        Relative increase of the perplexity of bytes over fp32, by type of the weights, and by type
        of keys and values.
    """
    steps, count = (20, 4) if quick else (200, 16)
    recipe = Recipe(phases=((steps, count, _LENGTH, 64, 200),), max_positions=2 * _LENGTH)
    model = trained(recipe, every=steps)
    text = real_text()[0]
    held_out = np.frombuffer(text[int(len(text) * 0.95) :], dtype=np.uint8).astype(np.int64)
    rows = held_out[: len(held_out) // _LENGTH * _LENGTH].reshape(-1, _LENGTH)
    rows = rows[: 20 if quick else 400]
    base = _loss(model, rows, "fp32")
    print(f"quality: {rows.size} held-out bytes, fp32 loss {base:.4f} nats")
    found = []
    for kind, bar in _BARS.items():
        loss = _loss(model, rows, kind)
        lost = math.expm1(loss - base)
        print(f"quality: {kind} perplexity {lost:+.3%}")
        found.append(Check(f"3 perplexity lost with {kind} weights", lost, bar, "lower"))
    for name, dtype in _KV_TYPES.items():
        lost = math.expm1(_loss(model, rows, "fp32", dtype) - base)
        print(f"quality: {name} keys and values: perplexity {lost:+.4%}")
        label = f"3 perplexity lost with {name} keys and values"
        found.append(Check(label, lost, 0.001, "lower"))
    return found


def _loss(
    model: Transformer, rows: np.ndarray, kind: str, kv_dtype: torch.dtype | None = None
) -> float:
    """Return nats per byte of rows of text, each in one step of the engine."""
    config = SchedulerConfig(
        num_blocks=_LENGTH // 16, max_model_len=_LENGTH, token_budget=_LENGTH, max_num_seqs=1
    )
    keeper = _Keeper()
    runner = TorchRunner(model, config, sampler=keeper, weights=kind, kv_dtype=kv_dtype)
    total = 0.0
    for row in rows:
        runner.execute(_prompt(row))
        wanted = torch.from_numpy(row[1:])
        total += float(torch.nn.functional.cross_entropy(keeper.logits[:-1], wanted))
    return total / len(rows)


def _prompt(row: np.ndarray) -> StepPlan:
    """Let every position of one prompt be sampled."""
    places = np.arange(len(row), dtype=np.int64)
    return StepPlan(
        request_ids=["text"],
        num_decodes=0,
        token_ids=row,
        positions=places,
        slot_mapping=places,
        query_lengths=np.array([len(row)]),
        context_lengths=np.array([len(row)]),
        block_tables=np.arange(len(row) // 16, dtype=np.int64)[None],
        sample_rows=places,
        sampled=[Request(id="text", prompt=[0])] * len(row),
        output_positions=places,
    )
