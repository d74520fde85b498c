"""An index for tenants in a folder: a snapshot, and a log of everything that changed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.append_log import AppendLog
from steelyard.errors import DataError
from steelyard.files import exclusive
from steelyard.retrieve.index import checked_ids, checked_vectors
from steelyard.retrieve.tenants.files import read_tree_index, write_tree_index
from steelyard.retrieve.tenants.records import Kind, TenantChange, encode_change, read_changes
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex

__all__ = [
    "TenantStore",
    "create_store",
    "is_tenant_store",
    "open_tenant_index",
    "require_tenant_store",
    "writing_store",
]

SNAPSHOT, LOG = "snapshot.index", "changes.log"
_SNAPSHOT_BYTES = 64 << 20
Ids = NDArray[np.int64]
_NONE = np.empty((0, 0), np.float32)


class TenantStore:
    """The one writer of a folder. A change is in the log before it is in the index.

    The log is kept whole: it says who could see what at any moment. A snapshot only saves the time
    of reading it.

    Attributes:
        folder: the folder.
        index: the index, up to date.
    """

    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.time) -> None:
        """Open a folder for writing; `writing_store` also keeps other writers out.

        Args:
            folder: folder of `create_store`.
            now_s: clock, seconds since 1970.

        Raises:
            DataError: there is no index, or it is damaged.
        """
        self.folder, self._now_s = folder, now_s
        self.index, read_bytes = _opened(folder)
        self._log = AppendLog(folder / LOG)
        if self._log.num_bytes > read_bytes:
            # A torn end goes, so that what is appended stands behind whole records.
            for _ in self._log.read():
                pass
        self._snapshot_bytes = read_bytes

    def add(self, vectors: NDArray[np.generic], ids: Ids | None = None) -> Ids:
        """Add vectors; errors as of `ClusterTreeIndex.add`, or the disk is full.

        Args:
            vectors: [N, D].
            ids: their numbers, from 0, each new; counted on where none are given.

        Returns:
            Their numbers.
        """
        rows = checked_vectors(vectors, self.index.dim)
        known = self.index.rows
        numbers = checked_ids(ids, len(rows), known.known(), known.next_id)
        self._write(TenantChange(at_s=self._now_s(), kind="add", ids=numbers, vectors=rows))
        return self.index.add(rows, numbers)

    def grant(self, ids: Ids, tenant: str) -> int:
        """Let a tenant see vectors; errors as of `ClusterTreeIndex.grant`, or the disk is full.

        Args:
            ids: numbers of vectors.
            tenant: its name.

        Returns:
            Vectors that are new to the tenant.
        """
        self.index.check_grant(ids, tenant)
        self._write(self._change("grant", ids, tenant))
        return self.index.grant(ids, tenant)

    def revoke(self, ids: Ids, tenant: str) -> int:
        """Hide vectors from a tenant; errors as of `ClusterTreeIndex.revoke`, or the disk is full.

        Args:
            ids: numbers of vectors.
            tenant: its name.

        Returns:
            Vectors that it no longer sees.
        """
        self.index.check_revoke(ids, tenant)
        self._write(self._change("revoke", ids, tenant))
        return self.index.revoke(ids, tenant)

    def remove(self, ids: Ids) -> None:
        """Remove vectors; errors as of `ClusterTreeIndex.remove`, or the disk is full.

        Args:
            ids: their numbers.
        """
        self.index.rows.rows_of(np.asarray(ids, np.int64))
        self._write(self._change("remove", ids, ""))
        self.index.remove(ids)

    def snapshot(self) -> None:
        """Write the index, so that the next opening reads no log.

        Raises:
            CapacityError: the disk is full; the older snapshot stays.
        """
        end = self._log.num_bytes
        write_tree_index(self.folder / SNAPSHOT, self.index, {"log_bytes": end})
        self._snapshot_bytes = end

    def close(self) -> None:
        """Write a snapshot if much has changed since the last, and close the log."""
        if self._log.num_bytes - self._snapshot_bytes > _SNAPSHOT_BYTES:
            self.snapshot()
        self._log.close()

    def _change(self, kind: Kind, ids: Ids, tenant: str) -> TenantChange:
        numbers = np.atleast_1d(np.asarray(ids, np.int64))
        return TenantChange(
            at_s=self._now_s(), kind=kind, ids=numbers, tenant=tenant, vectors=_NONE
        )

    def _write(self, change: TenantChange) -> None:
        self._log.append(encode_change(change))


def create_store(folder: Path, index: ClusterTreeIndex) -> None:
    """Put a trained index without vectors into a folder.

    Args:
        folder: made when missing; it holds no store yet.
        index: the index.

    Raises:
        DataError: there is a store already, or the index holds vectors, which the log would lack.
        StoreError: another process holds the folder.
    """
    if len(index):
        raise DataError("an index with vectors", hint="create the store first, then add them to it")
    with exclusive(folder):
        if (folder / SNAPSHOT).exists() or (folder / LOG).exists():
            raise DataError(f"{folder} holds an index already", hint="choose another folder")
        write_tree_index(folder / SNAPSHOT, index, {"log_bytes": 0})


@contextmanager
def writing_store(
    folder: Path, *, now_s: Callable[[], float] = time.time, wait_s: float = 10.0
) -> Iterator[TenantStore]:
    """Change an index in a folder as its only writer.

    Args:
        folder: folder of `create_store`.
        now_s: clock, seconds since 1970.
        wait_s: seconds to wait for another writer.

    Yields:
        The store.

    Raises:
        DataError: there is no index, or it is damaged.
        StoreError: another process writes.
    """
    require_tenant_store(folder)
    with exclusive(folder, wait_s=wait_s):
        store = TenantStore(folder, now_s=now_s)
        try:
            yield store
        finally:
            store.close()


def is_tenant_store(folder: Path) -> bool:
    """Whether a folder holds an index that tenants share."""
    return (folder / SNAPSHOT).is_file()


def require_tenant_store(folder: Path) -> None:
    """Refuse a folder without an index that tenants share; raises `DataError`."""
    if not is_tenant_store(folder):
        raise _missing(folder)


def open_tenant_index(folder: Path) -> ClusterTreeIndex:
    """Return the index of a folder as it is now, for reading; nothing is written.

    Args:
        folder: folder of `create_store`.

    Returns:
        The index.

    Raises:
        DataError: there is no index, or it is damaged.
    """
    return _opened(folder)[0]


def _opened(folder: Path) -> tuple[ClusterTreeIndex, int]:
    """Return the index of a folder and how much of the log the snapshot had."""
    require_tenant_store(folder)
    index, about = read_tree_index(folder / SNAPSHOT)
    begin = int(about.get("log_bytes", 0))
    for change, _ in read_changes(folder / LOG, begin):
        if change.kind == "add":
            index.add(change.vectors, change.ids)
        elif change.kind == "remove":
            index.remove(change.ids)
        elif change.kind == "grant":
            index.grant(change.ids, change.tenant)
        else:
            index.revoke(change.ids, change.tenant)
    return index, begin


def _missing(folder: Path) -> DataError:
    return DataError(
        f"{folder} holds no index for tenants",
        hint="make one: steelyard retrieve tenants build vectors.npy --grants grants.csv",
    )
