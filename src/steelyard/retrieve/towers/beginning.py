"""Token tables that begin with what texts say: two words of like texts get like vectors."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import nn

from steelyard.errors import ConfigError, DataError
from steelyard.nn.towers import Tower
from steelyard.nn.transformer import Transformer
from steelyard.retrieve.text.encoder import leading_directions
from steelyard.retrieve.text.weights import WordWeights

__all__ = ["begin_with_teacher", "begin_with_texts"]

_BATCH = 1024


def begin_with_texts(
    model: Transformer, texts: Sequence[Sequence[int]], *, size: float = 1.0, seed: int = 0
) -> None:
    """Replace a model's token table by the latent vectors of tokens in texts.

    Towers from drawn weights take thousands of steps until they tell texts apart; from such a
    table, mean states are latent semantic vectors before the first step.

    Args:
        model: model whose table is replaced; tokens that no two texts hold keep their rows.
        texts: token ids of each text.
        size: root mean square of the new rows' numbers. Layers that are not trained yet add noise
            of a size of their own: rows far below 1 drown in it.
        seed: seed of the range finder.

    Raises:
        ConfigError: a size not above 0.
        DataError: no token stands in two texts, or fewer directions than the model's width.

    Source: Deerwester et al. 1990 (latent semantic analysis).
    """
    if size <= 0:
        raise ConfigError(f"rows of size {size:g}", hint="give a number above 0")
    table = model.embedding.weight
    counts = _counts(texts, len(table))
    weights = WordWeights.fit(counts, len(table))
    rows = weights.rows(counts)
    width = table.shape[1]
    if min(rows.shape) < width:  # pyright: ignore[reportArgumentType]
        raise DataError(
            f"{len(texts)} texts of {len(weights.buckets)} tokens have fewer than {width} "
            "directions",
            hint="give more texts, or a narrower model",
        )
    found = torch.from_numpy(leading_directions(rows, width, seed))
    found = found * torch.from_numpy(weights.rarities)[:, None]
    with torch.no_grad():
        table[torch.from_numpy(weights.buckets)] = found / found.square().mean().sqrt() * size


def begin_with_teacher(student: Tower, teacher: Tower, *, size: float = 1.0) -> None:
    """Replace a student's token table by the teacher's vectors of single tokens.

    The mean of a text's tokens is then near the teacher's vector of it before the first step, and
    what is left to learn is how tokens change each other. The student's projection leads to the
    teacher's numbers.

    Args:
        student: tower whose table and projection are replaced; tokens mean what they mean to the
            teacher.
        teacher: trained tower.
        size: root mean square of the table's numbers, see `begin_with_texts`.

    Raises:
        ConfigError: other tokens than the teacher's, or a size not above 0.

    Source: Model2Vec (Tulkens and van Dongen 2024): a sentence encoder's vector of each token, in
        fewer directions.
    """
    table = student.model.embedding.weight
    vocabulary, width = table.shape
    if vocabulary != len(teacher.model.embedding.weight) or size <= 0:
        raise ConfigError(
            f"{vocabulary} tokens for {len(teacher.model.embedding.weight)} of the teacher, rows "
            f"of size {size:g}",
            hint="give both the same tokenizer, and a size above 0",
        )
    was_training = teacher.training
    teacher.eval()
    with torch.no_grad():
        tokens = torch.arange(vocabulary)[:, None]
        ones = torch.ones(_BATCH, dtype=torch.int64)
        parts = [
            teacher(tokens[at : at + _BATCH], ones[: vocabulary - at])
            for at in range(0, vocabulary, _BATCH)
        ]
        vectors = torch.cat(parts)
        kept = min(width, teacher.dim)
        basis = torch.linalg.svd(vectors.T @ vectors)[0][:, :kept]
        rows = torch.zeros(vocabulary, width)
        rows[:, :kept] = vectors @ basis
        table.copy_(rows / rows.square().mean().sqrt() * size)
        projection = torch.zeros(teacher.dim, width)
        projection[:, :kept] = basis
    student.projection = nn.Parameter(projection)
    teacher.train(was_training)


def _counts(texts: Sequence[Sequence[int]], width: int) -> csr_array:
    """Return how often each text has each token [N, V]."""
    ends = np.cumsum([0, *map(len, texts)])
    tokens = np.fromiter((one for row in texts for one in row), np.int64, count=int(ends[-1]))
    counts = csr_array((np.ones(len(tokens), np.float32), tokens, ends), shape=(len(texts), width))
    counts.sum_duplicates()
    return counts
