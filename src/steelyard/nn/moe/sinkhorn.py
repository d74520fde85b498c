"""Balances scores of tokens and experts to a transport plan of even shares."""

import torch
from torch import Tensor

__all__ = ["balanced_plan"]


@torch.no_grad()
def balanced_plan(
    scores: Tensor, *, tolerance: float = 0.01, max_iterations: int = 20
) -> tuple[Tensor, int]:
    """Scale the exponentials of scores until every token and every expert has its even share.

    Rows and columns are normalized in turn, in logarithms, so that no score overflows. Each token
    gives 1 / N and each expert takes 1 / E.

    Args:
        scores: float [N, E], N at least 1.
        tolerance: largest relative error of a row's or column's sum at which the search ends.
        max_iterations: rounds after which it ends in any case.

    Returns:
        The plan [N, E], which sums to 1, and the rounds it took.

    Source: Clark et al. 2022 (arXiv 2202.01169), section 3.2 and appendix B.2 (S-BASE); Cuturi
        2013 (arXiv 1306.0895), algorithm 1.
    """
    plan = scores.float().log_softmax(1)
    num_tokens, num_experts = scores.shape
    if num_tokens == 0:
        return plan.exp(), 0
    share = torch.tensor(num_tokens / num_experts, device=scores.device)
    for done in range(1, max_iterations + 1):
        plan = plan - plan.logsumexp(0, keepdim=True) + share.log()
        rows = plan.logsumexp(1, keepdim=True)
        # Columns are exact here, so the rows alone tell how far the plan is off.
        if float(rows.abs().max()) <= tolerance:
            return plan.exp() / num_tokens, done
        plan = plan - rows
    return plan.exp() / num_tokens, max_iterations
