"""What a node is started with."""

from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import require

__all__ = ["NodeConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    """One node of a store.

    Attributes:
        name: unique in the store.
        address: "unix:PATH" or "tcp:HOST:PORT", where it listens.
        folder: its log and coded blocks.
        row_bytes: longest value.
        key: secret of the store in hex, needed over TCP; 16 bytes or more.
        capacity: rows to make room for at the start.
        parity: keep parity above the rows.
        persist: log writes, so that they outlive the process.
        sync: wait for the disk with each write.
        disk_bytes: most bytes of log and table; 0 for what the disk holds.
        bytes_per_s: speed of its link, each way, and of its disk; 0 for no limit.
        gossip_s: seconds between pings to other nodes.
        suspicion: time-out of a suspect, in those times the logarithm of the number of nodes.
    """

    name: str
    address: str
    folder: Path
    row_bytes: int = 128
    key: str = ""
    capacity: int = 1024
    parity: bool = True
    persist: bool = True
    sync: bool = False
    disk_bytes: int = 0
    bytes_per_s: float = 0.0
    gossip_s: float = 0.5
    suspicion: float = 4.0

    def __post_init__(self) -> None:
        is_open = self.address.startswith("unix:") or len(self.key) >= 32
        require(
            self,
            name=(bool(self.name), "not empty"),
            row_bytes=(1 <= self.row_bytes <= 1 << 20, "in [1, 1048576]"),
            key=(is_open, "at least 32 hex digits where the address is of TCP"),
            capacity=(self.capacity >= 1, "at least 1"),
            disk_bytes=(self.disk_bytes >= 0, "at least 0"),
            bytes_per_s=(self.bytes_per_s >= 0, "at least 0"),
            gossip_s=(self.gossip_s > 0, "above 0"),
            suspicion=(self.suspicion > 0, "above 0"),
        )
