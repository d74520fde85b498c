"""Steps of tasks: pure functions from a record to records."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from steelyard.data.clean import MAX_DOCUMENT_CHARS, clean, split, verdict
from steelyard.data.tasks.records import Record
from steelyard.data.tasks.vocabularies import TokenVocabulary
from steelyard.errors import DataError

__all__ = ["corrupt_spans", "documents", "rename", "span_mask", "split_tokens"]


def documents(
    record: Record, *, field: str = "text", limit: int = MAX_DOCUMENT_CHARS
) -> list[dict[str, Any]]:
    """Clean a text and cut it into documents, for `prepare`.

    Args:
        record: has text in `field`.
        field: field to clean.
        limit: most characters of a document.

    Returns:
        A record for each document; none that is short or repetitive.
    """
    pieces = split(clean(record[field]), limit)
    return [{**record, field: piece} for piece in pieces if not verdict(piece, piece.encode())]


def rename(record: Record, *, fields: Mapping[str, str]) -> dict[str, Any]:
    """Rename fields, and drop those that are not named.

    Args:
        record: has the old names.
        fields: old name by new name.

    Returns:
        A record with the new names only.

    Raises:
        DataError: the record lacks a field.
    """
    missing = [old for old in fields.values() if old not in record]
    if missing:
        raise DataError(
            f"a record has no {', '.join(missing)}; it has {', '.join(sorted(record))}",
            hint="name fields that every record has",
        )
    return {new: record[old] for new, old in fields.items()}


def split_tokens(
    record: Record, *, vocabulary: TokenVocabulary, length: int, field: str = "targets"
) -> list[dict[str, np.ndarray]]:
    """Encode a text and cut it into records of at most `length` tokens, for `prepare`.

    Args:
        record: has text in `field`.
        vocabulary: encodes it.
        length: most tokens of a piece; leave room for the end where one is added.
        field: field to cut; other fields are dropped, since they do not belong to one piece.

    Returns:
        The pieces; all tokens are kept.
    """
    tokens = vocabulary.encode(record[field])
    return [{field: tokens[at : at + length]} for at in range(0, len(tokens), length)]


def span_mask(
    length: int, rng: np.random.Generator, *, density: float = 0.15, mean_span: float = 3.0
) -> np.ndarray:
    """Choose spans to cut out; all masks with the same counts are equally likely.

    Args:
        length: tokens N, at least 2.
        rng: random state.
        density: share of tokens to cut out, 0..1.
        mean_span: mean tokens of a span.

    Returns:
        bool [N], True where a token is cut out; begins with tokens that stay.

    Source: Raffel et al. 2020 (T5, arXiv 1910.10683), section 3.1.4 and appendix.
    """
    noise = min(max(round(length * density), 1), length - 1)
    # Each span of either kind has at least one token.
    spans = min(max(round(noise / mean_span), 1), noise, length - noise)
    sizes = np.empty(2 * spans, dtype=np.int64)
    sizes[0::2] = _composition(length - noise, spans, rng)
    sizes[1::2] = _composition(noise, spans, rng)
    return np.repeat(np.arange(2 * spans) % 2 == 1, sizes)


def _composition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Draw positive integers [parts] with a given sum, uniformly."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


def corrupt_spans(
    record: Record,
    rng: np.random.Generator,
    *,
    size: int,
    density: float = 0.15,
    mean_span: float = 3.0,
) -> dict[str, Any]:
    """Cut spans out of the targets: inputs with sentinels, targets that fill them in.

    Span number k is the sentinel with id `size - 1 - k` in both.

    Args:
        record: has integers [N] in "targets"; fewer than 2 tokens are all kept in the inputs.
        rng: random state.
        size: size of the vocabulary, whose highest ids are sentinels.
        density: share of tokens to cut out.
        mean_span: mean tokens of a span.

    Returns:
        The record with "inputs" and "targets".

    Source: Raffel et al. 2020 (T5, arXiv 1910.10683), figure 2.
    """
    tokens = np.asarray(record["targets"])
    if len(tokens) < 2:
        return {**record, "inputs": tokens, "targets": tokens[:0]}
    mask = span_mask(len(tokens), rng, density=density, mean_span=mean_span)
    return {
        **record,
        "inputs": _with_sentinels(tokens, mask, size),
        "targets": _with_sentinels(tokens, ~mask, size),
    }


def _with_sentinels(tokens: np.ndarray, cut: np.ndarray, size: int) -> np.ndarray:
    """Put one sentinel in the place of each run of `cut`."""
    first = cut & ~np.concatenate([[False], cut[:-1]])
    made = tokens.copy()
    made[first] = size - np.cumsum(first)[first]
    return made[~cut | first]
