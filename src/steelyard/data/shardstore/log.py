"""What a node keeps on disk: a log of its writes, and now and then the whole table."""

from collections.abc import Iterator
from pathlib import Path

from steelyard.append_log import AppendLog, read_records
from steelyard.data.shardstore.rows import Rows, rows_from_bytes
from steelyard.errors import CapacityError
from steelyard.files import atomic_path
from steelyard.frames import FrameCodec

__all__ = ["WriteLog"]

_SNAPSHOT_ROWS = 4096


class WriteLog:
    """A log of rows, each write one record, and a table that it is folded into.

    Attributes:
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
        self._table = folder / "table.bin"
        self._log = AppendLog(folder / "log.bin", sync=sync)
        self._limit_bytes = limit_bytes
        self._table_bytes = self._table.stat().st_size if self._table.exists() else 0
        self.is_full = False

    @property
    def num_bytes(self) -> int:
        """Length of the log."""
        return self._log.num_bytes

    def read(self) -> Iterator[Rows]:
        """Yield all rows that are kept, older ones first; a torn end of the log is cut off.

        Yields:
            Rows of one write.

        Raises:
            DataError: something before the end is damaged; what came before it has been yielded.
        """
        for body, _ in read_records(self._table):
            yield rows_from_bytes(body)
        for body in self._log.read():
            yield rows_from_bytes(body)

    def append(self, rows: Rows) -> int:
        """Keep some rows.

        Args:
            rows: what is written.

        Returns:
            Bytes written.

        Raises:
            CapacityError: there is no room; nothing of the rows is kept.
        """
        most = None if self._limit_bytes is None else self._limit_bytes - self._table_bytes
        try:
            written = self._log.append(rows.to_bytes(), most_bytes=most)
        except CapacityError:
            self.is_full = True
            raise
        self.is_full = False
        return written

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
        codec = FrameCodec()
        with atomic_path(self._table) as path, path.open("wb") as stream:
            for start in range(0, len(rows), _SNAPSHOT_ROWS):
                part = rows.part(slice(start, start + _SNAPSHOT_ROWS))
                stream.write(codec.encode(part.to_bytes()))
        # A crash between the two leaves a log whose rows the table has already: versions tell.
        self._log.clear()
        self._table_bytes = self._table.stat().st_size

    def close(self) -> None:
        """Close the file."""
        self._log.close()
