"""Sends rows to experts by sorting, so that each expert multiplies one run of rows."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Dispatch", "grouped_linear", "padded", "sort_by_expert"]

_MOST_PADDING = 1.5
"""Rows with padding over those without up to which one product of all experts is taken: without
it the cores of a CPU share each expert's small product badly, and lose about half of their time."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Visits of rows to experts, those of an expert side by side.

    Attributes:
        rows: int64 [M], the row of each visit that takes place.
        choices: int64 [M], which of the row's choices it is, counted from 0.
        ends: int32 [E], where the visits of each expert end.
        load: int64 [E], visits that were asked of each expert, before any was dropped.
        dropped: visits that found their expert full.
        length: rows of each expert where all have equally many, some of them padding; else 0.
        is_visit: bool [M], which rows are no padding; None where none is.
    """

    rows: Tensor
    choices: Tensor
    ends: Tensor
    load: Tensor
    dropped: int = 0
    length: int = 0
    is_visit: Tensor | None = None


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
    # Number choice * N + row: a stable sort then keeps first choices before second ones.
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


def padded(dispatch: Dispatch) -> Dispatch:
    """Return equally many rows for every expert where that costs little and pays: on CPU cores.

    Args:
        dispatch: what `sort_by_expert` returned.

    Returns:
        The same visits with repetitions of row 0 as padding; or the dispatch itself.
    """
    ends = dispatch.ends.long()
    starts = ends - ends.diff(prepend=ends.new_zeros(1))
    count, num_experts = len(dispatch.rows), len(ends)
    # One thread gains nothing from equal runs, and a GPU's grouped product needs none.
    if dispatch.rows.device.type != "cpu" or torch.get_num_threads() == 1 or not count:
        return dispatch
    length = int((ends - starts).max())
    if length * num_experts > _MOST_PADDING * count:
        return dispatch
    places = starts[:, None] + torch.arange(length)
    is_visit = (places < ends[:, None]).flatten()
    places = places.clamp(max=count - 1).flatten()
    rows = torch.where(is_visit, dispatch.rows[places], 0)
    return replace(
        dispatch, rows=rows, choices=dispatch.choices[places], length=length, is_visit=is_visit
    )


def grouped_linear(
    rows: Tensor, weights: Tensor, bias: Tensor | None, dispatch: Dispatch
) -> Tensor:
    """Multiply each run of rows by the matrix of its expert.

    Args:
        rows: [M, C], sorted by expert.
        weights: [E, R, C], a matrix per expert, laid out as in `nn.Linear`.
        bias: [E, R] to add, or None.
        dispatch: which rows are whose.

    Returns:
        [M, R].
    """
    matrices = weights.transpose(-2, -1)
    if dispatch.length:
        grouped = rows.unflatten(0, (-1, dispatch.length))
        if bias is None:
            return torch.bmm(grouped, matrices).flatten(0, 1)
        return torch.baddbmm(bias.unsqueeze(1), grouped, matrices).flatten(0, 1)
    products = F.grouped_mm(rows, matrices, offs=dispatch.ends)
    if bias is None:
        return products
    ends = dispatch.ends.long()
    lengths = ends.diff(prepend=ends.new_zeros(1))
    return products + bias.repeat_interleave(lengths, dim=0)
