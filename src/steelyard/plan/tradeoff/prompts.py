"""Shorter contexts for a question: without what is predictable, or only what shares its tokens."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional as F

from steelyard.nn.transformer import Transformer
from steelyard.plan.tradeoff.configuration import Configuration

__all__ = ["Surprisal", "prompt_tokens", "retrieved", "selective"]

_WINDOW = 128
"""Tokens that are scored at once: what is predictable shows within a few sentences."""
_CHUNK = 32
"""Tokens of a piece that is retrieved."""


class Surprisal:
    """Tells how unexpected each token of a context is to a model.

    Attributes:
        model: scores; a small one of the same vocabulary, or the one that is served.
        begins: bool [V] tokens with which a new word begins.
    """

    def __init__(self, model: Transformer, begins: np.ndarray) -> None:
        """Keep the parts.

        Args:
            model: a decoder.
            begins: bool [V] tokens with which a new word begins.
        """
        self.model = model
        self.begins = begins

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int]) -> np.ndarray:
        """Return nats of each token, float32 [T]; windows are scored on their own."""
        found = []
        size = min(_WINDOW, self.model.architecture.max_positions)
        for start in range(0, len(tokens), size):
            row = torch.tensor(tokens[start : start + size])
            logits = self.model(row[None])[0]
            losses = F.cross_entropy(logits[:-1].float(), row[1:], reduction="none")
            # The first token of a window has nothing before it, and no word is dropped for it.
            found.append(np.concatenate([[0.0], losses.numpy()]))
        return np.concatenate(found).astype(np.float32)


def selective(
    context: Sequence[int],
    kept: float,
    score: Callable[[Sequence[int]], np.ndarray],
    begins: np.ndarray,
) -> list[int]:
    """Drop the words of a context that are easiest to predict.

    Args:
        context: tokens.
        kept: share of them to keep.
        score: nats of each token.
        begins: bool [V] tokens with which a new word begins.

    Returns:
        What is left, in order, at most that share.

    Source: Li et al. 2023 (arXiv 2310.06201), section 3 (mean self-information of units).
    """
    if not context:
        return []
    tokens = np.asarray(context)
    starts = np.flatnonzero(begins[tokens])
    starts = np.unique(np.concatenate([[0], starts]))
    sizes = np.diff(np.append(starts, len(tokens)))
    means = np.add.reduceat(score(context), starts) / sizes
    chosen = _fill(np.argsort(-means, kind="stable"), sizes, int(kept * len(tokens)))
    return _joined(tokens, starts, sizes, chosen)


def retrieved(context: Sequence[int], question: Sequence[int], kept: float) -> list[int]:
    """Keep the pieces of a context that share rare tokens with the question.

    Args:
        context: tokens.
        question: tokens.
        kept: share of the context to keep.

    Returns:
        Pieces in their order, at most that share.

    Source: Robertson et al. 1995 (inverse document frequency of Okapi BM25), over overlapping
        pieces.
    """
    tokens = np.asarray(context)
    # A record that is cut in two by one piece is whole in the next, which begins in its middle.
    starts = np.arange(0, max(len(tokens), 1), _CHUNK // 2)
    pieces = [set(tokens[start : start + _CHUNK].tolist()) for start in starts.tolist()]
    words = set(question)
    counts = {word: sum(word in piece for piece in pieces) for word in words}
    weights = {
        word: float(np.log(1 + (len(pieces) - at + 0.5) / (at + 0.5)))
        for word, at in counts.items()
    }
    scores = np.array([sum(weights[word] for word in words & piece) for piece in pieces])
    marked = np.zeros(len(tokens), dtype=bool)
    for place in np.argsort(-scores, kind="stable"):
        span = slice(int(starts[place]), int(starts[place]) + _CHUNK)
        if marked.sum() + (~marked[span]).sum() > kept * len(tokens):
            break
        marked[span] = True
    return tokens[marked].tolist()


def prompt_tokens(
    context: Sequence[int],
    question: Sequence[int],
    chosen: Configuration,
    surprisal: Surprisal,
) -> list[int]:
    """Return what a configuration gives to the engine for a context and a question."""
    if chosen.prompt == "selective":
        short = selective(context, chosen.prompt_kept, surprisal, surprisal.begins)
    elif chosen.prompt == "retrieved":
        short = retrieved(context, question, chosen.prompt_kept)
    else:
        short = list(context)
    return [*short, *question]


def _fill(order: np.ndarray, sizes: np.ndarray, room: int) -> np.ndarray:
    """Return the first of an order that fit into a room together."""
    ends = np.cumsum(sizes[order])
    return order[: int(np.searchsorted(ends, room, side="right"))]


def _joined(
    tokens: np.ndarray, starts: np.ndarray, sizes: np.ndarray, chosen: np.ndarray
) -> list[int]:
    """Return the tokens of the chosen words, in their order."""
    marked = np.zeros(len(tokens), dtype=bool)
    for place in chosen.tolist():
        marked[starts[place] : starts[place] + sizes[place]] = True
    return tokens[marked].tolist()
