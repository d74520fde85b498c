"""From logits to tokens, for a whole batch at once."""

import numpy as np
import torch
from torch import Tensor

from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["Sampler", "uniform"]


class Sampler:
    """Chooses the tokens of a step."""

    def sample(self, logits: Tensor, plan: StepPlan) -> StepOutput:
        """Choose one token per sampled row.

        Args:
            logits: [R, V], one row per sampled row of the plan.
            plan: of the step.

        Returns:
            The tokens.
        """
        params = [request.params for request in plan.sampled]
        return StepOutput(tokens=_sample(logits, params, plan.output_positions.tolist()).numpy(force=True))


def uniform(seed: int, position: int) -> float:
    """Give the draw in [0, 1) of a request's seed at an output position; independent of everything else that runs."""
    return float(np.random.Generator(np.random.Philox(key=[seed, position])).random())


def _sample(logits: Tensor, params: list[SamplingParams], positions: list[int]) -> Tensor:
    """Choose one token per row.

    Rows of temperature 0 take the largest logit. Others are divided by their temperature, cut to the likeliest `top_k` and then to
    the smallest set that reaches `top_p`, and drawn by inverting the cumulative distribution.

    Args:
        logits: [S, V].
        params: [S].
        positions: [S] output tokens each row already has.

    Returns:
        Token ids, int64 [S].
    """
    chosen = logits.argmax(-1)
    rows = [row for row, item in enumerate(params) if item.temperature > 0]
    if rows:
        draws = [uniform(params[row].seed, positions[row]) for row in rows]
        chosen[rows] = _draw(logits[rows].float(), [params[row] for row in rows], draws)
    return chosen


def _draw(logits: Tensor, params: list[SamplingParams], draws: list[float]) -> Tensor:
    """Draw from the cut distributions of rows with positive temperature."""
    size, device = logits.shape[1], logits.device
    temperature = torch.tensor([item.temperature for item in params], device=device)[:, None]
    top_p = torch.tensor([item.top_p for item in params], device=device)[:, None]
    top_k = torch.tensor([min(item.top_k or size, size) for item in params], device=device)[:, None]
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    shifted = (ordered - ordered[:, :1]) / temperature
    ranks = torch.arange(size, device=device)
    probabilities = shifted.masked_fill(ranks >= top_k, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    kept = probabilities.masked_fill((before >= top_p) & (ranks > 0), 0.0).double()
    cumulative = kept.cumsum(-1)
    threshold = torch.tensor(draws, dtype=torch.float64, device=device)[:, None] * cumulative[:, -1:]
    last_kept = (kept > 0).sum(-1, keepdim=True) - 1
    index = torch.minimum(torch.searchsorted(cumulative, threshold, right=True), last_kept)
    return tokens.gather(1, index)[:, 0]
