"""The loss of each token of given rows, as an engine computes it."""

import itertools

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.nn.transformer import Transformer
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.running.sampling.peaks import Peaks
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepOutput, StepPlan
from steelyard.serve.sparse.engine import SparseDecoder
from steelyard.serve.sparse.policies import RetentionPolicy

__all__ = ["bounded_losses", "engine_losses"]

_BLOCK = 16


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


def engine_losses(
    model: Transformer,
    rows: list[np.ndarray],
    *,
    weights: str = "fp32",
    kv_dtype: torch.dtype | None = None,
    last: int = 0,
) -> list[np.ndarray]:
    """Return the loss of the tokens of rows, each row in one step of the engine.

    Args:
        model: a decoder.
        rows: int64 [T] each, at least two tokens.
        weights: type in which it is computed.
        kv_dtype: type of keys and values; that of `weights.kv_type` by default.
        last: tokens at the end of each row that are scored; 0 for all but the first.

    Returns:
        For each row nats of its scored tokens, float32.
    """
    longest = -(-max(map(len, rows)) // _BLOCK) * _BLOCK
    config = SchedulerConfig(
        num_blocks=longest // _BLOCK, max_model_len=longest, token_budget=longest, max_num_seqs=1
    )
    keeper = _Keeper()
    runner = TorchRunner(model, config, sampler=keeper, weights=weights, kv_dtype=kv_dtype)
    found = []
    for row in rows:
        scored = last or len(row) - 1
        runner.execute(_prompt(row, scored))
        wanted = torch.from_numpy(row[len(row) - scored :])
        losses = F.cross_entropy(keeper.logits.float(), wanted, reduction="none")
        found.append(losses.numpy(force=True))
    return found


@torch.inference_mode()
def bounded_losses(
    model: Transformer, policy: RetentionPolicy, rows: np.ndarray, last: int
) -> np.ndarray:
    """Return the loss of the last tokens of rows under a bounded cache.

    What comes before is fed in pieces, as a prompt is; the last tokens one by one, as in decoding.

    Args:
        model: a decoder.
        policy: what is kept.
        rows: int64 [B, T].
        last: tokens at the end that are scored, below T.

    Returns:
        Nats, float32 [B, last].
    """
    every = np.arange(len(rows))
    length = rows.shape[1]
    decoder = SparseDecoder(model, policy, num_requests=len(rows), max_length=length)
    targets = torch.from_numpy(rows)
    starts = [*range(0, length - last, decoder.chunk), *range(length - last, length)]
    losses = []
    for start, end in itertools.pairwise(starts):
        logits = decoder.feed(every, list(rows[:, start:end]))
        if end >= length - last:
            losses.append(F.cross_entropy(logits.float(), targets[:, end], reduction="none"))
    return torch.stack(losses, 1).numpy(force=True)


def _prompt(row: np.ndarray, scored: int) -> StepPlan:
    """Let the positions before the last `scored` tokens of one prompt be sampled."""
    places = np.arange(len(row), dtype=np.int64)
    sampled = places[len(row) - scored - 1 : -1]
    return StepPlan(
        request_ids=["text"],
        num_decodes=0,
        token_ids=row,
        positions=places,
        slot_mapping=places,
        query_lengths=np.array([len(row)]),
        context_lengths=np.array([len(row)]),
        block_tables=np.arange(-(-len(row) // _BLOCK), dtype=np.int64)[None],
        sample_rows=sampled,
        sampled=[Request(id="text", prompt=[0])] * len(sampled),
        output_positions=sampled,
    )
