"""A file behind http:// or https:// that is read by ranges."""

import io
import urllib.error
import urllib.request
from typing import Any

from steelyard.errors import DataError

__all__ = ["HttpFile"]

_TIMEOUT_S = 30.0
_TRIES = 3
_RANGE_HINT = "give an address of a server that answers byte ranges, or download the file first"


class HttpFile(io.RawIOBase):
    """A remote file of known size; each read asks for one range.

    Attributes:
        num_bytes: size of the file.
        stamp: what the server says of its version, empty where it says nothing.
    """

    def __init__(self, address: str) -> None:
        """Ask for the size.

        Args:
            address: http:// or https:// address.

        Raises:
            DataError: the server does not answer, has no such file, or serves no ranges.
        """
        self._address, self._place = address, 0
        answer = self._asked(0, 1)
        whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if answer.status == 416 or not whole.isdecimal():
            raise DataError(f"{address} serves no ranges of bytes", hint=_RANGE_HINT)
        self.num_bytes = int(whole)
        self.stamp = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""

    def _asked(self, first: int, count: int) -> Any:
        """Ask for a range; a connection that breaks is made again a few times."""
        wanted = {"Range": f"bytes={first}-{first + count - 1}"}
        request = urllib.request.Request(self._address, headers=wanted)
        for left in reversed(range(_TRIES)):
            try:
                return self._checked(urllib.request.urlopen(request, timeout=_TIMEOUT_S))
            except urllib.error.HTTPError as error:
                # What the server refuses, it refuses again; what it cannot do now, it may later.
                if error.code < 500 or not left:
                    raise DataError(
                        f"cannot read {self._address}: {error.code} {error.reason}",
                        hint="look at the address, and at what it may be read with",
                    ) from error
            except OSError as error:
                if not left:
                    raise DataError(f"cannot read {self._address}: {error}") from error
        raise AssertionError("the last try returns or raises")

    def _checked(self, answer: Any) -> Any:
        """Refuse a server that sends the whole file: it may be any size."""
        if answer.status != 206:
            answer.close()
            raise DataError(f"{self._address} serves no ranges of bytes", hint=_RANGE_HINT)
        return answer

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place; nothing is asked of the server."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.num_bytes}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read from the place on, at most to the end of the file."""
        view = memoryview(buffer).cast("B")
        count = min(len(view), self.num_bytes - self._place)
        if count <= 0:
            return 0
        done = 0
        with self._asked(self._place, count) as answer:
            while done < count and (part := answer.readinto(view[done:count])):
                done += part
        if done < count:
            raise DataError(f"{self._address} broke off after {done} of {count} bytes")
        self._place += done
        return done
