"""Routers: which experts a token visits, and how much each counts."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import ROUTER_DIM
from steelyard.errors import ConfigError
from steelyard.nn.moe.sinkhorn import balanced_plan
from steelyard.nn.parts.noise import Noise

__all__ = ["CosineRouter", "Router", "Routing", "SigmoidRouter", "make_router"]

_TEMPERATURE = 0.3
"""First temperature of cosines, which training changes; the source's own value is not known."""

_OFFSET_RATE = 0.05
"""Weight of the newest batch in the mean of Sinkhorn's offsets."""

_BIAS_RATE = 0.001
"""What a batch adds to the bias of an expert that was asked too rarely. Source: DeepSeek-AI 2024
(arXiv 2412.19437), section 4.2."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Choices of one batch.

    Attributes:
        experts: int64 [N, K], the best first.
        gates: float32 [N, K], weights of the experts' results, with gradient.
        probabilities: float32 [N, E] over experts, None where the router has none to balance.
        log_policy: float32 [N], log probability of the choice where it was drawn, else None.
        expected: float32 [N], log-likelihood that the router expects of each token's prediction,
            else None.
    """

    experts: Tensor
    gates: Tensor
    probabilities: Tensor | None = None
    log_policy: Tensor | None = None
    expected: Tensor | None = None


class Router(Protocol):
    """What a mixture of experts asks."""

    def __call__(self, rows: Tensor, tokens: Tensor | None) -> Routing:
        """Choose.

        Args:
            rows: float32 [N, C].
            tokens: int64 [N], numbers of the tokens, None where the caller has none.

        Returns:
            The choices.
        """
        ...


def make_router(arch: Architecture) -> nn.Module:
    """Make the router that an architecture names.

    Args:
        arch: architecture of a mixture of experts.

    Returns:
        A `Router`, its weights not yet filled.
    """
    size = (arch.hidden_size, arch.num_experts)
    if arch.router == "hash":
        return HashRouter(arch.num_experts)
    if arch.router == "sinkhorn":
        return SinkhornRouter(*size)
    if arch.router == "reinforce":
        return ReinforceRouter(*size)
    if arch.router == "cosine":
        return CosineRouter(*size, arch.experts_per_token)
    return (SigmoidRouter if arch.router == "sigmoid" else SoftmaxRouter)(arch)


def _columns(width: int, count: int) -> nn.Parameter:
    """Make a matrix [count, width] that is not yet filled."""
    return nn.Parameter(torch.empty(count, width))


def _strongest(logits: Tensor, count: int) -> Routing:
    """Choose the experts of largest probability; gates of several sum to 1, of one they do not."""
    probabilities = logits.softmax(1)
    gates, experts = probabilities.topk(count, dim=1)
    return Routing(experts, _normalized(gates), probabilities)


def _normalized(gates: Tensor) -> Tensor:
    """Divide the gates of several experts by their sum."""
    # Sums of sigmoids may be as small as no float divides by.
    return gates / (gates.sum(1, keepdim=True) + 1e-20) if gates.shape[1] > 1 else gates


def _within_groups(scores: Tensor, arch: Architecture, strongest: int) -> Tensor:
    """Set the scores of experts outside of a row's best groups to -inf.

    Args:
        scores: [N, E].
        arch: says how many groups there are, and how many a row visits.
        strongest: experts of a group whose scores are summed to compare groups.

    Returns:
        [N, E].
    """
    if not arch.num_expert_groups:
        return scores
    groups = scores.unflatten(1, (arch.num_expert_groups, -1))
    strength = groups.topk(min(strongest, groups.shape[2]), dim=2).values.sum(2)
    best = strength.topk(arch.groups_per_token, dim=1).indices
    hidden = torch.ones_like(strength, dtype=torch.bool).scatter(1, best, False)
    return groups.masked_fill(hidden[..., None], -torch.inf).flatten(1)


class SoftmaxRouter(nn.Module):
    """Products with a direction per expert.

    Gates of one expert are its probability (Switch), of several they sum to 1 (GShard, Mixtral),
    before any visit is dropped, or are the probabilities as they are (DeepSeek-V2).

    Source: Fedus et al. 2021 (arXiv 2101.03961), section 2.1 (top-1); Lepikhin et al. 2020 (arXiv
        2006.16668), section 2.2 (top-2); DeepSeek-AI 2024 (arXiv 2405.04434), section 2.2 (groups).
    """

    def __init__(self, arch: Architecture) -> None:
        """Lay out the weights, not yet filled.

        Args:
            arch: architecture of a mixture of experts.
        """
        super().__init__()
        self.arch, self.count = arch, arch.experts_per_token
        self.weight = _columns(arch.hidden_size, arch.num_experts)

    def forward(self, rows: Tensor, tokens: Tensor | None) -> Routing:
        """Choose the `count` experts of largest product."""
        del tokens
        probabilities = F.linear(rows, self.weight.float()).softmax(1)
        chosen = _within_groups(probabilities, self.arch, strongest=1)
        gates, experts = chosen.topk(self.count, dim=1)
        gates = _normalized(gates) if self.arch.normalized_gates else gates
        return Routing(experts, gates * self.arch.gate_scale, probabilities)


class SigmoidRouter(nn.Module):
    """Sigmoids of products, and a bias that keeps experts equally busy without a loss of its own.

    The bias counts in the choice alone, not in the gates. In training each batch moves it up for
    experts that were asked less than evenly, and down for the others.

    Attributes:
        bias: float32 [E], or None without.

    Source: DeepSeek-AI 2024 (arXiv 2412.19437), section 2.1.2, equations 12 to 16 (gates, bias,
        groups by their two strongest experts).
    """

    bias: Tensor | None

    def __init__(self, arch: Architecture) -> None:
        """Lay out the weights, not yet filled.

        Args:
            arch: architecture of a mixture of experts.
        """
        super().__init__()
        self.arch, self.count = arch, arch.experts_per_token
        self.weight = _columns(arch.hidden_size, arch.num_experts)
        self.register_buffer("bias", torch.zeros(arch.num_experts) if arch.router_bias else None)

    def forward(self, rows: Tensor, tokens: Tensor | None) -> Routing:
        """Choose the `count` experts of largest sigmoid with the bias."""
        del tokens
        shares = F.linear(rows, self.weight.float()).sigmoid()
        biased = shares.detach() if self.bias is None else shares.detach() + self.bias
        experts = _within_groups(biased, self.arch, strongest=2).topk(self.count, dim=1).indices
        if self.training and self.bias is not None:
            load = torch.bincount(experts.flatten(), minlength=len(self.bias)).to(self.bias.dtype)
            self.bias += _BIAS_RATE * (load.mean() - load).sign()
        gates = shares.gather(1, experts)
        gates = _normalized(gates) if self.arch.normalized_gates else gates
        probabilities = shares / shares.sum(1, keepdim=True)
        return Routing(experts, gates * self.arch.gate_scale, probabilities)


class CosineRouter(nn.Module):
    """Cosines with a direction per expert, in few dimensions, over a learned temperature.

    Tokens are not pulled towards the directions of their experts as strongly as by products, which
    would let their representations collapse.

    Source: Chi et al. 2022 (arXiv 2204.09179), section 3 (X-MoE).
    """

    def __init__(self, width: int, num_experts: int, count: int) -> None:
        """Lay out the weights, not yet filled.

        Args:
            width: C.
            num_experts: E.
            count: experts per token.
        """
        super().__init__()
        self.count = count
        self.projection = _columns(width, ROUTER_DIM)
        self.directions = _columns(ROUTER_DIM, num_experts)
        self.temperature = nn.Parameter(torch.empty(1))

    def fill(self, generator: torch.Generator) -> None:
        """Draw orthogonal directions, and set the temperature.

        Args:
            generator: generator of the draws.
        """
        nn.init.orthogonal_(self.directions, gain=0.32, generator=generator)
        self.temperature.fill_(_TEMPERATURE)

    def forward(self, rows: Tensor, tokens: Tensor | None) -> Routing:
        """Choose the `count` experts of largest cosine."""
        del tokens
        reduced = F.normalize(F.linear(rows, self.projection.float()), dim=1)
        cosines = F.linear(reduced, F.normalize(self.directions.float(), dim=1))
        # A temperature near 0 would freeze the choices, a negative one reverse them.
        return _strongest(cosines / self.temperature.float().clamp(min=0.01), self.count)


class SinkhornRouter(nn.Module):
    """In training the largest share of a balanced plan, later what such plans chose on average.

    The balance makes a term of the loss unnecessary. The gate is the sigmoid of the raw score.
    Outside of training the source takes the largest raw score, which sends up to 2.5 times the even
    share to an expert; the mean of what balancing added to the scores in training is kept and
    added instead.

    Attributes:
        offsets: that mean [E], over about the last hundred batches.

    Source: Clark et al. 2022 (arXiv 2202.01169), section 3.2 (S-BASE); Lewis et al. 2021 (arXiv
        2103.16716), section 3.1 (gate).
    """

    offsets: Tensor

    def __init__(self, width: int, num_experts: int) -> None:
        """Lay out the weights, not yet filled.

        Args:
            width: C.
            num_experts: E.
        """
        super().__init__()
        self.weight = _columns(width, num_experts)
        self.register_buffer("offsets", torch.zeros(num_experts))

    def forward(self, rows: Tensor, tokens: Tensor | None) -> Routing:
        """Choose one expert per token."""
        del tokens
        scores = F.linear(rows, self.weight.float())
        if self.training:
            plan = balanced_plan(scores)
            chosen = plan.shares
            centred = plan.offsets - plan.offsets.mean()
            self.offsets.lerp_(centred.to(self.offsets.dtype), _OFFSET_RATE)
        else:
            chosen = scores.detach() + self.offsets
        experts = chosen.argmax(1, keepdim=True)
        return Routing(experts, scores.gather(1, experts).sigmoid())


class HashRouter(nn.Module):
    """The expert of a token is its number modulo the number of experts; nothing is learned.

    Source: Roller et al. 2021 (arXiv 2106.04426); Clark et al. 2022 (arXiv 2202.01169), section
        3.4 (modulo).
    """

    def __init__(self, num_experts: int) -> None:
        """Keep the number of experts.

        Args:
            num_experts: E.
        """
        super().__init__()
        self.num_experts = num_experts

    def forward(self, rows: Tensor, tokens: Tensor | None) -> Routing:
        """Choose by the numbers of the tokens."""
        if tokens is None:
            raise ConfigError(
                "a hash router was given no token numbers",
                hint="call the model with tokens, or choose another router",
            )
        experts = (tokens % self.num_experts)[:, None]
        return Routing(experts, torch.ones_like(experts, dtype=rows.dtype))


class ReinforceRouter(nn.Module):
    """A policy over experts that is learned from how well the next tokens are predicted.

    In training the expert is drawn, later it is the likeliest.

    Source: Clark et al. 2022 (arXiv 2202.01169), section 3.3 and appendix B.3 (RL-R).
    """

    def __init__(self, width: int, num_experts: int) -> None:
        """Lay out the weights, not yet filled; the last row and `offset` expect the log-likelihood.

        Args:
            width: C.
            num_experts: E.
        """
        super().__init__()
        self.weight = _columns(width, num_experts + 1)
        self.offset = nn.Parameter(torch.empty(1))
        self.noise = Noise()

    def forward(self, rows: Tensor, tokens: Tensor | None) -> Routing:
        """Choose one expert per token."""
        del tokens
        products = F.linear(rows, self.weight.float())
        log_shares = products[:, :-1].log_softmax(1)
        shares = log_shares.exp()
        if self.training:
            # The first expert at which the running sum of shares passes the draw.
            drawn = self.noise.uniform(len(rows), 1, device=rows.device)
            passed = (shares.detach().cumsum(1) <= drawn).sum(1, keepdim=True)
            experts = passed.clamp(max=shares.shape[1] - 1)
        else:
            experts = shares.argmax(1, keepdim=True)
        log_policy = log_shares.gather(1, experts)
        # The gate carries no gradient: the policy learns from the reward alone.
        gates = torch.ones_like(log_policy)
        return Routing(experts, gates, shares, log_policy[:, 0], products[:, -1] + self.offset)
