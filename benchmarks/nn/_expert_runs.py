"""Mixtures of experts that are trained: against dense models, by router, and under two clips."""

import statistics
from typing import Any

import torch
from benchmarks.common import Check
from benchmarks.nn._tiny import Markov, tiny, train_steps
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.cost.flops import forward_flops
from steelyard.nn.moe.clip import SparseClip, expert_parameters
from steelyard.nn.moe.losses import expert_loads
from steelyard.nn.transformer import Transformer, build

__all__ = ["clip_checks", "expert_checks", "sinkhorn_checks"]

_VOCAB, _HIDDEN, _LENGTH = 64, 64, 33


def _arch(**changes: Any) -> Architecture:
    """Return a decoder of two layers."""
    return tiny(2, _HIDDEN, vocab_size=_VOCAB, **changes)


def _experts(count: int, per_token: int, router: str, **changes: Any) -> Architecture:
    """Return the decoder with experts in its second layer, as wide together as the dense MLP."""
    inner = 4 * _HIDDEN // per_token
    return _arch(
        num_experts=count,
        experts_per_token=per_token,
        moe_intermediate_size=inner,
        moe_every=2,
        router=router,
        **changes,
    )


def _batches(steps: int, seed: int) -> list[Tensor]:
    """Draw the batches that all rivals of a seed see."""
    # One table for all seeds: a seed only goes further along the same stream.
    source = Markov(_VOCAB, seed=0)
    for _ in range(seed * steps):
        source.batch(32, _LENGTH)
    return [source.batch(32, _LENGTH) for _ in range(steps)]


def expert_checks(quick: bool) -> list[Check]:
    """Train dense, softmax-routed and cosine-routed models of equal operations."""
    steps, seeds = (60, 1) if quick else (600, 3)
    rivals = {
        "dense": _arch(),
        "softmax": _experts(8, 2, "softmax", capacity_factor=2.0),
        "cosine": _experts(8, 2, "cosine", capacity_factor=2.0),
    }
    dense = forward_flops(rivals["dense"], 32)
    for name in ("softmax", "cosine"):
        more = forward_flops(rivals[name], 32) / dense - 1
        print(f"{name}: {more:+.2%} operations per token against the dense model, its router")
    losses: dict[str, list[float]] = {name: [] for name in rivals}
    entropies: dict[str, list[float]] = {"softmax": [], "cosine": []}
    ranks: dict[str, list[float]] = {"softmax": [], "cosine": []}
    for seed in range(seeds):
        batches = _batches(steps, seed)
        for name, arch in rivals.items():
            model = build(arch, seed=seed)
            losses[name].append(_last(train_steps(model, batches, 3e-3)))
            if name in ranks:
                entropy, rank = _usage(model, batches[-1])
                entropies[name].append(entropy)
                ranks[name].append(rank)
    means = {name: statistics.mean(values) for name, values in losses.items()}
    for name, values in losses.items():
        print(f"{name:>8}: loss {', '.join(f'{value:.4f}' for value in values)}")
    for name, found in ranks.items():
        print(
            f"{name:>8}: usage entropy {statistics.mean(entropies[name]):.4f} of 1, effective rank "
            f"of features {statistics.mean(found):.2f} of {_HIDDEN}"
        )
    checks = [
        Check(
            "3 loss of 8 experts, top-2, over dense", means["softmax"] / means["dense"], 1, "lower"
        )
    ]
    if quick:
        return checks
    entropy, rank = (
        statistics.mean(found["cosine"]) / statistics.mean(found["softmax"])
        for found in (entropies, ranks)
    )
    return [
        *checks,
        Check("3 usage entropy, cosine over softmax router", entropy, 1.0, "higher"),
        Check("3 effective rank, cosine over softmax router", rank, 1.0, "higher"),
    ]


def clip_checks(quick: bool) -> list[Check]:
    """Train 32 experts under two clips of the same largest norm."""
    steps, seeds = (60, 1) if quick else (400, 3)
    arch = _experts(32, 1, "softmax", capacity_factor=1.25)
    shares: dict[str, list[float]] = {"sparse": [], "plain": []}
    spreads: dict[str, list[float]] = {"sparse": [], "plain": []}
    for seed in range(seeds):
        batches = _batches(steps, seed)
        limit = _typical_norm(arch, batches[: steps // 4], seed)
        for name, clipped in shares.items():
            model = build(arch, seed=seed)
            count = 32 if name == "sparse" else 1
            clip = SparseClip(
                model.parameters(), expert_parameters(model), max_norm=limit, num_experts=count
            )
            norms: list[float] = []
            losses = train_steps(model, batches, 3e-3, clip, norms)
            clipped.append(sum(norm > limit for norm in norms) / len(norms))
            spreads[name].append(_spread(losses))
    for name, clipped in shares.items():
        print(
            f"{name:>8} clip: {statistics.mean(clipped):.1%} of steps clipped, variance of "
            f"the loss around its trend {statistics.mean(spreads[name]):.2e}"
        )
    fewer, variance = (
        statistics.mean(found["sparse"]) / statistics.mean(found["plain"])
        for found in (shares, spreads)
    )
    same = Check("4 difference to torch's clip with one expert", _clip_error(), 0.0, "lower")
    if quick:
        return [same]
    return [
        same,
        Check("4 steps clipped, SparseClip over plain", fewer, 1.0, "lower"),
        Check("4 variance of the loss, SparseClip over plain", variance, 1.0, "lower"),
    ]


def sinkhorn_checks() -> list[Check]:
    """Train an S-BASE layer, and see how evenly it routes when it no longer balances."""
    batches = _batches(400, 0)
    model = build(_experts(16, 1, "sinkhorn"), seed=0)
    train_steps(model, batches, 3e-3)
    model.eval()
    with torch.no_grad():
        model(torch.cat(batches[-8:])[:, :-1])
    imbalance = max(load.imbalance for load in expert_loads(model))
    return [Check("6 load imbalance of a trained S-BASE layer", imbalance, 1.5, "lower")]


def _last(losses: list[float]) -> float:
    """Return the mean of the last tenth."""
    return statistics.mean(losses[-max(len(losses) // 10, 1) :])


@torch.no_grad()
def _usage(model: Transformer, batch: Tensor) -> tuple[float, float]:
    """Return the entropy of expert usage, and the effective rank of features after the layer.

    The rank is the exponential of the entropy of the normalized singular values (Roy and Vetterli
    2007).
    """
    model.eval()
    tokens = batch[:, :-1]
    hidden = model.run(tokens, torch.arange(tokens.shape[1]), model.attend).flatten(0, 1)
    values = torch.linalg.svdvals(hidden - hidden.mean(0))
    shares = values / values.sum()
    rank = float(torch.exp(-torch.special.xlogy(shares, shares).sum()))
    return min(load.entropy for load in expert_loads(model)), rank


def _typical_norm(arch: Architecture, batches: list[Tensor], seed: int) -> float:
    """Return the median norm of gradients in a trial without clipping."""
    model, norms = build(arch, seed=seed), []
    clip = SparseClip(model.parameters(), max_norm=1e9)
    train_steps(model, batches, 3e-3, clip, norms)
    return statistics.median(norms)


def _spread(losses: list[float]) -> float:
    """Return the variance of the last half of losses around a running mean of 11 steps."""
    half = losses[len(losses) // 2 :]
    trends = [statistics.mean(half[max(place - 5, 0) : place + 6]) for place in range(len(half))]
    return statistics.mean((loss - trend) ** 2 for loss, trend in zip(half, trends, strict=True))


def _clip_error() -> float:
    """Return the largest difference of gradients to torch's clip for a dense model."""
    models = [build(_arch(), seed=0) for _ in range(2)]
    for model in models:
        model(torch.arange(32)[None]).square().mean().backward()
    parameters = list(models[1].parameters())
    SparseClip(models[0].parameters(), expert_parameters(models[0]), max_norm=0.01)()
    torch.nn.utils.clip_grad_norm_(parameters, 0.01)
    pairs = zip(models[0].parameters(), parameters, strict=True)
    grads = [(a.grad, b.grad) for a, b in pairs]
    return max(float((a - b).abs().max()) for a, b in grads if a is not None and b is not None)
