"""Tables of runs in other units of loss, and with parameters counted otherwise.

Counts are converted exactly by the catalog, or estimated from the size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.points import refuse_rows
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.columns import RunColumns
from steelyard.laws.tables.conventions import COLUMN_OF, UNSTATED, name_rows

if TYPE_CHECKING:
    from steelyard.catalog import Architecture

__all__ = [
    "CHINCHILLA_EMBEDDING_SCALE",
    "EmbeddingParts",
    "convert_counts",
    "convert_loss",
    "embedding_parts",
    "estimated_embedding",
    "parts_for",
    "to_counts",
    "to_loss_unit",
]

_Table = TypeVar("_Table", bound=RunColumns)


def convert_loss(loss: Array, source: str, target: str, bytes_per_token: Array | None) -> Array:
    """Turn losses of one unit into another.

    Args:
        loss: losses in units of `source`, [n].
        source: "nat/token", "bit/token", "nat/byte" or "bit/byte".
        target: one of the same.
        bytes_per_token: mean UTF-8 bytes per token of the evaluation text, [n]; needed between per
            token and per byte.

    Returns:
        Losses in units of `target`, [n].

    Raises:
        FitError: a unit that is no cross-entropy, or bytes per token are missing.
    """
    able = ("nat/token", "bit/token", "nat/byte", "bit/byte")
    if source not in able or target not in able:
        raise FitError(
            f"cannot turn a loss in {source} into {target}", hint=f"convertible: {', '.join(able)}"
        )
    (number, per), (wanted, wanted_per) = source.split("/"), target.split("/")
    nats = loss * (np.log(2) if number == "bit" else 1.0)
    if per != wanted_per:
        if bytes_per_token is None:
            raise FitError(
                f"{source} into {target} needs the bytes per token of the evaluation text",
                hint="pass bytes_per_token=4.3",
            )
        nats = nats / bytes_per_token if per == "token" else nats * bytes_per_token
    return nats / (np.log(2) if wanted == "bit" else 1.0)


def to_loss_unit(
    table: _Table, loss_unit: str, bytes_per_token: float | str | Mapping[str, float] | None
) -> _Table:
    """Return a table's losses in another unit.

    Args:
        table: table that states its unit in every row.
        loss_unit: "nat/token", "bit/token", "nat/byte" or "bit/byte".
        bytes_per_token: mean UTF-8 bytes per token of the evaluation text: one number, a column of
            the table, a number per tokenizer, or None where per token and per byte do not meet.

    Returns:
        The table with converted losses.

    Raises:
        FitError: a row does not state its unit, or the units do not convert.
    """
    ratio = _bytes_per_token(table, bytes_per_token)
    return _converted(
        table,
        "loss_unit",
        loss_unit,
        lambda loss, source: convert_loss(loss, source, loss_unit, ratio),
        "the unit of their loss",
        "state it: loss_unit='nat/token'",
    )


def _converted(
    table: _Table,
    convention: str,
    target: str,
    convert: Callable[[Array, str], Array],
    unstated: str,
    hint: str,
) -> _Table:
    """Convert the column of a convention, each row from what it states; refuse silent rows."""
    stated = getattr(table.conventions, convention)
    silent = table.rows[stated == UNSTATED]
    if len(silent):
        raise FitError(f"{table.origin}: {name_rows(silent)} do not state {unstated}", hint=hint)
    column = COLUMN_OF[convention]
    before = after = table.numbers[column]
    for source in np.unique(stated).tolist():
        after = np.where(stated == source, convert(before, source), after)
    conventions = replace(table.conventions, **{convention: np.full(table.num_runs, target)})
    return replace(table, numbers={**table.numbers, column: after}, conventions=conventions)


def _bytes_per_token(
    table: RunColumns, given: float | str | Mapping[str, float] | None
) -> Array | None:
    """Resolve bytes per token to one number per row."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        words = table.conventions.tokenizer.tolist()
        missing = [word for word in dict.fromkeys(words) if word not in given]
        if missing:
            raise FitError(
                f"no bytes per token for tokenizer {', '.join(missing)}",
                hint=f"given: {', '.join(given)}",
            )
        ratio = np.array([given[word] for word in words], dtype=np.float64)
    else:
        ratio = table[given] if isinstance(given, str) else np.full(table.num_runs, float(given))
    is_good = np.isfinite(ratio) & (ratio > 0)
    refuse_rows(~is_good, "bytes per token must be positive", ratio, "English text has about 4")
    return ratio


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
    table: RunColumns,
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


def to_counts(table: _Table, counts: str, parts: EmbeddingParts | float) -> _Table:
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
    found = _converted(
        table,
        "counts",
        counts,
        lambda sizes, source: convert_counts(sizes, source, counts, parts),
        "which parameters they count, so they cannot be converted",
        "state it when reading: counts='total' or counts='non-embedding'",
    )
    bad = np.flatnonzero(~(found.numbers["parameters"] > 0))
    if len(bad):
        raise FitError(
            f"{table.origin}: embeddings hold more than the "
            f"{table.numbers['parameters'][bad[0]]:g} parameters stated in "
            f"{name_rows(table.rows[bad])}",
            hint="check the shapes, or which parameters the table counts",
        )
    if isinstance(parts, EmbeddingParts):
        return found
    return replace(found, estimated=tuple(dict.fromkeys((*table.estimated, "parameters"))))
