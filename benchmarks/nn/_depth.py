"""Norm schemes in deep stacks: what one step changes, and whether 96 layers learn."""

import math
from typing import Any

import torch
from benchmarks.common import Check
from benchmarks.nn._tiny import Chain, tiny, train_steps

from steelyard.nn.stability import growth_exponent, probe
from steelyard.nn.transformer import build

__all__ = ["depth_checks"]

_SCHEMES: dict[str, dict[str, Any]] = {
    "DeepNorm": {"deepnorm": True},
    "post-LN": {"residual_norm": True},
    "SubLN": {"subln": True},
}
_DEEP, _STEPS, _RATE = 96, 100, 1e-3


def depth_checks(quick: bool) -> list[Check]:
    """Measure updates by depth; in the full version also train stacks of 96 layers."""
    growth = _growth([12, 24, 48] if quick else [12, 24, 48, 96, 192])
    checks = [
        Check("1 growth of updates with depth, DeepNorm", growth["DeepNorm"], 0.1, "lower"),
        Check("1 growth of updates with depth, post-LN", growth["post-LN"], 0.4, "higher"),
    ]
    if quick:
        return checks
    learnt = _learnt()
    name = f"1 share learnt at {_DEEP} layers"
    return [
        *checks,
        Check(f"{name}, post-LN", learnt["post-LN"], 0.15, "lower"),
        Check(f"{name}, DeepNorm", learnt["DeepNorm"], 0.5, "higher"),
        Check(f"{name}, SubLN", learnt["SubLN"], 0.5, "higher"),
    ]


def _growth(depths: list[int]) -> dict[str, float]:
    """Return the power of the depth with which one step's change grows, by scheme."""
    tokens = torch.randint(0, 64, (4, 32), generator=torch.Generator().manual_seed(0))
    found = {}
    for name, scheme in _SCHEMES.items():
        updates = {}
        for moves_all in (False, True):
            updates[moves_all] = [
                probe(_model(depth, scheme), tokens, moves_all=moves_all).update for depth in depths
            ]
        found[name] = growth_exponent(depths, updates[False])
        everything = growth_exponent(depths, updates[True])
        shown = ", ".join(f"{update:.2e}" for update in updates[False])
        print(
            f"{name:>9}: updates {shown} at {depths} layers; exponent {found[name]:.3f}, "
            f"{everything:.3f} when gains, biases and tables move too"
        )
    return found


def _learnt() -> dict[str, float]:
    """Return how far each scheme comes from even guesses to the chain's own entropy."""
    found = {}
    for name, scheme in _SCHEMES.items():
        chain = Chain(64, seed=0)
        batches = [chain.batch(8, 33) for _ in range(_STEPS)]
        losses = train_steps(_model(_DEEP, scheme), batches, _RATE)
        last = sum(losses[-5:]) / 5
        found[name] = (math.log(64) - last) / (math.log(64) - chain.floor)
        print(f"{name:>9}: {_DEEP} layers, loss {losses[0]:.2f} to {last:.2f} in {_STEPS} steps")
    return found


def _model(layers: int, scheme: dict[str, Any]):
    """Build a stack of width 64."""
    return build(tiny(layers, 64, embedding_scale=8.0, **scheme), seed=0)
