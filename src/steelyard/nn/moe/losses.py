"""What routers add to the loss, and how tokens were spread over experts."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from steelyard.errors import ConfigError
from steelyard.nn.moe.experts import ExpertLoad, MixtureOfExperts
from steelyard.nn.moe.routers import Routing

__all__ = ["auxiliary_loss", "balance_loss", "expert_loads", "policy_loss"]

_BALANCE, _ENTROPY = 0.01, 0.001
"""Weights of the balance term (Fedus et al. 2021, section 2.2) and of a policy's entropy."""


def auxiliary_loss(model: nn.Module, token_losses: Tensor | None = None) -> Tensor:
    """Return what the routers of a model add to the loss of the batch it has just computed.

    The balance of softmax and cosine routers, and the policy's gradient of REINFORCE; nothing for
    Sinkhorn and hash routers, nor for a dense model. To be called once after each forward pass in
    training; it lets go of what was kept for it.

    Args:
        model: any module that holds mixtures of experts.
        token_losses: [...], loss of each token in nats; only REINFORCE needs it, and takes its
            negative as the reward. It must hold one number for each token of the batch.

    Returns:
        A scalar to add to the mean loss, with gradient; 0 without any router.

    Raises:
        ConfigError: a REINFORCE router has no losses of tokens, or another number of them.
    """
    total: Tensor | None = None
    for layer in _mixtures(model):
        if layer.routing is not None:
            term = _term(layer.routing, token_losses)
            total = term if total is None else total + term
            layer.routing = None
    return torch.zeros(()) if total is None else total


def expert_loads(model: nn.Module) -> list[ExpertLoad]:
    """Return how the last batch was spread over the experts of each layer.

    Args:
        model: any module that holds mixtures of experts.

    Returns:
        One record per such layer, in order; none for a dense model, or before a batch.
    """
    return [layer.load for layer in _mixtures(model) if layer.load is not None]


def balance_loss(routing: Routing) -> Tensor:
    """Return E times the sum over experts of mean probability times share of first choices.

    Shares are those before drops: a full expert would otherwise look balanced.

    Args:
        routing: choices of a router that has probabilities.

    Returns:
        A scalar: 1 when both are even, E when one expert gets all.

    Source: Lepikhin et al. 2020 (arXiv 2006.16668), section 2.2; Fedus et al. 2021 (arXiv
        2101.03961), equations 4 to 6.
    """
    assert routing.probabilities is not None
    num_experts = routing.probabilities.shape[1]
    first = torch.bincount(routing.experts[:, 0], minlength=num_experts)
    shares = first.float() / max(len(routing.experts), 1)
    return num_experts * (routing.probabilities.mean(0) * shares).sum()


def policy_loss(routing: Routing, token_losses: Tensor) -> Tensor:
    """Return the loss whose gradient is that of the expected reward, and of the baseline's error.

    Args:
        routing: choices of a REINFORCE router.
        token_losses: [N], nats; the reward is their negative.

    Returns:
        A scalar; a small term keeps the policy from settling early.

    Source: Clark et al. 2022 (arXiv 2202.01169), section 3.3; Williams 1992 (REINFORCE).
    """
    assert routing.log_policy is not None
    assert routing.expected is not None
    assert routing.probabilities is not None
    rewards = -token_losses.detach().float().flatten()
    advantages = rewards - routing.expected.detach()
    entropy = -torch.special.xlogy(routing.probabilities, routing.probabilities).sum(1).mean()
    baseline = (routing.expected - rewards).square().mean()
    return -(advantages * routing.log_policy).mean() + baseline / 2 - _ENTROPY * entropy


def _mixtures(model: nn.Module) -> Iterator[MixtureOfExperts]:
    """Return the mixtures of experts in a model."""
    return (module for module in model.modules() if isinstance(module, MixtureOfExperts))


def _term(routing: Routing, token_losses: Tensor | None) -> Tensor:
    """Return what one layer adds."""
    if routing.log_policy is not None:
        given = None if token_losses is None else token_losses.numel()
        if token_losses is None or given != len(routing.experts):
            raise ConfigError(
                f"a REINFORCE router routed {len(routing.experts)} tokens, but was given "
                f"{given or 'no'} losses of tokens",
                hint="pass auxiliary_loss the loss of every token of the batch",
            )
        # A policy collapses as a softmax router does, so it is balanced in the same way.
        return policy_loss(routing, token_losses) + _BALANCE * balance_loss(routing)
    if routing.probabilities is None:
        return routing.gates.new_zeros(())
    return _BALANCE * balance_loss(routing)
