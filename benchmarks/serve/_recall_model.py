"""A small decoder of bytes trained to recall records at a distance, cached by its recipe."""

import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from benchmarks.serve._recall_text import real_text, streams
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.files import atomic_path
from steelyard.nn.attention import causal_attention
from steelyard.nn.layer import DecoderLayer
from steelyard.nn.transformer import Transformer, build

__all__ = ["Recipe", "architecture", "cache_dir", "trained"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the model is made; its hash names the cached file.

    Attributes:
        hidden_size: width.
        num_layers: layers.
        phases: (steps, sequences, bytes per sequence, shortest text between records, longest) of
            each part of the training.
        max_positions: longest context.
        seed: seed of weights and data.
        theta: base of the wavelengths of positions.
        aliases: share of the records that name another one.
    """

    hidden_size: int = 256
    num_layers: int = 4
    phases: tuple[tuple[int, int, int, int, int], ...] = (
        (150, 16, 256, 8, 32),
        (150, 8, 512, 8, 64),
        (60, 2, 2048, 20, 100),
        (16, 1, 4096, 20, 100),
    )
    max_positions: int = 8192
    seed: int = 0
    theta: float = 1e7
    aliases: float = 0.0

    @property
    def num_steps(self) -> int:
        """Updates in all."""
        return sum(phase[0] for phase in self.phases)

    @property
    def key(self) -> str:
        """Hash of everything that decides the weights."""
        # What came later counts only where it is used: files cached before keep their names.
        later = {"theta": 1e7, "aliases": 0.0}
        decides = {name: at for name, at in asdict(self).items() if later.get(name) != at}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def cache_dir() -> Path:
    """Return the user's cache folder for trained models of benchmarks."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "steelyard" / "benchmarks"


def _positions(rng: np.random.Generator, count: int, length: int, limit: int) -> torch.Tensor:
    """Draw rising positions with jumps, so that short sequences teach long distances."""
    rows = np.tile(np.arange(length), (count, 1))
    for row in rows:
        if limit > length and rng.random() < 0.8:
            cuts = rng.integers(0, length, int(rng.integers(1, 6)))
            spare = int(rng.integers(0, limit - length))
            shares = np.diff(
                np.concatenate([[0], np.sort(rng.integers(0, spare + 1, len(cuts) - 1)), [spare]])
            )
            for cut, share in zip(cuts, shares, strict=True):
                row[cut:] += share
    return torch.from_numpy(rows)


def architecture(recipe: Recipe) -> Architecture:
    """Return the decoder's shape: Llama-like, one key head per query head."""
    return Architecture(
        name=f"recall-{recipe.hidden_size}",
        hidden_size=recipe.hidden_size,
        num_layers=recipe.num_layers,
        num_heads=recipe.hidden_size // 64,
        num_kv_heads=recipe.hidden_size // 64,
        head_dim=64,
        intermediate_size=recipe.hidden_size * 11 // 4,
        vocab_size=256,
        max_positions=recipe.max_positions,
        tied_embeddings=True,
        qkv_bias=True,
        rope_theta=recipe.theta,
    )


@torch.no_grad()
def _start_recall(model: Transformer, seed: int) -> None:
    """Start two layers with a recall circuit, which takes hours of training to appear by itself.

    Layer 0: head 0 attends one token back, head 1 two back, by biases alone; each writes what it
    read into a subspace of its own. Layer 1: heads 0 and 1 look for tokens whose predecessor is the
    current token (head 1: also the one before), in the slowly turning half of the head, and copy
    the token found towards the output. All of it is trained on like the rest.

    Source: Olsson et al. 2022 (arXiv 2209.11895), induction heads.
    """
    width = model.architecture.hidden_size
    size, draw = 64, torch.Generator().manual_seed(seed + 1)
    basis = torch.linalg.qr(torch.randn(width, 2 * size, generator=draw))[0]
    reads = torch.randn(2, size, width, generator=draw) / (width - 2 * size) ** 0.5
    reads -= reads @ basis @ basis.T
    model.embedding.weight -= model.embedding.weight @ basis @ basis.T
    model.embedding.weight *= 1.4
    first, second = cast(list[DecoderLayer], list(model.layers)[:2])
    for head in (0, 1):
        _look_back(first, head, head + 1, model.architecture.rope_theta)
        _head_rows(first, head, 2)[:] = reads[0]
        first.out.weight[:, head * size : (head + 1) * size] = (
            0.08 * basis[:, head * size : (head + 1) * size]
        )
        query, key = _head_rows(second, head, 0), _head_rows(second, head, 1)
        slow = _slow_dimensions(size)
        parts = [slow] if head == 0 else [slow[::2], slow[1::2]]
        query[:], key[:] = 0.1 * query, 0.1 * key
        for part, dims in enumerate(parts):
            before = basis[:, : len(dims)].T if part else reads[0, : len(dims)]
            after = basis[:, part * size : part * size + len(dims)].T
            query[dims] = 3.0 * before
            key[dims] = 3.0 * after
        _head_rows(second, head, 2)[:] = reads[1]
        second.out.weight[:, head * size : (head + 1) * size] = 0.15 * reads[1].T


def _head_rows(layer: DecoderLayer, head: int, part: int, *, bias: bool = False) -> torch.Tensor:
    """Return the rows of a head's queries (part 0), keys (1) or values (2), a view."""
    size = layer.head_dim
    first = (part * layer.heads[0] + head) * size
    return (layer.qkv.bias if bias else layer.qkv.weight)[first : first + size]


def _look_back(layer: DecoderLayer, head: int, distance: int, theta: float) -> None:
    """Let a head attend `distance` tokens back, whatever they are."""
    half = layer.head_dim // 2
    angles = distance * theta ** (-torch.arange(half) / half)
    _head_rows(layer, head, 0)[:] = 0.0
    _head_rows(layer, head, 1)[:] = 0.0
    _head_rows(layer, head, 1, bias=True)[:] = torch.cat(
        [torch.full((half,), 5.0), torch.zeros(half)]
    )
    _head_rows(layer, head, 0, bias=True)[:] = 5.0 * torch.cat([angles.cos(), -angles.sin()])


def _slow_dimensions(size: int) -> torch.Tensor:
    """Return the dimensions of a head that turn little over thousands of tokens."""
    half = size // 2
    pairs = torch.arange(half // 2, half)
    return torch.stack([pairs, pairs + half], 1).flatten()


def trained(recipe: Recipe, *, every: int = 20, log: bool = True) -> Transformer:
    """Return the trained model, from the cache or by training it.

    A killed training goes on where it was.

    Args:
        recipe: what to train.
        every: updates between saved states.
        log: print progress.

    Returns:
        The model, in evaluation mode.
    """
    path = cache_dir() / f"recall-{recipe.key}.pt"
    model = build(architecture(recipe), seed=recipe.seed)
    _start_recall(model, recipe.seed)
    optimizers = _optimizers(model)
    done = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        done = state["step"]
        for optimizer, saved in zip(optimizers, state.get("optimizers", []), strict=False):
            optimizer.load_state_dict(saved)
    if done < recipe.num_steps:
        _train(model, optimizers, recipe, done, path, every, log)
    return model.eval()


class _Orthogonal(torch.optim.Optimizer):
    """Momentum whose update is the nearest orthogonal matrix, in float32.

    PyTorch's own computes in bfloat16, which is slow on processors without units for it.

    Source: Jordan et al. 2024, Muon (quintic Newton-Schulz iteration).
    """

    def __init__(self, matrices: Sequence[torch.Tensor], lr: float, momentum: float = 0.95) -> None:
        """Take two-dimensional parameters."""
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all matrices."""
        del closure
        for group in self.param_groups:
            for matrix in group["params"]:
                buffer = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                buffer.lerp_(matrix.grad, 1 - group["momentum"])
                update = _orthogonalize(matrix.grad.lerp(buffer, group["momentum"]))
                matrix.add_(
                    update, alpha=-group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                )


def _orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Bring all singular values near 1 in five steps."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


def _optimizers(model: Transformer) -> list[torch.optim.Optimizer]:
    """Orthogonalized momentum for matrices, Adam for the rest."""
    matrices = [
        item
        for name, item in model.named_parameters()
        if item.ndim == 2 and "embedding" not in name
    ]
    rest = [
        item for name, item in model.named_parameters() if item.ndim != 2 or "embedding" in name
    ]
    return [
        _Orthogonal(matrices, lr=0.02),
        torch.optim.AdamW(rest, lr=4e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _rate(step: int, total: int) -> float:
    """Return the share of the full rate: warm-up, constant, then down to 5 % over the last 40 %."""
    return min(1.0, (step + 1) / 20, max(0.05, (total - step) / (0.4 * total)))


def _batch(recipe: Recipe, text: bytes, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the batch of one update; it depends on the recipe and the step only."""
    rng = np.random.default_rng((recipe.seed, step))
    ends = np.cumsum([phase[0] for phase in recipe.phases])
    _, count, length, shortest, longest = recipe.phases[
        int(np.searchsorted(ends, step, side="right"))
    ]
    rows = streams(text, rng, count, length + 1, gap=(shortest, longest), aliases=recipe.aliases)
    tokens = torch.from_numpy(np.stack([row.tokens for row in rows]))
    return tokens, _positions(rng, count, length, recipe.max_positions // 2)


def _train(
    model: Transformer,
    optimizers: list[torch.optim.Optimizer],
    recipe: Recipe,
    done: int,
    path: Path,
    every: int,
    log: bool,
) -> None:
    """Run the updates that are left."""
    text, name = real_text()
    text = text[: int(len(text) * 0.95)]
    rates = [group["lr"] for group in _optimizers(model) for group in group.param_groups]
    start = time.perf_counter()
    for step in range(done, recipe.num_steps):
        tokens, positions = _batch(recipe, text, step)
        share = _rate(step, recipe.num_steps)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
        total = 0.0
        for rows, places in zip(tokens.split(8), positions.split(8), strict=True):
            logits = model.head(model.run(rows[:, :-1], places, causal_attention))
            loss = (
                F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
                * len(rows)
                / len(tokens)
            )
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if not math.isfinite(total):
            raise RuntimeError(f"training diverged at step {step}")
        if log and step % 10 == 0:
            print(
                f"step {step} of {recipe.num_steps} on {name}: loss {total:.3f}, "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )
        if (step + 1) % every == 0 or step + 1 == recipe.num_steps:
            _store(model, optimizers, step + 1, path)


def _store(
    model: Transformer, optimizers: list[torch.optim.Optimizer], step: int, path: Path
) -> None:
    """Keep the state of the training."""
    with atomic_path(path) as temporary:
        torch.save(
            {
                "model": model.state_dict(),
                "optimizers": [item.state_dict() for item in optimizers],
                "step": step,
            },
            temporary,
        )
