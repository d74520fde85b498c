"""Perplexity of readers over stores of many sizes, and the law that foresees the largest."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._machine_text import Documents
from benchmarks.retrieve._store_equality import SEEDS
from tokenizers import Tokenizer

from steelyard.catalog import Architecture
from steelyard.laws import RunTable, fit, law_named
from steelyard.nn.transformer import build
from steelyard.retrieve.datastore import Candidates, Datastore, StudyCell, study_grid
from steelyard.retrieve.readers import (
    CopyingReader,
    PassageReader,
    ReadingWindows,
    cut_windows,
    train_reader,
)
from steelyard.train import EstimatorConfig

_K, _KNOWN, _WANTED, _POSITIONS = 3, 64, 64, 512
_SHARES = tuple(10.0 ** (place / 4 - 2) for place in range(9))
"""Sizes of stores, four a decade; the lower five are enough for the three numbers of a law."""


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
    asked = store.search(windows.queries, size.candidates)
    cells = study_grid(
        asked,
        lambda top: small.losses(windows, top),
        shares=_SHARES,
        seeds=SEEDS,
        filters={"none": lambda item: item, "clean": lambda item: _cleaned(item, windows)},
    )
    alone = {
        "small": float(small.losses(windows).mean()),
        "large": float(large.losses(windows).mean()),
    }
    for name, value in alone.items():
        print(f"{name} reader without a store: perplexity {np.exp(value):.2f}")
    checks = []
    for name in ("none", "clean"):
        checks += _checks(name, [cell for cell in cells if cell.filters == name], alone)
    return checks


def _cleaned(found: Candidates, windows: ReadingWindows) -> Candidates:
    return found.decontaminate(windows.answers)


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


def _checks(name: str, cells: Sequence[StudyCell], alone: dict[str, float]) -> list[Check]:
    """Check that perplexity falls with the store, and that a law of small ones foresees it."""
    means = [
        float(np.mean([cell.value for cell in cells if cell.share == share])) for share in _SHARES
    ]
    shown = "  ".join(
        f"{share:.3g}: {np.exp(v):.2f}" for share, v in zip(_SHARES, means, strict=True)
    )
    print(f"perplexity by share of the store, {name}: {shown}")
    rises = sum(later >= earlier for earlier, later in itertools.pairwise(means))
    gain = np.exp(alone["small"] - means[-1])
    checks = [
        Check(f"3 sizes at which perplexity does not fall, {name}", float(rises), 0.0, "lower"),
        Check(f"3 perplexity without the store over that with it, {name}", gain, 1.0, "higher"),
    ]
    if name == "none":
        over = float(np.exp(means[-1] - alone["large"]))
        checks.append(
            Check("3 perplexity over that of a larger reader without a store", over, 1.0, "lower")
        )
    passages = np.array([share * cells[-1].passages for share in _SHARES])
    lower = int(0.6 * len(_SHARES))
    table = RunTable.read({"store": passages[:lower], "loss": np.array(means[:lower])})
    law = fit(law_named("power_law_floor:store"), table, "loss")
    said = law.predict({"store": passages[-1:]}, extrapolate=True).first
    error = abs(float(np.exp(said.value - means[-1])) - 1)
    print(f"law of the lower {lower} sizes: {said.value:.4f} at the largest, was {means[-1]:.4f}")
    name = f"4 error of the law's perplexity at the largest store, {name}"
    return [*checks, Check(name, error, 0.02, "lower")]
