"""Experts as linear maps of their own, in whatever form those are: for inference only."""

from typing import cast

import torch
from torch import Tensor, nn

from steelyard.nn.moe.dispatch import sort_by_expert
from steelyard.nn.moe.experts import MixtureOfExperts, with_shared
from steelyard.nn.moe.routers import Router, Routing
from steelyard.nn.parts.activation import activate
from steelyard.nn.parts.linear import linear
from steelyard.nn.stored import StoredLinear, StoredMatrix

__all__ = ["SeparateExperts", "keep_experts"]


class SeparateExperts(nn.Module):
    """What `MixtureOfExperts` computes outside of training, one product per expert that is visited.

    Experts take every visit, whatever the capacity they were trained with: what a token gets then
    does not depend on the tokens beside it.

    Attributes:
        mixture: router and shared experts; its own matrices are not used.
        ups: input map of each expert.
        downs: output map of each expert.
    """

    def __init__(self, mixture: MixtureOfExperts) -> None:
        """Share everything with a mixture; experts are views of its matrices.

        Args:
            mixture: mixture that is to be computed.
        """
        super().__init__()
        self.form = mixture.form
        self.router, self.inner_norm = mixture.router, mixture.inner_norm
        self.shared_up, self.shared_down = mixture.shared_up, mixture.shared_down
        self.shared_gate = mixture.shared_gate
        self.ups = _maps(mixture.up, mixture.up_bias)
        self.downs = _maps(mixture.down, mixture.down_bias)

    def forward(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return what the experts add, as `MixtureOfExperts` does.

        Args:
            hidden: [..., C].
            tokens: int64 [...], numbers of the tokens; needed by a hash router.

        Returns:
            [..., C].
        """
        rows = hidden.flatten(0, -2)
        numbers = None if tokens is None else tokens.expand(hidden.shape[:-1]).flatten()
        routing: Routing = cast(Router, self.router)(rows.float(), numbers)
        shared = self.shared_up, self.shared_down, self.shared_gate
        return with_shared(rows, self._visit(rows, routing), self.form, shared).view_as(hidden)

    def _visit(self, rows: Tensor, routing: Routing) -> Tensor:
        """Return the weighted results of all visits."""
        dispatch = sort_by_expert(routing.experts, len(self.ups))
        gates = routing.gates[dispatch.rows, dispatch.choices].to(rows.dtype)[:, None]
        sorted_rows, added, start = rows[dispatch.rows], torch.zeros_like(rows), 0
        for expert, end in enumerate(dispatch.ends.tolist()):
            if end > start:
                inner = activate(self.form, self.ups[expert](sorted_rows[start:end]))
                inner = inner if self.inner_norm is None else self.inner_norm(inner)
                results = self.downs[expert](inner) * gates[start:end]
                added.index_add_(0, dispatch.rows[start:end], results.to(added.dtype))
            start = end
        return added


def keep_experts(
    model: nn.Module, name: str, parts: tuple[StoredMatrix, ...], dtype: torch.dtype
) -> None:
    """Let the experts of a layer read their matrices from files.

    Args:
        model: whose mixture is replaced.
        name: name of the matrices, such as "layers.0.experts.up".
        parts: what the experts' rows are made of, equally many of each.
        dtype: type of the model.
    """
    home, _, leaf = name.rpartition(".")
    mixture = model.get_submodule(home)
    if isinstance(mixture, MixtureOfExperts):
        mixture = SeparateExperts(mixture)
        model.get_submodule(home.rpartition(".")[0]).add_module("experts", mixture)
    maps = cast(nn.ModuleList, mixture.get_submodule(f"{leaf}s"))
    each = len(parts) // len(maps)
    for expert, old in enumerate(maps):
        own = parts[expert * each : (expert + 1) * each]
        maps[expert] = StoredLinear(own, cast(nn.Linear, old).bias, dtype)


def _maps(weights: Tensor, biases: Tensor | None) -> nn.ModuleList:
    """Return a linear map per expert that shares the memory of [E, rows, columns]."""
    maps = nn.ModuleList()
    for expert, weight in enumerate(weights.detach()):
        made = linear(0, 0, bias=False)
        made.weight = nn.Parameter(weight, requires_grad=False)
        if biases is not None:
            made.bias = nn.Parameter(biases[expert].detach(), requires_grad=False)
        made.out_features, made.in_features = weight.shape
        maps.append(made)
    return maps
