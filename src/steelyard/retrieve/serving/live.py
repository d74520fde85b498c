"""An index that is searched while vectors come and go; what was acknowledged survives a kill."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from steelyard.append_log import AppendLog
from steelyard.errors import CapacityError, DataError, StoreError
from steelyard.files import exclusive
from steelyard.retrieve.index import Hits, Metric, checked_ids, checked_k, checked_vectors
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.merging import merge_hits, without
from steelyard.retrieve.opening import open_index

__all__ = ["LiveIndex", "live_index"]

_FRESH_MOST = 8192
"""New vectors that are compared one by one; more are sorted into the index."""
_LOG_MOST_BYTES = 256 << 20

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class _Change(msgspec.Struct, array_like=True):
    """One record of the log: numbers, and their vectors where they were added."""

    ids: bytes
    vectors: bytes = b""


class LiveIndex:
    """An index from a file, and the changes since.

    New vectors stand beside the index, where every search compares all of them, and are sorted
    into it when they have become many: sorting copies the whole index.

    Attributes:
        path: file of the index.
        index: what the file holds, and the changes that were sorted in.
    """

    def __init__(self, path: Path, *, log: AppendLog | None = None) -> None:
        """Open an index, and make the changes that the log has anew.

        Args:
            path: file that `save` of an index wrote.
            log: changes since, and those to come; None refuses all changes.

        Raises:
            DataError: the file or the log is damaged.
        """
        self.path, self._log = path, log
        self.index: IVF = open_index(path)
        self._fresh = self._no_vectors()
        self._gone = np.empty(0, np.int64)
        self._known = np.sort(self.index.rows.all_ids())
        for record in log.read() if log else ():
            self._replay(msgspec.msgpack.decode(record, type=_Change))

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return len(self.index) - len(self._gone) + len(self._fresh)

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self.index.dim

    @property
    def metric(self) -> Metric:
        """How distances are measured."""
        return self.index.metric

    @property
    def next_id(self) -> int:
        """First number that was never given."""
        return max(self.index.rows.next_id, self._fresh.rows.next_id)

    def search(self, queries: NDArray[np.generic], k: int, *, nprobe: int | None = None) -> Hits:
        """Return the nearest vectors of each query.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells to look into; the index's own number where none is given.

        Returns:
            The hits.

        Raises:
            ConfigError: k or nprobe is below 1.
            DataError: queries of another width, or not finite.
        """
        parts = [self._search_file(queries, checked_k(k), nprobe)]
        if len(self._fresh):
            parts.append(self._fresh.search(queries, k))
        return merge_hits(parts, k, self.metric)

    def _search_file(self, queries: NDArray[np.generic], k: int, nprobe: int | None) -> Hits:
        """Search the index for k vectors that were not removed."""
        most = k + len(self._gone)
        wanted = min(2 * k, most)
        while True:
            found = self.index.search(queries, wanted, nprobe=nprobe)
            left = without(found, self._gone, self.metric)
            # Removed vectors stood among the nearest: more are looked for, until even all of them
            # could have been there.
            if wanted >= most or (left.ids[:, k - 1] >= 0).all():
                return left
            wanted = min(2 * wanted, most)

    def search_exactly(self, queries: NDArray[np.generic], k: int) -> Hits | None:
        """Return the nearest vectors by comparing all; None where the index keeps codes alone."""
        rows = self.index.rows
        rows.settle()
        if "vectors" not in rows.columns:
            return None
        exact = IVFFlat(self.dim, metric=self.metric)
        exact.rows.ids, exact.rows.columns = rows.ids, {"vectors": rows.columns["vectors"]}
        exact.rows.starts = np.array([0, len(rows.ids)])
        found = exact.search(queries, checked_k(k) + len(self._gone))
        parts = [without(found, self._gone, self.metric), self._fresh.search(queries, k)]
        return merge_hits(parts, k, self.metric)

    def add(self, vectors: NDArray[np.generic], ids: Ids | None = None) -> Ids:
        """Add vectors.

        Args:
            vectors: [N, D].
            ids: their numbers, from 0, each new; counted on where none are given.

        Returns:
            Their numbers [N]; they are kept whatever happens to this process.

        Raises:
            ConfigError: the index keeps bytes, and a vector does not fit.
            DataError: vectors of another width or not finite, or a number that is there already.
            CapacityError: the disk is full; nothing was added.
            StoreError: the index takes no changes.
        """
        rows = checked_vectors(vectors, self.dim)
        if isinstance(self.index, IVFFlat):
            self.index.codec.columns(rows, self._gone, self.index.centers)  # bytes may not do
        given = _numbers(ids)
        numbers = checked_ids(ids, len(rows), given[self._is_there(given)], self.next_id)
        # The log is written first: an index that was changed and then failed to log would
        # answer with vectors that a restart forgets.
        self._keep(_Change(numbers.tobytes(), rows.tobytes()))
        self._take(numbers, rows)
        return numbers

    def remove(self, ids: Ids) -> None:
        """Remove vectors.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is not there; then nothing is removed.
            CapacityError: the disk is full; nothing was removed.
            StoreError: the index takes no changes.
        """
        numbers = np.unique(np.asarray(ids, dtype=np.int64))
        unknown = numbers[~self._is_there(numbers)]
        if len(unknown):
            raise DataError(
                f"there is no vector {int(unknown[0])}; nothing was removed",
                hint="leave out numbers that are not there",
            )
        self._keep(_Change(numbers.tobytes()))
        self._drop(numbers)

    def ids(self) -> Ids:
        """Return the numbers of all vectors, in no order."""
        stay = np.setdiff1d(self.index.rows.all_ids(), self._gone)
        return np.concatenate([stay, self._fresh.rows.all_ids()])

    def holds(self, ids: Ids) -> NDArray[np.bool_]:
        """Return whether each number is there [N]."""
        return self._is_there(_numbers(ids))

    def is_due(self) -> bool:
        """Whether so much has changed that `settle` or `fold` is worth its time."""
        changes = len(self._fresh) + len(self._gone)
        return changes > max(_FRESH_MOST, len(self.index) // 64) or self._log_is_long()

    def settle(self) -> None:
        """Sort changes into the index; a long log is folded into the file as well."""
        if len(self._gone):
            self.index.remove(self._gone)
        rows = self._fresh.rows
        rows.settle()
        if len(rows.ids):
            self.index.add(rows.columns["vectors"], rows.ids)
        self._fresh, self._gone = self._no_vectors(), np.empty(0, np.int64)
        self._known = np.sort(self.index.rows.all_ids())
        if self._log_is_long():
            self.fold()

    def fold(self) -> None:
        """Write the index with all changes, and begin the log anew.

        Raises:
            CapacityError: the disk is full; file and log stay as they were.
            StoreError: the index takes no changes.
        """
        if self._log is None:
            raise StoreError(f"{self.path} was opened for reading")
        if len(self._fresh) or len(self._gone):
            self.settle()
        self.index.save(self.path)
        # A kill between the two replays changes that the file has already, which changes nothing.
        self._log.clear()

    def _log_is_long(self) -> bool:
        return self._log is not None and self._log.num_bytes > _LOG_MOST_BYTES

    def _no_vectors(self) -> IVFFlat:
        made = IVFFlat(self.dim, metric=self.metric)
        made.rows.next_id = self.index.rows.next_id
        return made

    def _is_there(self, numbers: Ids) -> NDArray[np.bool_]:
        """Return whether each number is taken."""
        in_file = np.isin(numbers, self._known) & ~np.isin(numbers, self._gone)
        return in_file | np.isin(numbers, self._fresh.rows.all_ids())

    def _keep(self, change: _Change) -> None:
        if self._log is None:
            raise StoreError(
                f"{self.path} was opened for reading", hint="serve it without --read-only"
            )
        self._log.append(msgspec.msgpack.encode(change))

    def _take(self, numbers: Ids, rows: Floats) -> None:
        """Add rows beside the index.

        A number may still stand in the index, removed since: then the removal is done there first,
        else it would hide the new vector.
        """
        back = np.intersect1d(numbers, self._gone)
        if len(back):
            self.index.remove(back)
            self._gone = np.setdiff1d(self._gone, back)
            self._known = np.setdiff1d(self._known, back)
        self._fresh.add(rows, numbers)

    def _drop(self, numbers: Ids) -> None:
        fresh = np.intersect1d(numbers, self._fresh.rows.all_ids())
        if len(fresh):
            self._fresh.remove(fresh)
        self._gone = np.union1d(self._gone, np.setdiff1d(numbers, fresh))

    def _replay(self, change: _Change) -> None:
        """Make a logged change; one that the file has already changes nothing."""
        numbers = np.frombuffer(change.ids, np.int64)
        is_there = self._is_there(numbers)
        if not change.vectors:
            self._drop(numbers[is_there])
            return
        rows = np.frombuffer(change.vectors, np.float32).reshape(len(numbers), -1)
        if rows.shape[1] != self.dim:
            raise DataError(
                f"the log beside {self.path} has vectors of {rows.shape[1]} numbers, the index "
                f"has {self.dim}",
                hint="the file was replaced by another index; move the folder of the log away",
            )
        self._take(numbers[~is_there], rows[~is_there])


def _numbers(ids: Ids | None) -> Ids:
    """Return numbers to look up; what is no list of whole numbers is refused later."""
    found = np.asarray([] if ids is None else ids)
    return found.ravel().astype(np.int64) if found.dtype.kind in "iu" else np.empty(0, np.int64)


@contextmanager
def live_index(path: Path, *, read_only: bool = False) -> Iterator[LiveIndex]:
    """Hold an index for searches and changes.

    Changes stand in the folder `<path>.changes` until the index is written anew, at the latest
    when the block ends.

    Args:
        path: file of the index.
        read_only: take no changes; several may then read the same file.

    Yields:
        The index.

    Raises:
        DataError: the file or the log is damaged.
        StoreError: another process changes this index.
    """
    if read_only:
        yield LiveIndex(path)
        return
    if not path.is_file():
        raise DataError(f"{path} is no file", hint="make one by `steelyard retrieve build`")
    folder = path.with_name(path.name + ".changes")
    with ExitStack() as stack:
        stack.enter_context(exclusive(folder, wait_s=1.0))
        log = AppendLog(folder / "log.bin")
        stack.callback(log.close)
        live = LiveIndex(path, log=log)
        yield live
        if log.num_bytes:
            # A full disk leaves file and log as they are: the next start reads both.
            try:
                live.fold()
            except CapacityError:
                return
