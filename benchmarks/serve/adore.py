"""Bounded caches against full attention: quality, gain of rebuilding, speed at 8K tokens.

A byte-level decoder is trained here on real text with records that are recalled at a distance
(`_recall_model`, kept in the user's cache folder), then each policy decodes held-out sequences byte
by byte. No policy's model is fine-tuned to its cache. Speed is that of a decoder with random
weights and forced lengths, in turns with the same engine's full attention.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from benchmarks.common import Check
from benchmarks.serve._long_context import speed_checks
from benchmarks.serve._recall_model import Recipe, cache_dir, trained
from benchmarks.serve._recall_text import real_text, streams

from steelyard.nn.transformer import Transformer
from steelyard.serve.sparse.controller import Controller
from steelyard.serve.sparse.evaluate import Evaluation, controller_recall, evaluate, evaluate_full
from steelyard.serve.sparse.policies import H2O, Adore, RetentionPolicy, Sinks, TopK, Window
from steelyard.serve.sparse.training import train_controller

PAPER = ["72-adore"]


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """Sizes of one run of the quality part.

    Attributes:
        recipe: recipe of the language model.
        capacity: tokens each policy keeps, m.
        rebuild: tokens rebuilt per step, R.
        top: tokens a controller's row marks, K.
        num_sequences: sequences evaluated.
        length: bytes of each.
        controller_batches: (updates, sequences, bytes) of the controller's training.
        judged: whether the model is trained long enough to recall, so that gaps in loss and recall
            mean something; the oracle is run then too.
    """

    recipe: Recipe
    capacity: int
    rebuild: int
    top: int
    num_sequences: int
    length: int
    controller_batches: tuple[tuple[int, int, int], ...]
    judged: bool


_FULL = _Setting(
    recipe=Recipe(),
    capacity=256,
    rebuild=8,
    top=96,
    num_sequences=8,
    length=4096,
    controller_batches=((100, 4, 512), (80, 2, 1024), (40, 1, 2048), (30, 1, 4096)),
    judged=True,
)
_QUICK = _Setting(
    recipe=Recipe(
        hidden_size=192,
        num_layers=2,
        phases=((24, 8, 256, 8, 32), (4, 4, 512, 8, 64)),
        max_positions=2048,
    ),
    capacity=64,
    rebuild=8,
    top=24,
    num_sequences=4,
    length=448,
    controller_batches=((20, 4, 256), (4, 2, 448)),
    judged=False,
)


def run(quick: bool) -> list[Check]:
    """Train what is not cached, evaluate each policy, time the engine."""
    return [*quality_checks(_QUICK if quick else _FULL), *speed_checks(quick)]


def quality_checks(setting: _Setting) -> list[Check]:
    """Compare the policies on held-out text."""
    text, name = real_text()
    cut = int(len(text) * 0.95)
    model = trained(setting.recipe, log=True)
    controller = _controller(model, setting, text[:cut])
    rng = np.random.default_rng(1)
    held = streams(
        text[cut:],
        rng,
        setting.num_sequences,
        setting.length,
        gap=(20, 100),
        distance=2 * setting.capacity,
    )
    tokens = np.stack([item.tokens for item in held])
    spans = [
        [span for span, is_code in zip(item.recalls, item.codes, strict=True) if is_code]
        for item in held
    ]
    parameters = sum(item.numel() for item in model.parameters()) / 1e6
    print(
        f"{parameters:.1f}M parameters, {setting.recipe.num_steps} updates on {name}; "
        f"{tokens.size} bytes held out, m = {setting.capacity}"
    )
    found = _evaluate_all(model, controller, setting, tokens, spans)
    rows = np.sort(rng.choice(np.arange(setting.length // 4, setting.length), 64, replace=False))
    recall = controller_recall(model, controller, tokens[:2], rows, top=setting.top)
    checks = [
        Check("4 controller's recall of top-K mass", recall, 0.6, "higher"),
        _equality(model, controller, tokens),
    ]
    if setting.judged:
        return [*_gap_checks(found, spans), *checks]
    print(
        "a model trained for seconds recalls nothing at a distance: loss and recall are left to "
        "the full run"
    )
    return checks


def _evaluate_all(
    model: Transformer,
    controller: Controller,
    setting: _Setting,
    tokens: np.ndarray,
    spans: list[list[tuple[int, int]]],
) -> dict[str, Evaluation]:
    """Decode with each policy and print the table."""
    size, rebuild = setting.capacity, setting.rebuild
    policies: dict[str, RetentionPolicy] = {
        "window": Window(size),
        "sinks": Sinks(size),
        "sinks renumbered": Sinks(size, renumber=True),
        "h2o": H2O(size),
        "adore R=0": Adore(capacity=size, rebuild=0),
        f"adore R={rebuild}": Adore(capacity=size, rebuild=rebuild),
    }
    full = evaluate_full(model, tokens)
    found = {"full": full}
    print(
        f"{'policy':18s} {'nats':>7s} {'gap':>7s} {'recall':>7s} {'agree':>7s} {'rebuilt':>8s} "
        f"{'KV KiB':>8s} {'bytes/s':>9s}"
    )
    _print("full", full, full, spans)
    for name, policy in policies.items():
        found[name] = evaluate(
            model, policy, tokens, controller=controller if isinstance(policy, Adore) else None
        )
        _print(name, found[name], full, spans)
    if setting.judged:  # it attends twice to everything: two sequences tell enough
        exact = evaluate_full(model, tokens[:2])
        _print("full, two", exact, exact, spans[:2])
        _print(
            "top-K oracle, two", evaluate(model, TopK(setting.top), tokens[:2]), exact, spans[:2]
        )
    return found | {"adore": found[f"adore R={rebuild}"]}


def _print(
    name: str, item: Evaluation, full: Evaluation, spans: list[list[tuple[int, int]]]
) -> None:
    """Print a line of the table."""
    gap, recall = item.cross_entropy - full.cross_entropy, item.recall_accuracy(spans)
    numbers = (
        f"{item.cross_entropy:7.4f} {gap:7.4f} {recall:7.3f} {item.agreement(full):7.3f} "
        f"{item.rebuilt_per_token:8.3f}"
    )
    print(
        f"{name:18s} {numbers} {item.kv_bytes_per_request / 1024:8.0f} {item.tokens_per_s:9.0f}",
        flush=True,
    )


def _gap_checks(found: dict[str, Evaluation], spans: list[list[tuple[int, int]]]) -> list[Check]:
    """Turn the table into the checks 1 and 2."""
    gap = {name: item.cross_entropy - found["full"].cross_entropy for name, item in found.items()}
    recall = {name: item.recall_accuracy(spans) for name, item in found.items()}
    return [
        Check(
            "1 loss gap over that of sinks",
            gap["adore"] / min(gap["sinks"], gap["sinks renumbered"]),
            0.5,
            "lower",
        ),
        Check("1 loss gap over that of H2O", gap["adore"] / gap["h2o"], 0.8, "lower"),
        Check(
            "1 recall accuracy over full attention",
            recall["adore"] / (recall["full"] or float("nan")),
            0.9,
            "higher",
        ),
        Check("1 recall accuracy of the window", recall["window"], 0.3, "lower"),
        Check(
            "2 share of the gap closed by rebuilding",
            1 - gap["adore"] / gap["adore R=0"],
            0.25,
            "higher",
        ),
    ]


def _equality(model: Transformer, controller: Controller, tokens: np.ndarray) -> Check:
    """Compare likeliest tokens with a cache that holds everything."""
    short = tokens[:, :384]
    ample = evaluate(model, Adore(capacity=384, rebuild=8), short, controller=controller)
    return Check(
        "5 tokens that differ where the cache holds the whole sequence",
        float((ample.choices != evaluate_full(model, short).choices).sum()),
        0.0,
        "lower",
    )


def _controller(model: Transformer, setting: _Setting, text: bytes) -> Controller:
    """Return the trained controller, from the cache or by training it."""
    plan = {
        "recipe": setting.recipe.key,
        "batches": setting.controller_batches,
        "top": setting.top,
        "version": 2,
    }
    key = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / f"controller-{key}.safetensors"
    if path.exists():
        return Controller.load(path)
    sizes = [
        (count, length)
        for updates, count, length in setting.controller_batches
        for _ in range(updates)
    ]
    rng = np.random.default_rng(2)

    def batches():
        for count, length in sizes:
            yield np.stack(
                [
                    item.tokens
                    for item in streams(
                        text, rng, count, length, gap=(20, 100), distance=length // 8
                    )
                ]
            )

    def progress(update: int, loss: float) -> None:
        if update % 10 == 0:
            print(f"controller update {update} of {len(sizes)}: loss {loss:.3f}", flush=True)

    controller = train_controller(
        model, batches(), top=setting.top, num_updates=len(sizes), progress=progress
    )
    controller.save(path)
    return controller
