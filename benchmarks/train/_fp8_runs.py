"""Small language models of bytes, trained in bf16 and in FP8 on the same batches."""

import copy
import hashlib
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.machine import processor_class
from torch import nn
from torch.nn import functional as F

import steelyard
from steelyard.catalog.architecture import Architecture
from steelyard.data.sources import default_sources
from steelyard.files import write_json
from steelyard.nn.fp8.convert import converted
from steelyard.nn.fp8.linear import OCP, Formats
from steelyard.nn.fp8.recipes import Recipe
from steelyard.nn.transformer import build

__all__ = [
    "Size",
    "Text",
    "continued",
    "evaluate",
    "kept",
    "library",
    "logs",
    "pretrained",
    "trained",
]

_KEPT = Path(__file__).parent.parent / "results" / "cells"
_BATCH, _LENGTH = 16, 128
_TEXT_BYTES = 3_000_000
_HELDOUT = 200
_CLIP, _WARM_UP = 1.0, 20
_BYTES = 256


@dataclass(frozen=True)
class Size:
    """A model and how long it is trained.

    Attributes:
        width: of the residual stream.
        layers: number of layers.
        steps: of the first training.
        more: steps of training after it with each constant.
        tuned: steps of fine-tuning.
        windows: held-out windows that metrics are measured on.
    """

    width: int
    layers: int
    steps: int
    more: int
    tuned: int = 0
    windows: int = _HELDOUT

    @property
    def name(self) -> str:
        """Width, layers and steps."""
        return f"w{self.width}-l{self.layers}-s{self.steps}"

    @property
    def architecture(self) -> Architecture:
        """A decoder of bytes."""
        return Architecture(
            name=self.name,
            hidden_size=self.width,
            num_layers=self.layers,
            num_heads=self.width // 32,
            num_kv_heads=self.width // 32,
            head_dim=32,
            intermediate_size=self.width * 8 // 3 // 16 * 16,
            vocab_size=_BYTES,
            max_positions=_LENGTH,
            tied_embeddings=False,
        )


@dataclass(frozen=True)
class Text:
    """Bytes to train on, and others kept for evaluation."""

    train: np.ndarray
    heldout: np.ndarray

    def batch(self, step: int, seed: int) -> torch.Tensor:
        """Return windows int64 [B, T + 1] of a step."""
        generator = np.random.default_rng((seed, step))
        starts = generator.integers(0, len(self.train) - _LENGTH - 1, _BATCH)
        return self._cut(self.train, starts)

    def windows(self, count: int) -> torch.Tensor:
        """Return evenly spread held-out windows int64 [count, T + 1]."""
        starts = np.linspace(0, len(self.heldout) - _LENGTH - 1, count).astype(np.int64)
        return self._cut(self.heldout, starts)

    @staticmethod
    def _cut(tokens: np.ndarray, starts: np.ndarray) -> torch.Tensor:
        rows = tokens[starts[:, None] + np.arange(_LENGTH + 1)]
        return torch.from_numpy(rows.astype(np.int64))


@cache
def library() -> Text:
    """Return modules of Python's library; every tenth file is held out."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    total = 0
    for index, path in enumerate(default_sources()):
        if total > _TEXT_BYTES:
            break
        data = path.read_bytes()
        parts[index % 10 == 9].append(data)
        total += len(data)
    train, heldout = (np.frombuffer(b"".join(part), dtype=np.uint8) for part in parts)
    return Text(train, heldout)


@cache
def logs() -> Text:
    """Return lines such as a server writes, drawn at random: what models are fine-tuned on."""
    generator = np.random.default_rng(0)
    levels, parts = ["INFO", "WARN", "ERROR"], ["disk", "cache", "queue", "router"]
    lines = []
    for second in range(12000):
        level = levels[generator.choice(3, p=[0.8, 0.15, 0.05])]
        part = parts[generator.integers(4)]
        size, worker = generator.integers(1, 500), generator.integers(8)
        clock = f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
        lines.append(f"{clock} {level} worker-{worker} {part}: {size} items in {2 * size} ms\n")
    data = np.frombuffer("".join(lines).encode(), dtype=np.uint8)
    cut = len(data) * 9 // 10
    return Text(data[:cut], data[cut:])


def trained(
    model: nn.Module,
    text: Text,
    steps: int,
    *,
    recipe: Recipe | None,
    formats: Formats = OCP,
    learning_rate: float = 2e-3,
    on_step: Callable[[], None] | None = None,
) -> list[float]:
    """Train a model on bf16 products, or on FP8 ones inside of the layers.

    Args:
        model: it is changed.
        text: what it is trained on.
        steps: optimizer steps.
        recipe: scaling of FP8; None for bf16.
        formats: formats of FP8.
        learning_rate: peak rate, reached after a warm-up and constant from then on.
        on_step: called after each step.

    Returns:
        Loss of each step; it ends early with NaN where training diverged.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    losses = []
    with converted(model, recipe, formats=formats) if recipe else nullcontext():
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * min(1.0, (step + 1) / _WARM_UP)
            loss = _loss(model, text.batch(step, 0))
            if not math.isfinite(loss.item()):
                return [*losses, math.nan]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if on_step is not None:
                on_step()
    return losses


def _loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of next bytes, nats."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@torch.no_grad()
def evaluate(
    model: nn.Module, text: Text, windows: int, recipe: Recipe | None = None
) -> tuple[float, float]:
    """Measure a model on held-out windows.

    Args:
        model: the model.
        text: its text.
        windows: how many.
        recipe: scaling of FP8; None for bf16.

    Returns:
        Mean loss in nats, and the part of bytes that were guessed right.
    """
    model.eval()
    total = right = 0.0
    tokens = text.windows(windows)
    with converted(model, recipe) if recipe else nullcontext():
        for part in tokens.split(2 * _BATCH):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(part[:, :-1]).flatten(0, 1).float()
            wanted = part[:, 1:].flatten()
            total += F.cross_entropy(logits, wanted, reduction="sum").item()
            right += (logits.argmax(1) == wanted).sum().item()
    model.train()
    return total / (windows * _LENGTH), right / (windows * _LENGTH)


@cache
def pretrained(size: Size) -> nn.Module:
    """Return a model trained in bf16; copy it before it is changed."""
    model = build(size.architecture, seed=0)
    trained(model, library(), size.steps, recipe=None)
    return model


def continued(size: Size, text: Text, steps: int, recipe: Recipe | None) -> nn.Module:
    """Return a copy of the trained model that was trained on."""
    model = copy.deepcopy(pretrained(size))
    trained(model, text, steps, recipe=recipe, learning_rate=5e-4)
    return model


def kept(name: str, make: Callable[[], Any], *, keep: bool) -> Any:
    """Return a cell's figures: those of an earlier run of the same sources, or new ones.

    Args:
        name: of the cell.
        make: computes the figures, plain JSON.
        keep: whether they are kept beside the results.

    Returns:
        The figures.
    """
    path = _KEPT / f"fp8_llm-{processor_class()}-{name}.json"
    if keep and path.exists():
        found = json.loads(path.read_text())
        if found["state"] == _state():
            return found["figures"]
    figures = make()
    if keep:
        write_json(path, {"state": _state(), "figures": figures})
    return figures


@cache
def _state() -> str:
    """Return a hash of the sources that figures depend on."""
    root = Path(steelyard.__file__).parent / "nn"
    files = [Path(__file__), *sorted(root.glob("fp8/*")), *sorted(root.glob("numerics/f*.py"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files if path.is_file()))
    return digest.hexdigest()[:16]
