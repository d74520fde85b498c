"""What a node keeps on disk: a log of its writes, and now and then the whole table."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from steelyard.data.shardstore.rows import Rows, rows_from_bytes
from steelyard.errors import CapacityError, DataError
from steelyard.files import atomic_path
from steelyard.frames import FrameCodec

__all__ = ["WriteLog"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_BYTES = 1 << 20
_SNAPSHOT_ROWS = 4096


class WriteLog:
    """A log of rows, each write one frame with a checksum.

    A write that the operating system has taken survives the death of this process; `sync` also
    waits for the disk, for a host that may lose its power.

    Attributes:
        num_bytes: length of the log.
        is_full: the last write found no room; reads go on, and the next write tries again.
    """

    def __init__(self, folder: Path, *, sync: bool = False, limit_bytes: int | None = None) -> None:
        """Open the log of a folder, or begin it.

        Args:
            folder: made when missing.
            sync: wait for the disk after each write.
            limit_bytes: longest log and table together; None for what the disk holds.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._log, self._table = folder / "log.bin", folder / "table.bin"
        self._sync, self._limit_bytes = sync, limit_bytes
        self._codec = FrameCodec()
        self._handle = os.open(self._log, os.O_RDWR | os.O_CREAT, 0o644)
        self.num_bytes = os.fstat(self._handle).st_size
        self._table_bytes = self._table.stat().st_size if self._table.exists() else 0
        self.is_full = False

    def read(self) -> Iterator[Rows]:
        """Yield all rows that are kept, older ones first; a torn end of the log is cut off.

        Yields:
            Rows of one write.

        Raises:
            DataError: something before the end is damaged; what came before it has been yielded.
        """
        yield from (rows for rows, _ in _frames(self._table))
        end = 0
        for rows, end in _frames(self._log):  # noqa: B007
            yield rows
        # A process killed while it wrote leaves a torn end, which was never acknowledged.
        os.ftruncate(self._handle, end)
        self.num_bytes = end

    def append(self, rows: Rows) -> int:
        """Keep some rows.

        Args:
            rows: what is written.

        Returns:
            Bytes written.

        Raises:
            CapacityError: there is no room; nothing of the rows is kept.
        """
        frame = self._codec.encode(rows.to_bytes())
        try:
            total = self.num_bytes + self._table_bytes + len(frame)
            if self._limit_bytes is not None and total > self._limit_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done = 0
            while done < len(frame):
                done += os.pwrite(self._handle, frame[done:], self.num_bytes + done)
            if self._sync:
                os.fdatasync(self._handle)
        except OSError as error:
            # What was written of the frame goes, else the next frame would stand behind a torn one.
            os.ftruncate(self._handle, self.num_bytes)
            if error.errno not in _FULL:
                raise
            self.is_full = True
            raise CapacityError(
                f"no room for {len(frame)} bytes in {self._log}", hint="free some space"
            ) from error
        self.num_bytes += len(frame)
        self.is_full = False
        return len(frame)

    def is_long(self) -> bool:
        """Whether the log is so much longer than the table that it should be folded into it."""
        return self.num_bytes > max(64 << 20, 2 * self._table_bytes)

    def fold(self, rows: Rows) -> None:
        """Replace table and log by a new table.

        Args:
            rows: all that has to be kept.

        Raises:
            CapacityError: there is no room; the log stays as it was.
        """
        with atomic_path(self._table) as path, path.open("wb") as stream:
            for start in range(0, len(rows), _SNAPSHOT_ROWS):
                part = rows.part(slice(start, start + _SNAPSHOT_ROWS))
                stream.write(self._codec.encode(part.to_bytes()))
        # A crash between the two leaves a log whose rows the table has already: versions tell.
        os.ftruncate(self._handle, 0)
        self.num_bytes, self._table_bytes = 0, self._table.stat().st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def _frames(path: Path) -> Iterator[tuple[Rows, int]]:
    """Yield the rows of a file's frames, with the place where each frame ends."""
    if not path.exists():
        return
    codec, end = FrameCodec(), 0
    with path.open("rb") as stream:
        while data := stream.read(_READ_BYTES):
            try:
                bodies = codec.feed(data)
            except DataError as error:
                raise DataError(
                    f"{path} is damaged behind byte {end}", hint="its rows come from peers"
                ) from error
            for body in bodies:
                end += len(codec.encode(body))
                yield rows_from_bytes(body), end
