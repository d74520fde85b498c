"""What every index of vectors can do, and what a search returns."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError

__all__ = [
    "Hits",
    "Metric",
    "SearchStats",
    "VectorIndex",
    "as_rows",
    "checked_ids",
    "checked_k",
    "checked_probes",
    "checked_recall",
    "checked_vectors",
]

Metric = Literal["l2", "ip"]
Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchStats:
    """What a search did, all queries together.

    Attributes:
        scanned: vectors or codes whose distance was computed.
        probed: cells that were looked into.
        reranked: vectors that were compared again with the query itself.
    """

    scanned: int = 0
    probed: int = 0
    reranked: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hits:
    """The nearest vectors of Q queries.

    Attributes:
        ids: int64 [Q, K], the nearest first; -1 where there are fewer than K.
        distances: float32 [Q, K]: squared distances, smallest first ("l2"), or inner products,
            largest first ("ip"); infinite where there are fewer than K.
        stats: what the search did.
    """

    ids: Ids
    distances: Floats
    stats: SearchStats

    def plain_distances(self, most: int | None = None) -> list[list[float | None]]:
        """Return distances as JSON takes them.

        Args:
            most: queries of the list; all when None.

        Returns:
            A list for each query; None where there are fewer than K vectors.
        """
        rows = self.distances[:most].tolist()
        return [[value if math.isfinite(value) else None for value in row] for row in rows]


class VectorIndex(Protocol):
    """Vectors by number, and the nearest of them to a query."""

    @property
    def metric(self) -> Metric:
        """How distances are measured."""
        ...

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        ...

    def __len__(self) -> int:
        """Return how many vectors there are."""
        ...

    def train(self, vectors: Floats) -> None:
        """Learn from a sample what the index needs to know before vectors are added."""
        ...

    def add(self, vectors: Floats, ids: Ids | None = None) -> Ids:
        """Add vectors; return their numbers."""
        ...

    def remove(self, ids: Ids) -> None:
        """Remove vectors."""
        ...

    def search_steps(self, queries: Floats, k: int) -> Iterator[Hits]:
        """Yield what was found so far, better and better; the last is what `search` returns."""
        ...

    def search(self, queries: Floats, k: int) -> Hits:
        """Return the nearest vectors of each query."""
        ...

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part."""
        ...

    def save(self, path: Path) -> None:
        """Write the index to a file."""
        ...


def checked_vectors(
    vectors: NDArray[np.generic], dim: int, *, what: str = "vectors", first: int = 0
) -> Floats:
    """Return vectors as float32 rows.

    Args:
        vectors: numbers [N, D], or one vector [D].
        dim: D that the index has; 0 takes any.
        what: word for messages.
        first: number of the first row, for messages.

    Returns:
        float32 [N, D], rows beside each other.

    Raises:
        DataError: another shape or kind, or numbers that are not finite (the row is named).
    """
    found = as_rows(vectors, dim, what=what)
    # A sum tells that all are finite in a quarter of the time; one that overflows tells nothing.
    with np.errstate(all="ignore"):
        is_sure = math.isfinite(found.sum())
    if not is_sure:
        is_finite = np.isfinite(found).all(axis=1)
        if not is_finite.all():
            raise DataError(
                f"row {first + int(is_finite.argmin())} of the {what} is not finite",
                hint="leave it out",
            )
    return found


def as_rows(vectors: NDArray[np.generic], dim: int, *, what: str = "vectors") -> Floats:
    """Return vectors as float32 rows that may hold numbers which are not finite.

    Args:
        vectors: numbers [N, D], or one vector [D].
        dim: D that the index has; 0 takes any.
        what: word for messages.

    Returns:
        float32 [N, D], rows beside each other.

    Raises:
        DataError: another shape or kind.
    """
    found = np.asarray(vectors)
    if found.ndim == 1:
        found = found[None]
    if found.ndim != 2 or found.dtype.kind not in "fiu" or not found.shape[1]:
        raise DataError(
            f"{what} are {found.dtype} {list(found.shape)}", hint="give numbers in rows [N, D]"
        )
    if dim and found.shape[1] != dim:
        raise DataError(
            f"{what} have {found.shape[1]} numbers, the index has {dim}",
            hint="use the encoder that the index was built with",
        )
    return np.ascontiguousarray(found, dtype=np.float32)


def checked_ids(ids: NDArray[np.generic] | None, count: int, known: Ids, next_id: int) -> Ids:
    """Return the numbers of new vectors.

    Args:
        ids: numbers from 0, each once; None counts on from `next_id`.
        count: new vectors.
        known: numbers that are taken.
        next_id: first number that was never given.

    Returns:
        int64 [count].

    Raises:
        DataError: as many numbers as vectors are needed, each new and none below 0.
    """
    if ids is None:
        return np.arange(next_id, next_id + count, dtype=np.int64)
    found = np.asarray(ids)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise DataError(f"{found.dtype} {list(found.shape)} numbers for {count} vectors")
    found = found.astype(np.int64)
    if count and found.min() < 0:
        raise DataError(f"the number {int(found.min())} is below 0")
    values, counts = np.unique(found, return_counts=True)
    twice = values[counts > 1]
    taken = twice if len(twice) else np.intersect1d(values, known)
    if len(taken):
        raise DataError(
            f"the number {int(taken[0])} is there twice", hint="remove a vector before adding anew"
        )
    return found


def checked_k(k: int) -> int:
    """Return how many neighbours are wanted.

    Args:
        k: 1 or more.

    Returns:
        The same.

    Raises:
        ConfigError: it is below 1.
    """
    if k < 1:
        raise _out_of_range("k", k, "give 1 or more")
    return k


def checked_probes(nprobe: int, nlist: int) -> int:
    """Return cells to look into.

    Args:
        nprobe: 1 or more.
        nlist: cells that there are.

    Returns:
        At most all.

    Raises:
        ConfigError: nprobe is below 1.
    """
    if nprobe < 1:
        raise _out_of_range("nprobe", nprobe, "look into 1 cell or more")
    return min(nprobe, nlist)


def checked_recall(recall: float) -> float:
    """Return a wanted recall.

    Args:
        recall: above 0 to 1.

    Returns:
        The same.

    Raises:
        ConfigError: it is out of range, or no number.
    """
    if not 0 < recall <= 1:
        raise _out_of_range("recall", recall, "give it above 0, up to 1")
    return recall


def _out_of_range(name: str, value: float, hint: str) -> ConfigError:
    """Return the error of an argument; the command line names it as its option."""
    error = ConfigError(f"{name} is {value:g}", hint=hint)
    error.field = name
    return error
