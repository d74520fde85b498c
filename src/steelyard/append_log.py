"""A file of records that only grows: what was acknowledged survives a kill, a torn end is cut."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from steelyard.errors import CapacityError, DataError
from steelyard.frames import HEAD_BYTES, FrameCodec, body_bytes

__all__ = ["AppendLog", "read_records"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class AppendLog:
    """Records of bytes, each one frame with a checksum.

    A record that the operating system has taken survives the death of this process; `sync` also
    waits for the disk, for a host that may lose its power.

    Attributes:
        path: the file.
        num_bytes: its length.
    """

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        """Open a log, or begin it.

        Args:
            path: the file; its folder is there.
            sync: wait for the disk after each record.

        Raises:
            OSError: the file cannot be opened.
        """
        self.path, self._sync = path, sync
        self._codec = FrameCodec()
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.num_bytes = os.fstat(self._handle).st_size

    def read(self) -> Iterator[bytes]:
        """Yield all records, older ones first; a torn end is cut off when the last was taken.

        Yields:
            One record.

        Raises:
            DataError: a record before the end is damaged; those before it have been yielded.
        """
        end = 0
        for body, end in read_records(self.path):  # noqa: B007
            yield body
        # A process killed while it wrote leaves a torn end, which was never acknowledged.
        os.ftruncate(self._handle, end)
        self.num_bytes = end

    def append(self, record: bytes, *, most_bytes: int | None = None) -> int:
        """Keep a record.

        Args:
            record: any bytes.
            most_bytes: longest file; None for what the disk holds.

        Returns:
            Bytes written.

        Raises:
            CapacityError: there is no room; nothing of the record is kept.
        """
        frame = self._codec.encode(record)
        try:
            if most_bytes is not None and self.num_bytes + len(frame) > most_bytes:
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
            raise CapacityError(
                f"no room for {len(frame)} bytes in {self.path}", hint="free some space"
            ) from error
        self.num_bytes += len(frame)
        return len(frame)

    def clear(self) -> None:
        """Drop all records: what they said is kept elsewhere by now."""
        os.ftruncate(self._handle, 0)
        self.num_bytes = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def read_records(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the records of a log without opening it for writing.

    Args:
        path: the file; one that is missing has no records.

    Yields:
        A record, and the byte behind it. A torn end is left out.

    Raises:
        DataError: a record is damaged; those before it have been yielded.
    """
    if not path.exists():
        return
    codec, end = FrameCodec(), 0
    with path.open("rb") as stream:
        # One frame at a time: whatever stands before a damaged one is still whole.
        while len(head := stream.read(HEAD_BYTES)) == HEAD_BYTES:
            try:
                bodies = codec.feed(head)
                body = stream.read(body_bytes(head)) if not bodies else b""
                bodies = bodies or codec.feed(body)
            except DataError as error:
                raise DataError(
                    f"{path} is damaged behind byte {end}",
                    hint="what stands before that byte is whole; restore the rest from a copy",
                ) from error
            if not bodies:
                return
            end += HEAD_BYTES + len(body)
            yield bodies[0], end
