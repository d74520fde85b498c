"""Near duplicates among texts: shingles of words, their signatures, and clusters of those."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from steelyard.data.sketch.hashing import mix64
from steelyard.data.sketch.lsh import LshTable, band_keys
from steelyard.data.sketch.minhash import MinHasher
from steelyard.jit import njit

__all__ = [
    "duplicate_roots",
    "gram_sets",
    "shingles",
    "text_signatures",
    "word_count",
    "word_counts",
    "word_hashes",
    "word_rows",
]

BANDS, ROWS = 14, 8
"""14 bands of 8 rows find 92 % of pairs with Jaccard similarity 0.8, and all but one in ten
thousand at 0.9.  Source: Penedo et al. 2024 (FineWeb, arXiv 2406.17557), section 3.4."""

SHINGLE_WORDS = 5
"""Words of a shingle, as in the same place."""

_WORD = np.zeros(256, dtype=bool)
_WORD[[*range(48, 58), *range(65, 91), 95, *range(97, 123), *range(128, 256)]] = True
_LOWER = np.arange(256, dtype=np.uint64)
_LOWER[65:91] += 32
_BASE = np.uint64(0x9E3779B97F4A7C15)


@njit()
def _words(codes: np.ndarray, is_word: np.ndarray, lower: np.ndarray, words: np.ndarray) -> int:
    """Hash runs of the bytes of words by a polynomial modulo 2^64; return how many there are."""
    count, inside, code = 0, False, np.uint64(0)
    for letter in codes:
        if is_word[letter]:
            code = code * _BASE + lower[letter] + np.uint64(1)
            inside = True
        elif inside:
            words[count] = mix64(code)
            count += 1
            inside, code = False, np.uint64(0)
    if inside:
        words[count] = mix64(code)
        count += 1
    return count


@njit()
def _runs(words: np.ndarray, width: int, found: np.ndarray) -> None:
    """Hash every run of `width` words."""
    for first in range(len(found)):
        code = np.uint64(0)
        for place in range(first, first + width):
            code = code * _BASE + words[place]
        found[first] = mix64(code)


def _all_shingles(raw: bytes, width: int) -> np.ndarray:
    """Hash every run of `width` words, one that stands twice too."""
    words = word_hashes(raw)
    width = min(width, len(words))
    found = np.empty(len(words) - width + 1 if width else 0, np.uint64)
    _runs(words, width, found)
    return found


def shingles(raw: bytes, width: int = SHINGLE_WORDS) -> np.ndarray:
    """Hash every run of `width` words.

    Words are runs of ASCII letters (in either case), digits, underscores and non-ASCII bytes.

    Args:
        raw: a document in UTF-8.
        width: words in a shingle.

    Returns:
        Distinct hashes, uint64, sorted; a document of fewer words is one shingle, one without words
        none.
    """
    return np.unique(_all_shingles(raw, width))


def word_hashes(raw: bytes) -> np.ndarray:
    """Hash every word that `shingles` sees.

    Args:
        raw: a document in UTF-8.

    Returns:
        uint64, in the order of the text; words that stand twice have equal hashes.
    """
    codes = np.frombuffer(raw, dtype=np.uint8)
    # Between two words there is at least one byte that is of none.
    words = np.empty((len(codes) + 1) // 2, np.uint64)
    return words[: _words(codes, _WORD, _LOWER, words)]


def word_count(raw: bytes) -> int:
    """Return how many words `shingles` sees in a document in UTF-8."""
    return len(word_hashes(raw))


def word_counts(documents: Sequence[bytes]) -> np.ndarray:
    """Return how many words `shingles` sees in each document in UTF-8, int64 [N]."""
    return np.diff(word_rows(documents)[1])


def word_rows(documents: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Hash every word of many documents in one call: a call for each takes longer than its words.

    Args:
        documents: documents in UTF-8.

    Returns:
        What `word_hashes` returns for each behind each other, uint64, and where each begins, int64
        [N + 1], the last of which is the end.
    """
    starts = np.zeros(len(documents) + 1, np.int64)
    ends = np.cumsum([len(raw) for raw in documents], dtype=np.int64)
    codes = np.frombuffer(b"".join(documents), dtype=np.uint8)
    words = np.empty((len(codes) + len(documents)) // 2 + 1, np.uint64)
    _word_rows(codes, ends, _WORD, _LOWER, words, starts)
    return words[: starts[-1]], starts


@njit()
def _word_rows(
    codes: np.ndarray,
    ends: np.ndarray,
    is_word: np.ndarray,
    lower: np.ndarray,
    words: np.ndarray,
    starts: np.ndarray,
) -> None:
    """Hash the words of documents that lie behind each other."""
    first = 0
    for row in range(len(ends)):
        begin = starts[row]
        found = _words(codes[first : ends[row]], is_word, lower, words[begin:])
        starts[row + 1] = begin + found
        first = ends[row]


def gram_sets(
    words: np.ndarray, starts: np.ndarray, width: int, *, short: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Hash every run of `width` words of many documents.

    Args:
        words: hashes of their words, as `word_rows` returns.
        starts: where each document begins [N + 1].
        width: words of a run.
        short: whether a document of fewer words is one run; else it has none.

    Returns:
        Distinct hashes of each document, sorted, behind each other, and where each begins [N + 1].
    """
    found, begins = np.empty(len(words), np.uint64), np.zeros(len(starts), np.int64)
    _gram_sets(words, starts, width, short, found, begins)
    return found[: begins[-1]], begins


@njit()
def _gram_sets(
    words: np.ndarray,
    starts: np.ndarray,
    width: int,
    short: bool,
    found: np.ndarray,
    begins: np.ndarray,
) -> None:
    """Hash runs of words, sort those of each document and leave out equal ones."""
    at = 0
    for row in range(len(starts) - 1):
        own = words[starts[row] : starts[row + 1]]
        taken = min(width, len(own)) if short else width
        count = len(own) - taken + 1 if taken > 0 else 0
        if count > 0:
            grams = found[at : at + count]
            _runs(own, taken, grams)
            grams.sort()
            kept = 1
            for place in range(1, count):
                if grams[place] != grams[kept - 1]:
                    grams[kept] = grams[place]
                    kept += 1
            at += kept
        begins[row + 1] = at


def text_signatures(
    documents: Iterable[bytes],
    hasher: MinHasher,
    done: Callable[[], None] = lambda: None,
    *,
    width: int = SHINGLE_WORDS,
) -> np.ndarray:
    """Sign documents.

    Args:
        documents: documents in UTF-8.
        hasher: the hash functions.
        done: callback after each document.
        width: words of a shingle.

    Returns:
        uint32 [N, K].
    """
    rows = [np.zeros((0, hasher.num_hashes), np.uint32)]
    for document in documents:
        # A shingle that stands twice changes no signature, so there is no need to sort them.
        rows.append(hasher.signature(_all_shingles(document, width))[None])
        done()
    return np.concatenate(rows)


def duplicate_roots(signed: np.ndarray, threshold: float = 0.8, bands: int = BANDS) -> np.ndarray:
    """Find clusters of near duplicates.

    Documents that agree in all rows of a band are candidates; those whose signatures agree in at
    least `threshold` of all places are joined.

    Args:
        signed: signatures, uint32 [N, K].
        threshold: least estimated Jaccard similarity, 0..1.
        bands: bands the K rows are cut into; divides K.

    Returns:
        int64 [N]: for each document the first of its cluster; a document that is its own root is
        kept.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, places = signed.shape
    pairs = LshTable.build(band_keys(signed, bands, places // bands), places // bands).neighbours()
    agreed = np.zeros(len(pairs))
    for start in range(0, len(pairs), 4096):
        left, right = pairs[start : start + 4096].T
        agreed[start : start + 4096] = (signed[left] == signed[right]).mean(axis=1)
    left, right = pairs[agreed >= threshold].T
    graph = coo_array((np.ones(len(left), dtype=np.int8), (left, right)), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    _, first = np.unique(labels, return_index=True)
    return first[labels]
