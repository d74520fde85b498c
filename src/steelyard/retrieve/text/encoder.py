"""Latent vectors of texts: weighted words, projected on the directions that texts vary most in."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from steelyard.data.pack import Pack
from steelyard.data.pack_writer import writing_pack
from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.text.weights import WordWeights, count_words, sizes

__all__ = ["LatentEncoder", "leading_directions"]

_WORDS, _SPARE, _PASSES = 65_536, 16, 2


class LatentEncoder:
    """Texts into vectors without any model: fitted on texts in seconds, the same on any machine.

    Words are hashed and weighted by how often they stand in a text and how few texts hold them.
    The rows are projected on their leading singular directions, found by a randomized range
    finder, and scaled to unit length.

    Attributes:
        weights: weights of words.
        directions: projection float32 [V, D].

    Source: Deerwester et al. 1990 (latent semantic analysis); Halko et al. 2011 (arXiv 0909.4061),
        algorithm 4.4.
    """

    def __init__(self, weights: WordWeights, directions: NDArray[np.float32]) -> None:
        """Take what `fit` found."""
        self.weights, self.directions = weights, directions

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self.directions.shape[1]

    @property
    def fingerprint(self) -> str:
        """Hash of weights and directions: an index answers to no other encoder."""
        found = hashlib.sha256()
        for part in (self.weights.buckets, self.weights.rarities, self.directions):
            found.update(np.ascontiguousarray(part).tobytes())
        return f"latent-{found.hexdigest()[:16]}"

    @classmethod
    def fit(
        cls, texts: Sequence[str], dim: int = 128, *, most_texts: int = 20_000, seed: int = 0
    ) -> "LatentEncoder":
        """Fit weights and directions on texts.

        Args:
            texts: texts like those that are to be found.
            dim: numbers in a vector; fewer where the texts have fewer directions.
            most_texts: texts that are looked at; evenly spread ones where there are more.
            seed: seed of the range finder.

        Returns:
            The encoder.

        Raises:
            ConfigError: dim is below 1.
            DataError: no text has a word.
        """
        if dim < 1:
            raise ConfigError(f"vectors of {dim} numbers", hint="give a dim of 1 or more")
        count = min(len(texts), most_texts)
        places: list[int] = np.linspace(0, len(texts) - 1, count).round().astype(int).tolist()
        counts = count_words(texts[place].encode() for place in places)
        if not counts.nnz:
            raise DataError(f"none of {len(texts)} texts has a word", hint="give texts with words")
        weights = WordWeights.fit(counts, _WORDS)
        rows = weights.rows(counts)
        return cls(weights, leading_directions(rows, min(dim, *sizes(rows)), seed))

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of texts; a text without a known word is a row of zeros.

        Args:
            texts: any texts.

        Returns:
            float32 [N, D].
        """
        rows = self.weights.rows(count_words(text.encode() for text in texts))
        found = np.asarray(rows @ self.directions, np.float32)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.divide(found, lengths, out=np.zeros_like(found), where=lengths > 0)

    def save(self, path: Path) -> None:
        """Write the encoder.

        Args:
            path: file to write; an older one is replaced at the end.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        with writing_pack(path) as pack:
            pack.add("buckets", self.weights.buckets)
            pack.add("rarities", self.weights.rarities)
            pack.add("directions", self.directions)

    @classmethod
    def open(cls, path: Path) -> "LatentEncoder":
        """Read an encoder.

        Args:
            path: file of `save`.

        Returns:
            The encoder.

        Raises:
            DataError: the file is no encoder, or is damaged.
        """
        pack = Pack.open(path)
        if pack.find("directions") is None:
            raise DataError(f"{path} holds no encoder", hint="write one by LatentEncoder.save")
        weights = WordWeights(pack["buckets"], pack["rarities"])
        return cls(weights, pack["directions"])


def leading_directions(rows: csr_array, dim: int, seed: int) -> NDArray[np.float32]:
    """Return the leading right singular vectors of sparse rows.

    Args:
        rows: weighted counts [N, V].
        dim: directions; at most the smaller side.
        seed: seed of the range finder.

    Returns:
        float32 [V, D], the largest singular value first; the largest number of each is positive,
        so that another width or seed gives the same directions.

    Source: Halko et al. 2011 (arXiv 0909.4061), algorithm 4.4.
    """
    width = min(dim + _SPARE, *sizes(rows))
    drawn = np.random.default_rng(seed).normal(size=(sizes(rows)[1], width)).astype(np.float32)
    basis = _orthogonal(rows @ drawn)
    for _ in range(_PASSES):
        # Each pass sharpens the spectrum; without the orthogonal bases between, small directions
        # drown in rounding.
        basis = _orthogonal(rows @ _orthogonal(rows.T @ basis))
    tall = np.asarray(rows.T @ basis, np.float64)
    # Its right singular vectors follow from a matrix of as many rows as directions, in double
    # precision, because that squares the singular values.
    squares, turn = _eigenvectors(tall)
    lengths = np.sqrt(np.maximum(squares, squares[-1] * 1e-14))
    found = ((tall @ turn) / lengths)[:, ::-1][:, :dim]
    # A direction and its opposite are equally good: the sign of its largest weight tells which.
    largest = np.abs(found).argmax(axis=0)
    found = found * np.sign(found[largest, np.arange(found.shape[1])])
    return np.ascontiguousarray(found, dtype=np.float32)


def _orthogonal(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return an orthonormal basis of columns [N, D]."""
    # By torch, whose threads do as they are told: those of numpy's library wait for each other
    # while other programs have the processors, and took up to 60 times as long.
    import torch

    return torch.linalg.qr(torch.from_numpy(columns))[0].numpy()


def _eigenvectors(
    tall: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return eigenvalues, ascending, and eigenvectors of the inner products of columns [N, D]."""
    import torch

    columns = torch.from_numpy(tall)
    squares, turn = torch.linalg.eigh(columns.T @ columns)
    return squares.numpy(), turn.numpy()
