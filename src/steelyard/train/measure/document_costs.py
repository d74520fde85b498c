"""What each document of a text costs and gives a model, from one pass over its tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.data.shard_documents import DocumentSpans, document_spans, document_texts
from steelyard.data.shards import TokenShards
from steelyard.data.sketch.minhash import MinHasher
from steelyard.data.sketch.near_duplicates import duplicate_roots, text_signatures
from steelyard.errors import ConfigError
from steelyard.train.measure.example_norms import ExampleNorms
from steelyard.train.measure.noise_estimate import unbiased_parts

__all__ = ["DocumentCosts", "document_costs"]


@dataclass(frozen=True, slots=True)
class DocumentCosts:
    """A table with a row per document, in the order of `data.shard_documents`.

    Attributes:
        shard: number of the shard that it lies in, int64 [N].
        tokens: its tokens, the end of text included, int64 [N].
        loss: mean loss of its tokens, nats, float64 [N]; NaN where none was predicted.
        el2n: mean over its tokens of the length of the probabilities' error, float64 [N].
        gradient_norm: norm of the gradient of the sequences that its tokens lie in, mean over its
            tokens, float64 [N].
        noise_scale: B_simple in sequences of the part of the text that it lies in, mean over its
            tokens, float64 [N]; NaN where the gradient is lost in its noise.
        duplicate_of: first document of its cluster of near duplicates, int64 [N]; its own number
            where there is none before it.
    """

    shard: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    el2n: np.ndarray
    gradient_norm: np.ndarray
    noise_scale: np.ndarray
    duplicate_of: np.ndarray

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns by name, with the number of the document first."""
        numbers = {"document": np.arange(len(self.shard))}
        return numbers | {name: getattr(self, name) for name in self.__slots__}


def document_costs(
    module: nn.Module,
    shards: TokenShards,
    *,
    sequence_length: int,
    batch_size: int = 16,
    part_size: int = 64,
    advance: Callable[[float], None] = lambda done: None,
) -> DocumentCosts:
    """Score every document with one forward and backward pass over the text, and find duplicates.

    The text is cut into sequences as in training, in its own order. Gradients are those of single
    sequences and are never applied.

    Args:
        module: maps tokens [B, T] to logits [B, T, V], such as an early checkpoint of a run: after
            training most scores are small.
        shards: the text.
        sequence_length: tokens T of a sequence.
        batch_size: sequences of a pass.
        part_size: sequences of a part, over which a noise scale is measured; at least 2.
        advance: told the share of the text that is done.

    Returns:
        The table.

    Raises:
        ConfigError: a part of fewer than 2 sequences, or gradients by example are not known for the
            module.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1 (noise scale); Paul et al. 2021
        (arXiv 2107.07075), definition 2.2 (EL2N), here of each token.
    """
    if part_size < 2 or batch_size < 1:
        raise ConfigError(
            f"parts of {part_size} sequences in batches of {batch_size}",
            hint="a noise scale needs 2 sequences or more, a batch 1 or more",
        )
    spans = document_spans(shards)
    module.eval()
    pieces = [
        _shard_scores(module, tokens, sequence_length, batch_size, part_size)
        for tokens in _told(shards.train_tokens, advance)
    ]
    hasher = MinHasher()
    signed = text_signatures(document_texts(shards, spans), hasher, lambda: None)
    return DocumentCosts(
        spans.shard,
        spans.stop - spans.start,
        *(_by_document(spans, [piece[row] for piece in pieces]) for row in range(4)),
        duplicate_of=duplicate_roots(signed),
    )


def _told(parts: list[np.ndarray], advance: Callable[[float], None]) -> Iterator[np.ndarray]:
    """Yield shards, and tell how many tokens are behind."""
    whole, done = sum(map(len, parts)), 0
    for tokens in parts:
        yield tokens
        done += len(tokens)
        advance(done / whole)


def _shard_scores(
    module: nn.Module, tokens: np.ndarray, length: int, batch_size: int, part_size: int
) -> np.ndarray:
    """Return loss, EL2N, gradient norm and noise scale of every token, [4, n]; NaN where none."""
    found = np.full((4, len(tokens)), np.nan)
    count = (len(tokens) - 1) // length
    for first in range(0, count, part_size):
        last = min(first + part_size, count)
        norms: list[np.ndarray] = []
        module.zero_grad(set_to_none=True)
        for start in range(first, last, batch_size):
            rows = np.arange(start, min(start + batch_size, last))
            window = tokens[rows[:, None] * length + np.arange(length + 1)].astype(np.int64)
            losses, errors, squared = _pass(module, torch.from_numpy(window))
            places = (rows[:, None] * length + np.arange(1, length + 1)).ravel()
            found[0, places], found[1, places] = losses.ravel(), errors.ravel()
            found[2, places] = np.repeat(np.sqrt(squared), length)
            norms.append(squared)
        inside = slice(first * length + 1, last * length + 1)
        found[3, inside] = _noise_scale(module, np.concatenate(norms))
    module.zero_grad(set_to_none=True)
    if count * length + 1 < len(tokens):
        # What is too short for a sequence has tokens of its own all the same.
        rest = torch.from_numpy(tokens[count * length :].astype(np.int64))[None]
        with torch.no_grad():
            losses, errors = _scores(module(rest[:, :-1]).float(), rest[:, 1:])
        found[0, count * length + 1 :], found[1, count * length + 1 :] = losses, errors
    return found


def _pass(module: nn.Module, window: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return losses and EL2N [B, T] and squared gradient norms [B]; gradients are summed up."""
    # The gradients of a part add up in `grad`, those of a batch go by on their way.
    parameters = {name: item for name, item in module.named_parameters() if item.requires_grad}
    norms = ExampleNorms(parameters)
    norms.start(len(window))
    with norms:
        logits = module(window[:, :-1])
    wanted = window[:, 1:]
    losses, errors = _scores(logits.detach().float(), wanted)
    # The sum of the sequences' own means: each sequence's gradient is that of its mean loss.
    cross = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="sum")
    (cross / wanted.shape[1]).backward()
    squared = torch.stack([*norms.squared().values()]).double().sum(0)
    return losses, errors, squared.numpy()


def _scores(logits: Tensor, wanted: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return loss and EL2N of every token of logits [B, T, V], float64 [B, T]."""
    logs = logits.log_softmax(-1)
    own = logs.gather(-1, wanted[..., None])[..., 0]
    shares = logs.exp()
    errors = (shares.square().sum(-1) - 2 * own.exp() + 1).clamp(min=0).sqrt()
    return -own.double().numpy(), errors.double().numpy()


def _noise_scale(module: nn.Module, squared: np.ndarray) -> float:
    """Return B_simple of a part from its sequences' squared norms and the sum in `grad`."""
    count = len(squared)
    if count < 2:
        return float("nan")
    total = sum(
        float(item.grad.double().square().sum())
        for item in module.parameters()
        if item.grad is not None
    )
    small, big = squared.mean(keepdims=True), np.array([total / count**2])
    signal, noise = (float(part[0]) for part in unbiased_parts(small, big, 1, count))
    return noise / signal if signal > 0 else float("nan")


def _by_document(spans: DocumentSpans, scores: list[np.ndarray]) -> np.ndarray:
    """Return the mean of each document's tokens that have a score; NaN where none has."""
    found = np.full(len(spans), np.nan)
    for shard, values in enumerate(scores):
        rows = np.flatnonzero(spans.shard == shard)
        known = np.isfinite(values)
        sums, counts = (
            np.concatenate(([0.0], np.cumsum(item)))
            for item in (np.where(known, values, 0.0), known.astype(np.float64))
        )
        start, stop = spans.start[rows], spans.stop[rows]
        have = counts[stop] - counts[start]
        with np.errstate(invalid="ignore"):
            found[rows] = (sums[stop] - sums[start]) / have
    return found
