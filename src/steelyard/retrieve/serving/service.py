"""One index of several shards: asks all, merges what they find, and starts dead ones again."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError, SteelyardError
from steelyard.retrieve.index import Hits, Metric, checked_ids, checked_vectors
from steelyard.retrieve.merging import merge_hits
from steelyard.retrieve.serving.shards import IndexShard, ShardDownError, StartedShard
from steelyard.retrieve.serving.wire import (
    AddRows,
    AskAbout,
    FindRows,
    HoldsRows,
    ListRows,
    RemoveRows,
    ShardAbout,
    ShardAnswer,
    ShardAsk,
    ShardFound,
    ShardHolds,
    ShardIds,
)

__all__ = ["FoundInShards", "SearchService"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundInShards:
    """What the shards found.

    Attributes:
        hits: nearest vectors of those that answered.
        missing: shards that did not answer.
    """

    hits: Hits
    missing: tuple[str, ...] = ()


class SearchService:
    """Searches and changes all shards as one index.

    Attributes:
        dim: numbers in a vector.
        metric: how distances are measured.
        num_restarts: times that a shard was started again.
    """

    def __init__(self, shards: Sequence[IndexShard]) -> None:
        """Ask the shards what they hold.

        Args:
            shards: at least one, of one width and metric, without common numbers.

        Raises:
            ConfigError: they do not fit together.
        """
        self._shards = list(shards)
        self._pool = ThreadPoolExecutor(len(self._shards), thread_name_prefix="shard")
        self._changes = threading.Lock()
        self._starting: set[str] = set()
        self.num_restarts = 0
        found = self.about()
        first = found[0]
        for shard, about in zip(self._shards, found, strict=True):
            if (about.dim, about.metric) != (first.dim, first.metric):
                raise ConfigError(
                    f"{shard.name} has {about.dim} numbers a vector ({about.metric}), "
                    f"{self._shards[0].name} has {first.dim} ({first.metric})",
                    hint="serve indexes of one encoder together",
                )
        self.dim = first.dim
        self.metric: Metric = first.metric
        self._next_id = max(about.next_id for about in found)
        self._check_numbers()

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self._shards)

    def about(self) -> list[ShardAbout]:
        """Return what each shard holds; raises `ShardDownError` where one does not answer."""
        answers = [self._ask(shard, AskAbout()) for shard in self._shards]
        return [answer for answer in answers if isinstance(answer, ShardAbout)]

    def reached(self) -> list[ShardAbout]:
        """Return what each shard holds that answers."""
        answers = self._ask_all(AskAbout())
        return [answer for answer in answers if isinstance(answer, ShardAbout)]

    def search(
        self,
        queries: NDArray[np.generic],
        k: int,
        *,
        nprobe: int = 0,
        exactly: bool = False,
        strict: bool = False,
    ) -> FoundInShards | None:
        """Return the nearest vectors in all shards that answer.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells of each shard to look into; 0 for the indexes' own number.
            exactly: compare all vectors.
            strict: a shard that does not answer is an error.

        Returns:
            The hits, and who is missing; None where a shard cannot compare all vectors.

        Raises:
            DataError: queries of another width, or not finite.
            ShardDownError: no shard answers, or one does not and `strict` is set.
            SteelyardError: a shard refuses.
        """
        asked = checked_vectors(queries, self.dim, what="queries")
        ask = FindRows(asked.tobytes(), self.dim, k, nprobe, exactly)
        answers = self._ask_all(ask)
        missing = tuple(
            shard.name
            for shard, answer in zip(self._shards, answers, strict=True)
            if isinstance(answer, ShardDownError)
        )
        found = [answer.hits() for answer in answers if isinstance(answer, ShardFound)]
        if missing and (strict or not found):
            raise ShardDownError(
                f"{len(missing)} of {len(self._shards)} shards do not answer: {', '.join(missing)}",
                hint="they are started again; ask once more",
            )
        hits = [part for part in found if part is not None]
        if len(hits) < len(found):
            return None
        merged = merge_hits(hits, k, self.metric) if len(hits) > 1 else hits[0]
        return FoundInShards(hits=merged, missing=missing)

    def add(
        self, vectors: NDArray[np.generic], ids: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Add vectors to the smallest shard.

        Args:
            vectors: [N, D].
            ids: their numbers, from 0, each new in all shards; counted on where none are given.

        Returns:
            Their numbers.

        Raises:
            DataError: vectors of another width or not finite, or a number that is there already.
            ShardDownError: a shard does not answer; nothing was added.
            SteelyardError: a shard refuses.
        """
        with self._changes:
            rows = checked_vectors(vectors, self.dim)
            taken = np.empty(0, np.int64)
            if ids is not None and len(self._shards) > 1:
                held = self._holding(ids)
                taken = np.asarray(ids)[held.any(axis=0)]
            numbers = checked_ids(ids, len(rows), taken, self._next_id)
            smallest = int(np.argmin([about.size for about in self.about()]))
            self._ask(self._shards[smallest], AddRows(numbers.tobytes(), rows.tobytes()))
            if len(numbers):
                self._next_id = max(self._next_id, int(numbers.max()) + 1)
            return numbers

    def remove(self, ids: NDArray[np.int64]) -> None:
        """Remove vectors from the shards that hold them.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is in no shard; nothing was removed.
            ShardDownError: a shard does not answer. Shards asked before it have removed theirs.
            SteelyardError: a shard refuses.
        """
        with self._changes:
            numbers = np.unique(np.asarray(ids, dtype=np.int64))
            held = self._holding(numbers)
            unknown = numbers[~held.any(axis=0)]
            if len(unknown):
                raise DataError(
                    f"there is no vector {int(unknown[0])}; nothing was removed",
                    hint="leave out numbers that are not there",
                )
            for shard, mask in zip(self._shards, held, strict=True):
                if mask.any():
                    self._ask(shard, RemoveRows(numbers[mask].tobytes()))

    def close(self) -> None:
        """End all shards; changes are kept."""
        self._pool.shutdown()
        for shard in self._shards:
            shard.close()

    def _holding(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which shard holds which number [shards, N]; numbers must be whole."""
        numbers = np.asarray(ids)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise DataError(f"{numbers.dtype} {list(numbers.shape)} are no numbers of vectors")
        ask = HoldsRows(numbers.astype(np.int64).tobytes())
        found = []
        for shard in self._shards:
            answer = self._ask(shard, ask)
            assert isinstance(answer, ShardHolds)
            found.append(np.frombuffer(answer.is_there, bool))
        return np.array(found)

    def _check_numbers(self) -> None:
        """Refuse shards with common numbers: an answer would hold two vectors of one number."""
        if len(self._shards) == 1:
            return
        answers = [self._ask(shard, ListRows()) for shard in self._shards]
        lists = [
            np.frombuffer(item.ids, np.int64) for item in answers if isinstance(item, ShardIds)
        ]
        values, counts = np.unique(np.concatenate(lists), return_counts=True)
        if (counts > 1).any():
            twice = int(values[counts > 1][0])
            names = [
                shard.name for shard, ids in zip(self._shards, lists, strict=True) if twice in ids
            ]
            raise ConfigError(
                f"the number {twice} is in {' and in '.join(names)}",
                hint="give the vectors of each shard numbers of their own",
            )

    def _ask(self, shard: IndexShard, ask: ShardAsk) -> ShardAnswer:
        """Ask a shard; one that is down is started again meanwhile, whatever was asked."""
        try:
            return shard.ask(ask)
        except ShardDownError:
            self._restart(shard)
            raise

    def _ask_all(self, ask: ShardAsk) -> list[ShardAnswer | ShardDownError]:
        """Ask all shards at once; the error stands in the place of an answer that is missing."""

        def one(shard: IndexShard) -> ShardAnswer | ShardDownError:
            try:
                return self._ask(shard, ask)
            except ShardDownError as error:
                return error

        if len(self._shards) == 1:
            return [one(self._shards[0])]
        return list(self._pool.map(one, self._shards))

    def _restart(self, shard: IndexShard) -> None:
        """Start a shard in the background, unless somebody does already."""
        if not isinstance(shard, StartedShard) or shard.name in self._starting:
            return
        self._starting.add(shard.name)

        def start() -> None:
            try:
                shard.start()
                self.num_restarts += 1
            except SteelyardError:
                return  # the next question tries again
            finally:
                self._starting.discard(shard.name)

        threading.Thread(target=start, daemon=True).start()
