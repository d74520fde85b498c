"""What nodes are asked, and what they answer. Columns of numbers travel as little-endian bytes."""

import msgspec

from steelyard.data.shardstore.shardmap import ShardMap

__all__ = [
    "Ack",
    "Answer",
    "Apply",
    "Done",
    "FragmentBytes",
    "Freeze",
    "Get",
    "GetFragment",
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

    id: int = 0


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


class Get(_Message, frozen=True):
    """Read keys (uint64). `slabs` are pairs of slab and generation that were copied."""

    keys: bytes
    is_local: bool = False
    slabs: tuple[tuple[int, int], ...] = ()


class Put(_Message, frozen=True):
    """Write rows; their versions are given by the node."""

    rows: bytes


class Scan(_Message, frozen=True):
    """Read at most `limit` rows from key `first` to `last`, included, in order."""

    first: int
    last: int
    limit: int


class Apply(_Message, frozen=True):
    """Keep rows that another node has written."""

    rows: bytes


class TreeLevel(_Message, frozen=True):
    """Return the hashes of some nodes (int64) of one level of the tree over a range."""

    first: int
    last: int
    level: int
    nodes: bytes


class Pull(_Message, frozen=True):
    """Return the rows of some buckets (int64) of a range."""

    first: int
    last: int
    buckets: bytes


class Sync(_Message, frozen=True):
    """Catch up on a range from another node, or read its whole content where nothing is here."""

    first: int
    last: int
    address: str


class Freeze(_Message, frozen=True):
    """Code a shard and send its fragments to addresses, in their order."""

    shard: int
    version: int
    data: int
    parity: int
    addresses: tuple[str, ...]


class KeepFragment(_Message, frozen=True):
    """Keep one coded block of a shard on disk; `version` is the epoch that it was coded in."""

    shard: int
    version: int
    number: int
    size: int
    content: bytes


class GetFragment(_Message, frozen=True):
    """Return a coded block that is kept here."""

    shard: int
    version: int
    number: int


class RebuildFragment(_Message, frozen=True):
    """Make a lost coded block again from others' and keep it."""

    shard: int
    version: int
    number: int
    data: int
    parity: int
    addresses: tuple[str, ...]


class WarmShard(_Message, frozen=True):
    """Read a cold shard's fragments, decode them and keep the rows in memory."""

    shard: int
    version: int
    data: int
    parity: int
    addresses: tuple[str, ...]


class Ack(_Message, frozen=True):
    """I am here: when I speak, what I know and hold, and what was read and written since.

    Attributes:
        reads: rows read by shard of the map, int64.
        writes: rows written by shard of the map, int64.
        rows: rows held by shard of the map, int64.
        fragments: shard, version and number of every coded block that is kept, int64.
        recovered: whether all that was acknowledged before a restart was read back.
        middle: the median key of the shard that was read most.
    """

    boot: int
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


class RowBatch(_Message, frozen=True):
    """Rows, as bytes, or as a slab of the node's arena: slab, generation, bytes."""

    rows: bytes
    arena: str = ""
    slab: tuple[int, int, int] = (0, 0, 0)


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
Answer = Ack | RowBatch | Hashes | FragmentBytes | Done | NodeRefusal
