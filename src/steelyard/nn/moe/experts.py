"""A mixture of experts in place of a layer's MLP."""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.nn.moe.dispatch import Dispatch, grouped_linear, padded, sort_by_expert
from steelyard.nn.moe.routers import Router, Routing, make_router
from steelyard.nn.parts.activation import activate
from steelyard.nn.parts.linear import linear
from steelyard.nn.parts.noise import Noise
from steelyard.nn.parts.norm import make_norm

__all__ = ["ExpertLoad", "MixtureOfExperts", "with_shared"]

_EVAL_SHARE = 0.25
"""Share of all tokens that an expert with a capacity takes outside of training. Source: Artetxe et
al. 2021 (arXiv 2112.10684), and the code of Ma et al. (arXiv 2211.13184)."""


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """How the last batch was spread over the experts.

    Attributes:
        shares: float32 [E], fraction of the visits that were asked of each, before drops.
        dropped_fraction: visits that did not take place because their expert was full, in [0, 1].
    """

    shares: Tensor
    dropped_fraction: float

    @property
    def imbalance(self) -> float:
        """Largest share over the even one, at least 1."""
        return float(self.shares.max()) * len(self.shares)

    @property
    def entropy(self) -> float:
        """Entropy of the shares over that of even ones: 1 when all experts are used alike."""
        entropy = -float(torch.special.xlogy(self.shares, self.shares).sum())
        return entropy / math.log(len(self.shares)) if len(self.shares) > 1 else 1.0


class MixtureOfExperts(nn.Module):
    """A router and its experts; what a full expert drops passes by in the residual stream alone.

    Attributes:
        router: chooses experts.
        up: input matrices [E, I, C] of the experts, or [E, 2 I, C] with a gated MLP, the gate's
            rows first.
        down: output matrices [E, C, I].
        up_bias: [E, I] or [E, 2 I], or None.
        down_bias: [E, C], or None.
        inner_norm: norm before the output matrices with `subln`, one for all experts, or None.
        shared_up: input matrix of the experts that every token visits, side by side, or None.
        shared_down: their output matrix, or None.
        shared_gate: direction whose product's sigmoid multiplies what they add, or None.
        load: spread of the last batch over the experts, None before the first.
        routing: choices of the last batch in training, until `losses.auxiliary_loss` takes them.
    """

    def __init__(self, arch: Architecture) -> None:
        """Lay out the parameters, not yet filled.

        Args:
            arch: architecture with at least one expert.
        """
        super().__init__()
        count, width, inner = arch.num_experts, arch.hidden_size, arch.moe_intermediate_size
        self.form = arch.mlp
        self.capacity_factor = arch.capacity_factor
        self.router = make_router(arch)
        rows = inner * (2 if arch.is_gated else 1)
        self.up = nn.Parameter(torch.empty(count, rows, width))
        self.down = nn.Parameter(torch.empty(count, width, inner))
        self.up_bias = nn.Parameter(torch.empty(count, rows)) if arch.mlp_bias else None
        self.down_bias = nn.Parameter(torch.empty(count, width)) if arch.mlp_bias else None
        self.inner_norm = make_norm(arch, inner) if arch.subln else None
        shared = arch.num_shared_experts
        self.shared_up = linear(width, rows * shared, bias=False) if shared else None
        self.shared_down = linear(inner * shared, width, bias=False) if shared else None
        self.shared_gate = linear(width, 1, bias=False) if arch.shared_expert_gate else None
        # GShard draws whether the second of two experts is visited; without limits both are.
        is_drawn = arch.experts_per_token == 2 and arch.capacity_factor > 0
        self.noise = Noise() if is_drawn else None
        self.load: ExpertLoad | None = None
        self.routing: Routing | None = None

    def forward(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return what the experts add.

        Args:
            hidden: [..., C].
            tokens: int64 [...], numbers of the tokens; needed by a hash router.

        Returns:
            [..., C].
        """
        rows = hidden.flatten(0, -2)
        numbers = None if tokens is None else tokens.expand(hidden.shape[:-1]).flatten()
        # Choices in 16 bits would differ from one run of the same tokens to the next.
        with torch.autocast(hidden.device.type, enabled=False):
            routing: Routing = cast(Router, self.router)(rows.float(), numbers)
        dispatch = sort_by_expert(
            routing.experts, len(self.up), self._capacity(len(rows)), self._skipped(routing)
        )
        self._record(routing, dispatch)
        added = self._visit(rows, routing, dispatch)
        return with_shared(rows, added, self.form, self.shared).view_as(hidden)

    @property
    def shared(self) -> tuple[nn.Module | None, ...]:
        """Input map, output map and gate of the experts that every token visits."""
        return self.shared_up, self.shared_down, self.shared_gate

    def __getstate__(self) -> dict[str, Any]:
        """Leave the last choices out of copies: their graph cannot be copied."""
        return self.__dict__ | {"routing": None}

    def _capacity(self, num_rows: int) -> int:
        """Return the visits that an expert takes, 0 for all."""
        if not self.capacity_factor:
            return 0
        count = getattr(self.router, "count", 1)
        trained = math.ceil(self.capacity_factor * count * num_rows / len(self.up))
        # Batches are not balanced by training any more, so experts take more.
        return trained if self.training else max(trained, math.ceil(_EVAL_SHARE * num_rows))

    def _skipped(self, routing: Routing) -> Tensor | None:
        """Draw which second experts are not visited: each is with twice its gate."""
        if self.noise is None or not self.training:
            return None
        drawn = self.noise.uniform(len(routing.gates), device=routing.gates.device)
        second = drawn >= 2 * routing.gates.detach()[:, 1]
        return torch.stack((torch.zeros_like(second), second), dim=1)

    @torch.no_grad()
    def _record(self, routing: Routing, dispatch: Dispatch) -> None:
        """Keep what reports and the loss need."""
        asked = max(routing.experts.numel(), 1)
        self.load = ExpertLoad(dispatch.load.float() / asked, dispatch.dropped / asked)
        self.routing = routing if self.training else None

    def _visit(self, rows: Tensor, routing: Routing, dispatch: Dispatch) -> Tensor:
        """Return the weighted results of the visits, 0 for rows without any."""
        device, dispatch = rows.device.type, padded(dispatch)
        wide = rows
        if torch.is_autocast_enabled(device):
            wide = rows.to(torch.get_autocast_dtype(device))
        inner = self._grouped(wide[dispatch.rows], self.up, self.up_bias, dispatch)
        inner = activate(self.form, inner)
        if self.inner_norm is not None:
            inner = self.inner_norm(inner).to(wide.dtype)
        results = self._grouped(inner, self.down, self.down_bias, dispatch)
        gates = routing.gates[dispatch.rows, dispatch.choices].to(results.dtype)
        if dispatch.is_visit is not None:
            gates = gates * dispatch.is_visit
        weighted = results * gates[:, None]
        return torch.zeros_like(wide).index_add(0, dispatch.rows, weighted).to(rows.dtype)

    @staticmethod
    def _grouped(rows: Tensor, weights: Tensor, bias: Tensor | None, dispatch: Dispatch) -> Tensor:
        """Return the products of sorted rows with their experts' matrices, in the rows' type."""
        bias = None if bias is None else bias.to(rows.dtype)
        return grouped_linear(rows, weights.to(rows.dtype), bias, dispatch)


def with_shared(
    rows: Tensor, added: Tensor, form: str, shared: tuple[nn.Module | None, ...]
) -> Tensor:
    """Add what shared experts do to what routed ones add.

    Args:
        rows: [N, C].
        added: [N, C] of routed experts.
        form: `mlp` of the architecture.
        shared: input map, output map and gate; the first two None without shared experts, the gate
            None without one.

    Returns:
        [N, C].
    """
    up, down, gate = shared
    if up is None or down is None:
        return added
    found = down(activate(form, up(rows)))
    return added + (found if gate is None else found * gate(rows).sigmoid())
