"""Recipes of the studies that benchmarks run themselves: a few minutes of processor time each."""

from dataclasses import replace
from typing import Any

import numpy as np
from benchmarks.train._own_study import OwnRun, own_runs, shape
from benchmarks.train._own_text import BYTES, abstracts, write_pool

from steelyard.data.shards import TokenShards
from steelyard.train import TrainConfig
from steelyard.train.adaptive_batch import AdaptiveBatch
from steelyard.train.study import StudyRecipe
from steelyard.train.weight_average import WeightAverage

__all__ = [
    "POOLS",
    "POOL_TOKENS",
    "adaptive_runs",
    "batch_runs",
    "cooldown_runs",
    "horizon_runs",
    "ladder_runs",
    "pool_runs",
    "repeat_runs",
    "routed_runs",
    "size_runs",
]

_LENGTH = 64
_SMOOTH = 16
"""Width whose runs of other seeds differ by a tenth of a percent; at 32 some learn in a jump,
soon or late, and end several percent apart."""
POOL_TOKENS = 20_480
POOLS = ("first", "second", "third", "fourth")
_DAMAGE = (0.0, 0.05, 0.12, 0.25)
"""Share of the tokens of a pool that are drawn anew from all tokens."""


def _train(width: int, steps: int, **changes: Any) -> TrainConfig:
    """Return the common run: 512 tokens a step, a rate that suits the width."""
    plain: dict[str, Any] = {
        "architecture": shape(width),
        "sequence_length": _LENGTH,
        "batch_size": 8,
        "warmup_steps": max(steps // 50, 5),
        "learning_rate": 0.32 / width,
        "eval_tokens": 16384,
        "threads": 1,
    }
    return TrainConfig(steps=steps, **(plain | changes))


def repeat_runs(quick: bool) -> list[OwnRun]:
    """Return runs of three sizes on seven nested, doubling amounts of text, at three lengths."""
    train = _train(32, 1280)
    unique = 2 ** np.arange(0, 7) * 10_240
    recipe = StudyRecipe(
        train=train,
        shapes=((16, 1), (32, 1), (64, 1)),
        unique_tokens=tuple(int(item) for item in unique),
        lengths=(0.25, 0.5, 1.0),
    )
    return own_runs("repeats", recipe, abstracts(), quick=quick)


def size_runs(quick: bool) -> list[OwnRun]:
    """Return runs of four sizes at four lengths."""
    recipe = StudyRecipe(
        train=_train(32, 1600),
        shapes=((16, 1), (32, 1), (48, 1), (64, 1)),
        lengths=(0.25, 0.4, 0.63, 1.0),
    )
    return own_runs("sizes", recipe, abstracts(), quick=quick)


def ladder_runs(quick: bool) -> list[OwnRun]:
    """Return runs of three sizes of `recipes/ladder.toml`, at its rate, a fifth longer."""
    wide = {"head_dim": 32, "num_heads": 3, "num_kv_heads": 3, "max_positions": 2 * _LENGTH}
    train = _train(
        96,
        240,
        architecture=shape(96, 3, **wide),
        sequence_length=2 * _LENGTH,
        warmup_steps=15,
        learning_rate=4.7e-3,
    )
    recipe = StudyRecipe(
        train=train,
        shapes=((32, 2), (64, 2), (96, 3)),
        lengths=(0.25, 0.4, 0.63, 1.0),
        seeds=(0, 1),
    )
    return own_runs("ladder", recipe, abstracts(), quick=quick)


def pool_runs(quick: bool) -> list[OwnRun]:
    """Return runs on four pools of falling quality and on the unions of the best of them."""
    averages = (WeightAverage(kind="ema", decay=0.98),)
    train = _train(32, 800, eval_every=20, eval_tokens=8192, averages=averages)
    folder, names = _pools()
    recipe = StudyRecipe(
        train=train,
        pools=names,
        cooldown_fractions=(0.0,),
        seeds=(0, 1, 2),
    )
    return own_runs("pools", recipe, folder, quick=quick)


def _pools() -> tuple[Any, tuple[str, ...]]:
    """Write the pools: each a part of the text of its own, with a share of tokens replaced."""
    base = TokenShards(abstracts(), check=False)
    windows = -(-len(POOLS) * POOL_TOKENS // _LENGTH)
    tokens = base.batch(0, windows, _LENGTH, 0)[:, :-1].ravel()
    generator = np.random.default_rng(0)
    parts = []
    for place, share in enumerate(_DAMAGE):
        part = tokens[place * POOL_TOKENS :][:POOL_TOKENS].copy()
        drawn = generator.choice(tokens, POOL_TOKENS)
        parts.append(np.where(generator.random(POOL_TOKENS) < share, drawn, part))
    folder = abstracts()
    for name, part in zip(POOLS, parts, strict=True):
        folder = write_pool(f"pools-{POOL_TOKENS}", name, part)
    unions = []
    for count in range(2, len(POOLS) + 1):
        unions.append(f"best{count}")
        folder = write_pool(f"pools-{POOL_TOKENS}", unions[-1], np.concatenate(parts[:count]))
    return folder, (*POOLS, *unions)


def batch_runs(quick: bool) -> list[OwnRun]:
    """Return runs at a constant rate with six batches and three rates each."""
    averages = tuple(WeightAverage(kind="ema", decay=decay) for decay in (0.9, 0.98))
    train = _train(
        _SMOOTH,
        1250,
        eval_every=50,
        eval_tokens=8192,
        averages=averages,
        weight_decay=0.0,
        measure=("noise-scale-per-example",),
        measure_every=25,
    )
    recipe = StudyRecipe(
        train=train,
        batch_sizes=(2, 4, 8, 16, 32, 64),
        rate_factors=(0.5, 1.0, 2.0),
        cooldown_fractions=(0.0,),
    )
    return own_runs("batches", recipe, abstracts(), quick=quick)


def adaptive_runs(quick: bool) -> tuple[list[OwnRun], dict[float, list[OwnRun]]]:
    """Return runs on bytes: five constant batches, and batches that adapt at three exchange rates.

    Of bytes a model learns soon what is common, and the noise scale grows tenfold on the way. What
    the runs are like was chosen on another seed.

    Returns:
        Runs of constant batches, with averages of their weights, and runs by exchange rate.
    """
    sequences, evaluations = 8192, 64
    wide = _train(
        32,
        sequences // 8,
        architecture=shape(32, vocab_size=BYTES),
        eval_every=sequences // 8 // evaluations,
        eval_tokens=8192,
        weight_decay=0.0,
        warmup_steps=12,
    )
    wide = replace(
        wide, averages=tuple(WeightAverage(kind="ema", decay=decay) for decay in (0.9, 0.98))
    )
    recipe = StudyRecipe(
        train=wide,
        batch_sizes=(4, 8, 16, 32, 64),
        rate_factors=(0.5, 1.0, 2.0),
        cooldown_fractions=(0.0,),
        seeds=(0, 1),
    )
    data = abstracts(BYTES)
    constant = own_runs("byte-batches", recipe, data, quick=quick)
    # The lowest rate was the best of most batches: lower ones are tried on both sides.
    lower = replace(recipe, rate_factors=(0.25,))
    constant = [*constant, *own_runs("byte-batches-lower", lower, data, quick=quick)]
    found = {}
    for exchange in (0.0, 16.0, 64.0):
        pilot = AdaptiveBatch(largest=16, exchange=exchange)
        small = replace(wide, accumulation=2, adaptive_batch=pilot)
        grown = replace(recipe, train=small, batch_sizes=(4,), rate_factors=(0.25, 0.5, 1.0))
        found[exchange] = own_runs(f"byte-adaptive-{exchange:g}", grown, data, quick=quick)
    return constant, found


def horizon_runs(quick: bool) -> list[OwnRun]:
    """Return runs of a small batch at five rates, cooled down at six lengths."""
    train = _train(_SMOOTH, 4000, batch_size=4, warmup_steps=25)
    recipe = StudyRecipe(
        train=train,
        lengths=(1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0),
        rate_factors=(0.25, 0.5, 1.0, 2.0, 4.0),
        seeds=(0, 1, 2),
    )
    return own_runs("horizons", recipe, abstracts(), quick=quick)


def cooldown_runs(quick: bool) -> list[OwnRun]:
    """Return cooled-down runs of two shapes and two shares beside cosines, at three lengths."""
    steps = 1280
    averages = (
        WeightAverage(kind="swa", window=steps // 16),
        WeightAverage(kind="lawa", window=steps // 64, count=5),
        WeightAverage(kind="ema", decay=0.98),
    )
    train = _train(_SMOOTH, steps, eval_every=steps // 4, averages=averages)
    recipe = StudyRecipe(
        train=train,
        lengths=(0.25, 0.5, 1.0),
        schedules=("1-sqrt", "linear", "cosine"),
        cooldown_fractions=(0.05, 0.2),
        rate_factors=(0.5, 1.0, 2.0),
        seeds=(0, 1),
    )
    return own_runs("cooldowns", recipe, abstracts(), quick=quick)


def routed_runs(quick: bool) -> dict[str, list[OwnRun]]:
    """Return dense and routed runs of three sizes, by router."""
    found = {}
    for router in ("sinkhorn", "hash"):
        routed = shape(
            32,
            2,
            num_experts=4,
            experts_per_token=1,
            moe_intermediate_size=shape(32).intermediate_size,
            moe_every=2,
            router=router,
        )
        recipe = StudyRecipe(
            train=replace(_train(32, 800), architecture=routed),
            shapes=((16, 2), (32, 2), (64, 2)),
            # The dense runs are the same for every router.
            experts=(1, 4, 16) if router == "sinkhorn" else (4, 16),
        )
        found[router] = own_runs(f"routed-{router}", recipe, abstracts(), quick=quick)
    return found
