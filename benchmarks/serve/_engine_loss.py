"""The loss of a model as the engine computes it, with weights of any type."""

import numpy as np
import torch
from torch import Tensor

from steelyard.nn.transformer import Transformer
from steelyard.serve import SchedulerConfig
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.running.sampling.peaks import Peaks
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["engine_loss"]


class _Keeper(Sampler):
    """Keeps the logits of every row."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        super().__init__()
        self.logits = torch.empty(0)

    def sample(self, logits: Tensor, plan: StepPlan, known: Peaks | None = None) -> StepOutput:
        """Keep logits [R, V]; the tokens are not used."""
        self.logits = logits.clone()
        return StepOutput(tokens=np.zeros(len(plan.sampled), dtype=np.int64))


def engine_loss(
    model: Transformer, rows: np.ndarray, kind: str, kv_dtype: torch.dtype | None = None
) -> float:
    """Return nats per token of rows of tokens, each in one step of the engine."""
    length = rows.shape[1]
    config = SchedulerConfig(
        num_blocks=length // 16, max_model_len=length, token_budget=length, max_num_seqs=1
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
