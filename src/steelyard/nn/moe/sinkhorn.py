"""Balances scores of tokens and experts to a transport plan of even shares."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BalancedPlan", "balanced_plan"]


@dataclass(frozen=True, slots=True)
class BalancedPlan:
    """A plan in which every token and every expert has its even share.

    Attributes:
        shares: float32 [N, E], sums to 1; 1 / N per row and 1 / E per column.
        offsets: float32 [E], what balancing added to the scores of each expert, up to a constant
            of each token: the largest share of a row is at its largest sum of score and offset.
        rounds: how often rows and columns were normalized.
    """

    shares: Tensor
    offsets: Tensor
    rounds: int


@torch.no_grad()
def balanced_plan(scores: Tensor, *, tolerance: float = 0.01, max_rounds: int = 20) -> BalancedPlan:
    """Scale the exponentials of scores until every token and every expert has its even share.

    Rows and columns are normalized in turn, in logarithms, so that no score overflows.

    Args:
        scores: float [N, E].
        tolerance: largest relative error of a row's or column's sum at which the search ends.
        max_rounds: rounds after which it ends in any case.

    Returns:
        The plan; its columns are exact, its rows to the tolerance.

    Source: Clark et al. 2022 (arXiv 2202.01169), section 3.2 and appendix B.2 (S-BASE); Cuturi
        2013 (arXiv 1306.0895), algorithm 1.
    """
    scores = scores.float()
    num_tokens, num_experts = scores.shape
    offsets, rounds = scores.new_zeros(num_experts), 0
    plan = scores.log_softmax(1)
    while num_tokens and rounds < max_rounds:
        rounds += 1
        change = torch.tensor(num_tokens / num_experts).log() - plan.logsumexp(0)
        offsets, plan = offsets + change, plan + change
        rows = plan.logsumexp(1, keepdim=True)
        # The columns are exact here, so the rows alone tell how far the plan is off.
        if float(rows.abs().max()) <= tolerance:
            break
        plan = plan - rows
    return BalancedPlan(plan.exp() / max(num_tokens, 1), offsets, rounds)
