"""Sends rows to experts by sorting, so that each expert multiplies one run of rows."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Dispatch", "grouped_linear", "sort_by_expert"]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Visits of rows to experts, those of an expert side by side.

    Attributes:
        rows: int64 [M], the row of each visit that takes place.
        choices: int64 [M], which of the row's choices it is, counted from 0.
        ends: int32 [E], where the visits of each expert end.
        load: int64 [E], visits that were asked of each expert, before any was dropped.
        dropped: visits that found their expert full.
    """

    rows: Tensor
    choices: Tensor
    ends: Tensor
    load: Tensor
    dropped: int = 0


def sort_by_expert(
    experts: Tensor, num_experts: int, capacity: int = 0, skipped: Tensor | None = None
) -> Dispatch:
    """Order the visits of rows to experts, and drop those beyond an expert's capacity.

    First choices of all rows come before second ones, and early rows before late ones, so that a
    full expert drops the least wanted visits.

    Args:
        experts: int64 [N, K], choices of each row, the best first.
        num_experts: how many there are.
        capacity: visits an expert takes, 0 for all.
        skipped: bool [N, K] of choices that are not made after all, None for none; they count in
            the load.

    Returns:
        The visits that take place; a row whose visits are all dropped is in none.

    Source: Lepikhin et al. 2020 (arXiv 2006.16668), algorithm 1 (order and capacity); Gale et al.
        2022 (arXiv 2211.15841), section 4 (sorting in place of masks).
    """
    count, num_choices = experts.shape
    wanted = experts.T.flatten()
    load = taken = torch.bincount(wanted, minlength=num_experts)
    order = wanted.argsort(stable=True)
    if skipped is not None:
        is_made = ~skipped.T.flatten()
        order = order[is_made[order]]
        taken = torch.bincount(wanted[order], minlength=num_experts)
    dropped = 0
    if capacity:
        places = torch.arange(len(order), device=order.device)
        starts = taken.cumsum(0) - taken
        fits = places - starts[wanted[order]] < capacity
        taken = taken.clamp(max=capacity)
        dropped = len(order) - int(taken.sum())
        order = order[fits]
    choices = order // max(count, 1) if num_choices > 1 else torch.zeros_like(order)
    ends = taken.cumsum(0).to(torch.int32)
    return Dispatch(order - choices * count, choices, ends, load, dropped)


def grouped_linear(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply each run of rows by the matrix of its expert.

    Args:
        rows: [M, C], sorted by expert.
        weights: [E, R, C], a matrix per expert, laid out as in `nn.Linear`.
        ends: int32 [E], where the run of each expert ends.

    Returns:
        [M, R].
    """
    return F.grouped_mm(rows, weights.transpose(-2, -1), offs=ends)
