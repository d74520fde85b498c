"""Small decoders of many shapes, trained for a moment, and a plan of mixed types for each."""

import copy
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from benchmarks.serve._recall_text import real_text
from torch import Tensor
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.nn import checkpoint
from steelyard.nn.transformer import Transformer, build
from steelyard.serve.quantize.job import quantize
from steelyard.serve.quantize.options import MethodName, QuantizeOptions
from steelyard.serve.quantize.result import QuantizeResult

__all__ = ["Case", "draw_case", "planned"]

_LENGTH = 128
_BATCH = 8
_TEXT_TOKENS = 24_576
_TRAINED_SHARE = 0.9
_CASES_OF_MODEL = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is asked of the plan of one model on one text.

    Attributes:
        model_seed: of the model's shape, weights and training.
        seed: of the text and of what follows.
        dtype: type in which the model is stored.
        method: how int4 codes are found.
        group: weights that share a scale.
        share: bytes of its matrices over those stored plain; 0 where the loss is bounded.
        max_loss: most relative rise of the perplexity; 0 where the bytes are bounded.
    """

    model_seed: int
    seed: int
    dtype: torch.dtype
    method: MethodName
    group: int
    share: float
    max_loss: float


def draw_case(seed: int) -> Case:
    """Draw a budget; so many cases that follow each other have one model.

    Args:
        seed: equal seeds draw equal cases.
    """
    rng = np.random.default_rng((seed, 1))
    is_wide = bool(rng.random() < 0.5)
    # Codes alone take an eighth of fp32 and a quarter of bf16.
    share = float(np.exp(rng.uniform(np.log(0.17 if is_wide else 0.33), np.log(0.9))))
    max_loss = float(np.exp(rng.uniform(np.log(5e-4), np.log(2e-2))))
    bounds_loss = bool(rng.random() < 1 / 3)
    method: MethodName = rng.choice(["nearest", "gptq", "auto"], p=[0.45, 0.45, 0.1]).item()
    return Case(
        model_seed=seed // _CASES_OF_MODEL,
        seed=seed,
        dtype=torch.float32 if is_wide else torch.bfloat16,
        method=method,
        group=int(rng.choice([32, 64, 128])),
        share=0.0 if bounds_loss else share,
        max_loss=max_loss if bounds_loss else 0.0,
    )


def planned(case: Case, folder: Path) -> QuantizeResult:
    """Train a model, store it with the types that are chosen, and measure its loss.

    Args:
        case: what is made.
        folder: an empty one.

    Returns:
        The forecast and what was measured among its checks.
    """
    text = _text()
    cut = int(len(text) * _TRAINED_SHARE)
    model = copy.deepcopy(_trained(case.model_seed)).to(case.dtype)
    start = int(np.random.default_rng((case.seed, 2)).integers(cut, len(text) - _TEXT_TOKENS))
    ids = text[start : start + _TEXT_TOKENS].tolist()
    (folder / "text.txt").write_text(" ".join(map(str, ids)))
    checkpoint.save(model, folder / "model")
    matrices = sum(item.nbytes for item in model.layers.parameters() if item.ndim == 2)
    others = sum(item.nbytes for item in model.state_dict().values()) - matrices
    options = QuantizeOptions(
        weights="mixed",
        calibrate=folder / "text.txt",
        method=case.method,
        group=case.group,
        calibration_tokens=4096,
        memory_bytes=int(others + case.share * matrices) if case.share else 0,
        max_loss=case.max_loss,
        threads=torch.get_num_threads(),
    )
    return quantize(folder / "model", folder / "made", options)


@functools.cache
def _text() -> Tensor:
    """Return the text, int64 [N]."""
    return torch.from_numpy(np.frombuffer(real_text()[0], dtype=np.uint8).astype(np.int64))


def _architecture(rng: np.random.Generator) -> Architecture:
    """Draw the shape of a decoder of bytes."""
    hidden = int(rng.choice([64, 96, 128]))
    heads = hidden // 32
    return Architecture(
        name=f"bytes-{hidden}",
        hidden_size=hidden,
        num_layers=int(rng.integers(2, 5)),
        num_heads=heads,
        num_kv_heads=int(rng.choice([1, heads])),
        head_dim=32,
        intermediate_size=hidden * int(rng.integers(2, 4)),
        vocab_size=256,
        max_positions=_LENGTH,
        tied_embeddings=bool(rng.random() < 0.5),
    )


@functools.lru_cache(maxsize=1)
def _trained(seed: int) -> Transformer:
    """Draw a shape and train a model of it for a moment."""
    rng = np.random.default_rng((seed, 3))
    text = _text()[: int(len(_text()) * _TRAINED_SHARE)]
    model = build(_architecture(rng), seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(int(rng.integers(30, 121))):
        starts = rng.integers(0, len(text) - _LENGTH, _BATCH)
        rows = torch.stack([text[start : start + _LENGTH] for start in starts])
        loss = F.cross_entropy(model(rows)[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model.eval()
