"""Positions beyond the length of training."""

import math
import pydoc_data.topics

import torch
from benchmarks.common import Check
from benchmarks.nn._tiny import tiny, train_steps
from torch import Tensor
from torch.nn import functional as F

from steelyard.nn.transformer import Transformer, build

__all__ = ["length_checks"]

_LENGTH, _BATCH, _RATE = 64, 16, 2e-3


def length_checks(quick: bool) -> list[Check]:
    """Train one model per kind of position on short sequences, and read longer ones."""
    steps = 60 if quick else 400
    text = _text()
    ratios = {}
    for position in ("xpos", "rope", "learned"):
        arch = tiny(2, 64, position=position, vocab_size=128, embedding_scale=1.0)
        model = build(arch, seed=0)
        train_steps(model, [_batch(text, step) for step in range(steps)], _RATE)
        trained, far = (_perplexity(model, text, times * _LENGTH, 0) for times in (1, 4))
        if position == "learned":
            words = ""
        else:
            in_blocks = _perplexity(model, text, 4 * _LENGTH, _LENGTH // 2)
            words = f", {in_blocks:.2f} in blocks of {_LENGTH // 2}"
            ratios[f"{position} in blocks"] = in_blocks / trained
        print(
            f"{position:>8}: perplexity {trained:.2f} at {_LENGTH} tokens, {far:.2f} at "
            f"{4 * _LENGTH}{words}"
        )
        ratios[position] = far / trained
    checks = [
        Check("2 perplexity at 4x length, xPos in blocks", ratios["xpos in blocks"], 1.1, "lower")
    ]
    if not quick:
        checks += [
            Check("2 perplexity at 4x length, rotary", ratios["rope"], 1.5, "higher"),
            Check(
                "2 perplexity at 4x length, learned over rotary",
                ratios["learned"] / ratios["rope"],
                1.0,
                "higher",
            ),
        ]
    return checks


def _text() -> Tensor:
    """Return the bytes of Python's own help pages, as ASCII."""
    pages = "".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    return torch.frombuffer(bytearray(pages.encode("ascii", "replace")), dtype=torch.uint8).long()


def _batch(text: Tensor, step: int) -> Tensor:
    """Cut windows of the first nine tenths of the text."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(text) * 9 // 10 - _LENGTH - 1, (_BATCH,), generator=generator)
    return torch.stack([text[start : start + _LENGTH + 1] for start in starts.tolist()])


@torch.no_grad()
def _perplexity(model: Transformer, text: Tensor, length: int, block: int) -> float:
    """Read the last tenth of the text in windows of a length, 16,384 tokens in all."""
    held = text[len(text) * 9 // 10 :][: 16_384 + 1]
    windows = held[: 16_384 // length * length].view(-1, length)
    targets = held[1 : 1 + windows.numel()].view(-1, length)
    model.eval()
    losses = [
        F.cross_entropy(model(rows, block=block).flatten(0, 1), wanted.flatten())
        for rows, wanted in zip(windows.split(16), targets.split(16), strict=True)
    ]
    return math.exp(float(torch.stack(losses).mean()))
