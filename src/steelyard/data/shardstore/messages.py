"""What nodes are asked, and what they answer. Columns of numbers travel as little-endian bytes."""

import msgspec

from steelyard.data.shardstore.shardmap import ShardMap
from steelyard.data.shardstore.swim import NodeRumor

__all__ = [
    "Ack",
    "Answer",
    "Apply",
    "Done",
    "FragmentBytes",
    "Freeze",
    "Get",
    "GetFragment",
    "Gossip",
    "Gossiped",
    "Hashes",
    "KeepFragment",
    "NodeRefusal",
    "Ping",
    "ProbeNode",
    "Pull",
    "Put",
    "RebuildFragment",
    "Request",
    "RowBatch",
    "Scan",
    "Sync",
    "TreeLevel",
    "WarmShard",
]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """A message; `id` pairs an answer with its request."""

    # A tag is the name of its class and fields go by their place: all nodes of a store, and whoever
    # talks to them, have to run the same version.
    id: int = 0


class _OfRange(_Message, frozen=True):
    """A message about the keys from `first` to `last`, both included."""

    first: int
    last: int


class _OfBlock(_Message, frozen=True):
    """A message about one coded block of a shard; `version` is the epoch that it was coded in."""

    shard: int
    version: int
    number: int


class _OfCode(_Message, frozen=True):
    """A message about all coded blocks of a shard, which stand at `addresses` in their order."""

    # The receiver asks these and not those of its own map, which may be older than the command.
    shard: int
    version: int
    data: int
    parity: int
    addresses: tuple[str, ...]


class Ping(_Message, frozen=True):
    """Are you there; with the lease for when you last spoke, and the map where yours is old.

    Attributes:
        boot: number of the process that spoke; -1 where none has.
        spoken_s: when it spoke, on its clock.
        lease_s: seconds from then.
        map: the newest, or None where the node has it.
        prune: forget what the map does not give you.
    """

    boot: int
    spoken_s: float
    lease_s: float
    map: ShardMap | None
    prune: bool


class ProbeNode(_Message, frozen=True):
    """Ask another node whether it is there."""

    address: str


class Gossip(_Message, frozen=True):
    """Are you there, or is the node at the address `probe`; with news of nodes."""

    sender: str
    rumors: tuple[NodeRumor, ...] = ()
    probe: str = ""


class Get(_Message, frozen=True):
    """Read keys (uint64). `slabs` are pairs of slab and generation that were copied."""

    keys: bytes
    is_local: bool = False
    slabs: tuple[tuple[int, int], ...] = ()


class Put(_Message, frozen=True):
    """Write rows; their versions are given by the node."""

    rows: bytes


class Scan(_OfRange, frozen=True):
    """Read at most `limit` rows of a range in order."""

    limit: int


class Apply(_Message, frozen=True):
    """Keep rows that another node has written."""

    rows: bytes


class TreeLevel(_OfRange, frozen=True):
    """Return the hashes of some nodes (int64) of one level of the tree over a range."""

    level: int
    nodes: bytes


class Pull(_OfRange, frozen=True):
    """Return the rows of some buckets (int64) of a range."""

    buckets: bytes


class Sync(_OfRange, frozen=True):
    """Catch up on a range from another node, or read its whole content where nothing is here."""

    address: str


class Freeze(_OfCode, frozen=True):
    """Code a shard and send its blocks to the addresses."""


class KeepFragment(_OfBlock, frozen=True):
    """Keep a coded block on disk; `size` is that of the shard's whole content."""

    # A block is padded to an equal share of the content: only the size says where that ends.
    size: int
    content: bytes


class GetFragment(_OfBlock, frozen=True):
    """Return a coded block that is kept here."""


class RebuildFragment(_OfCode, frozen=True):
    """Make a lost coded block again from others' and keep it."""

    number: int


class WarmShard(_OfCode, frozen=True):
    """Read a cold shard's blocks, decode them and keep the rows in memory."""


class Ack(_Message, frozen=True):
    """I am here: when I speak, what I know and hold, and what was read and written since.

    Attributes:
        reads: rows read by shard of the map, int64.
        writes: rows written by shard of the map, int64.
        rows: rows held by shard of the map, int64.
        fragments: shard, version and number of every coded block that is kept, int64.
        recovered: whether all that was acknowledged before a restart was read back.
        middle: the median key of the shard that was read most.
        not_alive: nodes that this one suspects or takes for dead, by its own pings and by gossip.
        incarnation: how often it had to refute that it is suspected.
    """

    boot: int
    # The node's own clock: a lease counted from here cannot outlive the controller's count of it.
    now_s: float
    map_version: int
    reads: bytes
    writes: bytes
    rows: bytes
    fragments: bytes
    recovered: bool
    is_full: bool
    num_bytes: int
    num_repairs: int
    middle: int
    moved_bytes: int
    not_alive: tuple[NodeRumor, ...] = ()
    incarnation: int = 0


class RowBatch(_Message, frozen=True):
    """Rows, as bytes, or as a slab of the node's arena: slab, generation, bytes."""

    rows: bytes
    arena: str = ""
    slab: tuple[int, int, int] = (0, 0, 0)


class Gossiped(_Message, frozen=True):
    """I am here, or the node that was to be probed is; with news of nodes."""

    rumors: tuple[NodeRumor, ...] = ()


class Hashes(_Message, frozen=True):
    """Hashes, uint64."""

    values: bytes


class FragmentBytes(_Message, frozen=True):
    """A coded block, and the bytes of the whole content."""

    content: bytes
    size: int


class Done(_Message, frozen=True):
    """It is done; `moved_bytes` went over the network for it."""

    moved_bytes: int = 0


class NodeRefusal(_Message, frozen=True):
    """It was not done.

    Attributes:
        reason: "lease", "moved", "sealed", "epoch", "full", "damaged", "peer" or "input".
        text: what happened.
    """

    reason: str
    text: str = ""


Request = (
    Ping
    | ProbeNode
    | Gossip
    | Get
    | Put
    | Scan
    | Apply
    | TreeLevel
    | Pull
    | Sync
    | Freeze
    | KeepFragment
    | GetFragment
    | RebuildFragment
    | WarmShard
)
Answer = Ack | Gossiped | RowBatch | Hashes | FragmentBytes | Done | NodeRefusal
