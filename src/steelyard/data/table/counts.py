"""What was asked of storage: bytes, requests, and row groups that needed no reading."""

from dataclasses import dataclass

__all__ = ["ReadCounts"]


@dataclass(slots=True)
class ReadCounts:
    """Reads of one or several files.

    Attributes:
        num_bytes: bytes that came back.
        requests: reads that were made; of a remote file each is one request.
    """

    num_bytes: int = 0
    requests: int = 0

    def add(self, other: "ReadCounts") -> None:
        """Take in other reads."""
        self.num_bytes += other.num_bytes
        self.requests += other.requests
