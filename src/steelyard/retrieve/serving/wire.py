"""What a server and the process of a shard say to each other."""

from typing import Any

import msgspec
import numpy as np

from steelyard.errors import CapacityError, ConfigError, DataError, SteelyardError, StoreError
from steelyard.frames import MessageCodec
from steelyard.retrieve.index import Hits, Metric, SearchStats

__all__ = [
    "AddRows",
    "AskAbout",
    "FindRows",
    "HoldsRows",
    "ListRows",
    "RemoveRows",
    "ShardAbout",
    "ShardAnswer",
    "ShardAsk",
    "ShardDone",
    "ShardFound",
    "ShardHolds",
    "ShardIds",
    "ShardRefusal",
    "shard_codec",
]

_LIMIT_BYTES = 1 << 30
"""Longest message: both ends are ours, and an answer holds all hits of a batch."""
_ERRORS: dict[str, type[SteelyardError]] = {
    kind.__name__: kind for kind in (CapacityError, ConfigError, DataError, StoreError)
}


class _ShardMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Any message."""


class AskAbout(_ShardMessage, frozen=True):
    """What is in the shard?"""


class FindRows(_ShardMessage, frozen=True):
    """The nearest vectors of queries.

    Attributes:
        queries: float32 rows.
        dim: numbers in a row.
        k: neighbours that are wanted.
        nprobe: cells to look into; 0 for the index's own number.
        exactly: compare all vectors.
    """

    queries: bytes
    dim: int
    k: int
    nprobe: int = 0
    exactly: bool = False


class AddRows(_ShardMessage, frozen=True):
    """Vectors with their numbers, to be added."""

    ids: bytes
    vectors: bytes


class HoldsRows(_ShardMessage, frozen=True):
    """Which of these numbers are there?"""

    ids: bytes


class ListRows(_ShardMessage, frozen=True):
    """Which numbers are there?"""


class RemoveRows(_ShardMessage, frozen=True):
    """Numbers whose vectors go."""

    ids: bytes


class ShardAbout(_ShardMessage, frozen=True):
    """What a shard holds.

    Attributes:
        dim: numbers in a vector.
        metric: how distances are measured.
        size: vectors.
        next_id: first number that was never given.
        num_bytes: memory of the index.
        kind: kind of the index.
    """

    dim: int
    metric: Metric
    size: int
    next_id: int
    num_bytes: int
    kind: str


class ShardFound(_ShardMessage, frozen=True):
    """Hits as bytes; none where a shard cannot compare all vectors."""

    rows: int
    ids: bytes = b""
    distances: bytes = b""
    stats: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, hits: Hits | None) -> "ShardFound":
        """Return hits as a message."""
        if hits is None:
            return cls(-1)
        stats = (hits.stats.scanned, hits.stats.probed, hits.stats.reranked)
        distances = hits.distances.astype(np.float32).tobytes()
        return cls(len(hits.ids), hits.ids.tobytes(), distances, stats)

    def hits(self) -> Hits | None:
        """Return the hits of a message."""
        if self.rows < 0:
            return None
        scanned, probed, reranked = self.stats
        return Hits(
            ids=np.frombuffer(self.ids, np.int64).reshape(self.rows, -1),
            distances=np.frombuffer(self.distances, np.float32).reshape(self.rows, -1),
            stats=SearchStats(scanned=scanned, probed=probed, reranked=reranked),
        )


class ShardHolds(_ShardMessage, frozen=True):
    """For each number asked for, whether it is there."""

    is_there: bytes


class ShardIds(_ShardMessage, frozen=True):
    """All numbers of a shard."""

    ids: bytes


class ShardDone(_ShardMessage, frozen=True):
    """A change is kept."""


class ShardRefusal(_ShardMessage, frozen=True):
    """An error of ours, to be raised where it was asked."""

    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: SteelyardError) -> "ShardRefusal":
        """Return an error as a message."""
        return cls(type(error).__name__, str(error), error.hint)

    def error(self) -> SteelyardError:
        """Return the error of a message."""
        return _ERRORS.get(self.kind, StoreError)(self.message, hint=self.hint)


ShardAsk = AskAbout | FindRows | AddRows | HoldsRows | ListRows | RemoveRows
ShardAnswer = ShardAbout | ShardFound | ShardHolds | ShardIds | ShardDone | ShardRefusal


def shard_codec(kind: Any) -> MessageCodec:
    """Return a codec for messages that come of some kinds."""
    return MessageCodec(kind, limit_bytes=_LIMIT_BYTES)
