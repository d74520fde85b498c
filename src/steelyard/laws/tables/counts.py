"""Which parameters are counted: conversions, exact by the catalog or estimated from the size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.conventions import UNSTATED, name_rows

if TYPE_CHECKING:
    from steelyard.catalog import Architecture
    from steelyard.laws.tables.table import RunTable

__all__ = [
    "CHINCHILLA_EMBEDDING_SCALE",
    "EmbeddingParts",
    "convert_counts",
    "embedding_parts",
    "estimated_embedding",
    "parts_for",
    "to_counts",
]

CHINCHILLA_EMBEDDING_SCALE = 47_491.0
"""h in N_emb = h N^(1/3), N non-embedding, fitted to the Chinchilla models. Source: Pearce and Song
2024 (arXiv 2406.12907), section 3."""


@dataclass(frozen=True, slots=True)
class EmbeddingParts:
    """Parameters outside the layers, [n] each.

    Attributes:
        embedding: token and position tables.
        head: rows times width of the output matrix, tied or not.
        is_tied: whether the head is the token table again.
    """

    embedding: Array
    head: Array
    is_tied: NDArray[np.bool_]

    def take(self, rows: NDArray[np.bool_]) -> "EmbeddingParts":
        """Keep the parts of some rows."""
        return EmbeddingParts(self.embedding[rows], self.head[rows], self.is_tied[rows])

    def beyond_layers(self, counts: str) -> Array:
        """Return what a convention counts beyond the layers, [n]."""
        if counts == "non-embedding":
            return np.zeros_like(self.embedding)
        return (
            self.head
            if counts == "non-embedding+head"
            else self.embedding + np.where(self.is_tied, 0.0, self.head)
        )


def embedding_parts(architectures: "Sequence[Architecture | str]") -> EmbeddingParts:
    """Count embeddings and head of architectures by the catalog.

    Args:
        architectures: records, or names of the catalog, one per row.

    Returns:
        The parts, exact.

    Raises:
        CatalogError: a name is not in the catalog.
    """
    from steelyard.catalog import architecture_by_name, count_parameters

    known = {item: architecture_by_name(item) for item in architectures if isinstance(item, str)}
    records = [known[item] if isinstance(item, str) else item for item in architectures]
    counted = [count_parameters(item) for item in records]
    return EmbeddingParts(
        embedding=np.array([item.embedding for item in counted], dtype=np.float64),
        head=np.array([item.vocab_size * item.hidden_size for item in records], dtype=np.float64),
        is_tied=np.array([item.tied_embeddings for item in records], dtype=np.bool_),
    )


def estimated_embedding(non_embedding: Array, scale: float) -> Array:
    """Estimate embedding parameters from the size alone.

    They are h N^(1/3), because width grows with the cube root of N.

    Args:
        non_embedding: parameters of the layers, [n].
        scale: h; `CHINCHILLA_EMBEDDING_SCALE` for a vocabulary of 32 000 and the shapes of
            Chinchilla.

    Returns:
        Embedding parameters, [n]; an estimate.

    Source: Pearce and Song 2024 (arXiv 2406.12907), equation 8.
    """
    return scale * np.cbrt(non_embedding)


def convert_counts(
    parameters: Array, source: str, target: str, parts: EmbeddingParts | float
) -> Array:
    """Turn parameter counts of one convention into another.

    Args:
        parameters: counts under `source`, [n].
        source: "total", "non-embedding" or "non-embedding+head".
        target: one of the same.
        parts: exact parts, or the scale h of the estimate h N^(1/3), which knows "total" and
            "non-embedding" only.

    Returns:
        Counts under `target`, [n]; values of 0 or less say that parts and counts contradict each
        other.

    Raises:
        FitError: a convention that cannot be converted.
    """
    able = (
        ("total", "non-embedding", "non-embedding+head")
        if isinstance(parts, EmbeddingParts)
        else ("total", "non-embedding")
    )
    if source not in able or target not in able:
        raise FitError(
            f"cannot turn {source} parameters into {target} ones",
            hint=f"convertible: {', '.join(able)}",
        )
    if isinstance(parts, EmbeddingParts):
        return parameters - parts.beyond_layers(source) + parts.beyond_layers(target)
    if source == target:
        return parameters
    return (
        parameters + estimated_embedding(parameters, parts)
        if target == "total"
        else _without_embedding(parameters, parts)
    )


def _without_embedding(total: Array, scale: float) -> Array:
    """Solve r^3 + scale r = total for N = r^3 by Newton steps."""
    root = np.cbrt(total)  # above the root of a rising convex cubic, so every step goes down to it
    for _ in range(60):
        root = root - (root**3 + scale * root - total) / (3 * root**2 + scale)
    return root**3


def _parts_of_widths(hidden_size: Array, vocab_size: Array, tied: bool) -> EmbeddingParts:
    """Count embeddings from widths and vocabularies by the catalog, without position tables.

    Args:
        hidden_size: widths, [n].
        vocab_size: rows of the token table, [n].
        tied: whether the head is the token table again.

    Returns:
        The parts.

    Raises:
        FitError: a width or vocabulary is not a positive whole number; the row of the table is not
            known here.
    """
    from steelyard.catalog import Architecture

    shapes = np.stack([hidden_size, vocab_size])
    if not (np.isfinite(shapes) & (shapes > 0) & (shapes == np.round(shapes))).all():
        raise FitError(
            "hidden_size and vocab_size must be positive whole numbers",
            hint="vocab_size=50257, or the column that holds it",
        )
    return embedding_parts(
        [
            Architecture(
                name="shape",
                hidden_size=int(width),
                num_layers=1,
                num_heads=1,
                num_kv_heads=1,
                head_dim=int(width),
                intermediate_size=4 * int(width),
                vocab_size=int(vocabulary),
                tied_embeddings=tied,
            )
            for width, vocabulary in shapes.T
        ]
    )


def parts_for(
    table: "RunTable",
    architectures: "Sequence[Architecture | str] | None",
    hidden_size: str,
    vocab_size: int | str,
    tied: bool,
    embedding_scale: float | None,
) -> EmbeddingParts | float:
    """Resolve the one way to convert that was given; see `RunTable.to_counts` for the arguments."""
    if (architectures is not None) + bool(hidden_size) + (embedding_scale is not None) != 1:
        raise FitError(
            "pass exactly one of architectures, hidden_size with vocab_size, and embedding_scale"
        )
    if embedding_scale is not None:
        return float(embedding_scale)
    if architectures is None:
        rows = (
            table[vocab_size]
            if isinstance(vocab_size, str)
            else np.full(table.num_runs, float(vocab_size))
        )
        return _parts_of_widths(table[hidden_size], rows, tied)
    if len(architectures) != table.num_runs:
        raise FitError(
            f"{len(architectures)} architectures for {table.num_runs} runs", hint="pass one per row"
        )
    return embedding_parts(architectures)


def to_counts(table: "RunTable", counts: str, parts: EmbeddingParts | float) -> "RunTable":
    """Count a table's parameters by another convention.

    Args:
        table: table that states what it counts in every row.
        counts: "total", "non-embedding" or "non-embedding+head".
        parts: exact parts [n], or the scale h of the estimate, which marks "parameters" as
            estimated.

    Returns:
        The table with converted parameters; its FLOPs stay as they were measured.

    Raises:
        FitError: a row does not state what it counts, or its count would not be positive; rows are
            named.
    """
    stated = table.conventions.counts
    silent = table.rows[stated == UNSTATED]
    if len(silent):
        raise FitError(
            f"{table.origin}: {name_rows(silent)} do not state which parameters they count, so "
            f"they cannot be converted",
            hint="state it when reading: counts='total' or counts='non-embedding'",
        )
    before = table.numbers["parameters"]
    converted = before.copy()
    for source in np.unique(stated):
        rows = stated == source
        converted[rows] = convert_counts(
            before[rows],
            str(source),
            counts,
            parts.take(rows) if isinstance(parts, EmbeddingParts) else parts,
        )
    bad = np.flatnonzero(~(converted > 0))
    if len(bad):
        raise FitError(
            f"{table.origin}: embeddings hold more than the {before[bad[0]]:g} parameters stated "
            f"in {name_rows(table.rows[bad])}",
            hint="check the shapes, or which parameters the table counts",
        )
    estimated = (
        table.estimated
        if isinstance(parts, EmbeddingParts)
        else tuple(dict.fromkeys((*table.estimated, "parameters")))
    )
    conventions = table.conventions.with_word("counts", counts)
    return replace(
        table,
        numbers={**table.numbers, "parameters": converted},
        conventions=conventions,
        estimated=estimated,
    )
