"""What the controller knows of its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NodeReport", "NodeView"]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node tells in answer to a ping.

    Attributes:
        boot: number of its process.
        spoken_s: when it spoke, on its own clock.
        map_version: map that it has.
        rows: rows held by shard number; of shards without rows nothing is told.
        fragments: shard, version and number of the coded blocks that it keeps.
        recovered: it read back all that it had acknowledged before it was restarted.
        is_full: it has no room for writes.
        suspects: nodes that it suspects, by gossip.
        dead: nodes that it takes for dead, by gossip.
    """

    boot: int
    spoken_s: float
    map_version: int
    rows: Mapping[int, int] = field(default_factory=dict)
    fragments: frozenset[tuple[int, int, int]] = frozenset()
    recovered: bool = False
    is_full: bool = False
    suspects: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()

    def lacks(self, block: tuple[int, int, int], map_version: int) -> bool:
        """Whether a coded block that the map places on the node is not there."""
        # A report from before the shard was coded cannot name its blocks.
        return self.map_version >= map_version and block not in self.fragments


@dataclass(slots=True)
class NodeView:
    """What the controller knows of a node.

    Attributes:
        address: where it listens.
        capacity: weight for placement.
        report: its newest answer, or None.
        heard_s: when that came, on the controller's clock.
        host: failure domain.
    """

    address: str
    capacity: float = 1.0
    report: NodeReport | None = None
    heard_s: float = float("-inf")
    host: str = ""
