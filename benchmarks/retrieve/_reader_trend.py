"""Perplexity of readers over stores of many sizes, and the law that foresees the largest."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._machine_text import Documents
from tokenizers import Tokenizer

from steelyard.catalog import Architecture
from steelyard.nn.transformer import build
from steelyard.retrieve.datastore import Candidates, Datastore
from steelyard.retrieve.readers import (
    CopyingReader,
    PassageReader,
    ReadingStudy,
    ReadingWindows,
    cut_windows,
    study_reading,
    train_reader,
)
from steelyard.train import EstimatorConfig

_K, _KNOWN, _WANTED, _POSITIONS = 3, 64, 64, 512
_LOWER = 5
"""Sizes of stores, of nine, that the law is fitted to."""


@dataclass(frozen=True, kw_only=True)
class TrendSize:
    """How much is trained and read."""

    steps: int
    windows: int
    heldout: int
    candidates: int
    width: int


def trend_checks(
    store: Datastore,
    documents: Documents,
    heldout: Documents,
    tokenizer: Tokenizer,
    size: TrendSize,
    folder: Path,
) -> list[Check]:
    """Train a reader and a larger one without a store, and read held-out text over stores."""
    options = {"known_tokens": _KNOWN, "wanted_tokens": _WANTED}
    training = cut_windows(documents, tokenizer, most=size.windows, **options)
    found = store.search(training.queries, 40).exclude(training.sources).top(_K)
    # Both read the text alone; the smaller one has a copier beside it that reads the passages.
    bare = replace(found, ids=np.full((len(training), _K), -1))
    small = CopyingReader(_trained(1, training, bare, tokenizer, size, folder / "small"))
    small.fit(training, found)
    shown = ", ".join(f"{weight:.2f}" for weight in small.weights)
    print(f"the copier is believed by length of the run, from 0: {shown}")
    large = _trained(2, training, bare, tokenizer, size, folder / "large")
    windows = cut_windows(heldout, tokenizer, most=size.heldout, seed=1, **options)
    study = study_reading(store, small, windows, candidates=size.candidates, k=_K)
    bare_large = float(large.losses(windows).mean())
    print(f"small reader without a store: perplexity {np.exp(study.alone):.2f}")
    print(f"large reader without a store: perplexity {np.exp(bare_large):.2f}")
    return [check for name in study.filters for check in _checks(name, study, bare_large)]


def _trained(
    scale: int,
    windows: ReadingWindows,
    found: Candidates,
    tokenizer: Tokenizer,
    size: TrendSize,
    folder: Path,
) -> PassageReader:
    """Train a reader; scale 2 has over twice the parameters of scale 1."""
    width = size.width * (3 if scale == 2 else 2) // 2
    arch = Architecture(
        name=f"reader-{scale}",
        num_layers=4 * scale,
        hidden_size=width,
        num_heads=width // 32,
        num_kv_heads=width // 32,
        head_dim=32,
        intermediate_size=width * 8 // 3 // 32 * 32,
        vocab_size=tokenizer.get_vocab_size(),
        max_positions=_POSITIONS,
    )
    reader = PassageReader(build(arch, seed=0), tokenizer)
    config = EstimatorConfig(
        steps=size.steps,
        batch_size=16,
        learning_rate=2e-3,
        warmup_steps=size.steps // 10,
        cooldown_steps=size.steps // 4,
        threads=2,
        checkpoint_every=0,
    )
    losses = train_reader(reader, windows, found, config, folder)
    count = sum(part.numel() for part in reader.model.parameters())
    print(f"reader of {count / 1e6:.1f} M: loss {losses[0]:.2f} to {np.mean(losses[-20:]):.2f}")
    return reader


def _checks(name: str, study: ReadingStudy, large: float) -> list[Check]:
    """Check that perplexity falls with the store, and that a law of small ones foresees it."""
    sizes, means = study.losses(name)
    shown = "  ".join(f"{size:,.0f}: {np.exp(v):.2f}" for size, v in zip(sizes, means, strict=True))
    print(f"perplexity by passages of the store, {name}: {shown}")
    rises = int((np.diff(means) >= 0).sum())
    gain = float(np.exp(study.alone - means[-1]))
    checks = [
        Check(f"3 sizes at which perplexity does not fall, {name}", float(rises), 0.0, "lower"),
        Check(f"3 perplexity without the store over that with it, {name}", gain, 1.0, "higher"),
    ]
    if name == "none":
        over = float(np.exp(means[-1] - large))
        checks.append(
            Check("3 perplexity over that of a larger reader without a store", over, 1.0, "lower")
        )
    told = study.foreseen(name, _LOWER)
    said, came = told.forecast.value, told.measurement.value
    print(f"law of the lower {_LOWER} sizes: {said:.4f} at the largest, was {came:.4f}")
    error = abs(float(np.exp(said - came)) - 1)
    name = f"4 error of the law's perplexity at the largest store, {name}"
    return [*checks, Check(name, error, 0.02, "lower")]
