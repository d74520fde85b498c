"""Cold shards of a node: coded, sent out, made again, and read back into memory."""

from typing import Any

from steelyard.data.erasure import ErasureCode
from steelyard.data.shardstore.fragments import gather_fragments
from steelyard.data.shardstore.messages import (
    Done,
    FragmentBytes,
    Freeze,
    GetFragment,
    KeepFragment,
    NodeRefusal,
    RebuildFragment,
    WarmShard,
)
from steelyard.data.shardstore.node import ShardNode
from steelyard.data.shardstore.rows import rows_from_bytes
from steelyard.data.shardstore.wire import RefusedError
from steelyard.errors import CapacityError, DataLostError

__all__ = ["answer_cold"]

_PART_TIMEOUT_S = 30.0


async def answer_cold(node: ShardNode, ask: Any) -> Any:
    """Do what is asked about a cold shard.

    Args:
        node: the node.
        ask: one of the messages of cold shards.

    Returns:
        Its answer.
    """
    try:
        # Who may have been replaced neither codes nor decodes; blocks may be kept and given always.
        if isinstance(ask, (Freeze, WarmShard, RebuildFragment)) and not node.is_known():
            return NodeRefusal(reason="lease")
        if isinstance(ask, Freeze):
            return await _freeze(node, ask)
        if isinstance(ask, WarmShard):
            return await _warm(node, ask)
        if isinstance(ask, RebuildFragment):
            return await _rebuild(node, ask)
        if isinstance(ask, KeepFragment):
            fragment = FragmentBytes(content=ask.content, size=ask.size)
            node.fragments.keep(ask.shard, ask.version, ask.number, fragment)
            return Done()
        assert isinstance(ask, GetFragment)
        found = node.fragments.read(ask.shard, ask.version, ask.number)
        return found or NodeRefusal(reason="moved", text="no such block")
    except CapacityError as error:
        return NodeRefusal(reason="full", text=str(error))
    except DataLostError as error:
        return NodeRefusal(reason="damaged", text=str(error))
    except (OSError, RefusedError) as error:
        return NodeRefusal(reason="peer", text=str(error))


async def _freeze(node: ShardNode, ask: Freeze) -> Any:
    """Code the rows of a shard that takes no writes any more, and send the blocks out."""
    shard_map = node.custody.map
    shard = (
        next((item for item in shard_map.shards if item.id == ask.shard), None)
        if (shard_map)
        else None
    )
    # A write that came after the coding would be lost with the rows.
    if shard is None or not shard.sealed:
        return NodeRefusal(reason="moved", text=f"shard {ask.shard} is not sealed here")
    if node.refuse_source(shard.first, shard.last):
        return NodeRefusal(reason="lease", text="the rows may not be whole")
    rows, lost = node.table.take(node.table.select(shard.first, shard.last))
    if lost:
        return NodeRefusal(reason="damaged", text=f"{len(lost)} rows")
    content = rows.to_bytes()
    code = ErasureCode(data=ask.data, parity=ask.parity)
    blocks = code.split(content)
    moved = 0
    for number, block in enumerate((*blocks, *code.encode(blocks))):
        keep = KeepFragment(
            shard=ask.shard,
            version=ask.version,
            number=number,
            size=len(content),
            content=block.tobytes(),
        )
        await node.peer(ask.addresses[number]).ask(keep, _PART_TIMEOUT_S)
        moved += len(keep.content)
    node.moved_bytes += moved
    return Done(moved_bytes=moved)


async def _warm(node: ShardNode, ask: WarmShard) -> Done:
    """Decode a shard's rows into memory."""
    code = ErasureCode(data=ask.data, parity=ask.parity)
    peers = [node.peer(address) for address in ask.addresses]
    found, size = await gather_fragments(peers, ask.shard, ask.version, code)
    # Blocks are filled up to one length; only the size tells where the rows end.
    rows = rows_from_bytes(code.decode(found).tobytes()[:size])
    await node.keep(rows)
    moved = sum(block.nbytes for block in found.values())
    node.moved_bytes += moved
    return Done(moved_bytes=moved)


async def _rebuild(node: ShardNode, ask: RebuildFragment) -> Done:
    """Make one block again of k others."""
    code = ErasureCode(data=ask.data, parity=ask.parity)
    peers = [node.peer(address) for address in ask.addresses]
    found, size = await gather_fragments(peers, ask.shard, ask.version, code)
    fragment = FragmentBytes(content=code.decode(found, ask.number).tobytes(), size=size)
    node.fragments.keep(ask.shard, ask.version, ask.number, fragment)
    moved = sum(block.nbytes for block in found.values())
    node.moved_bytes += moved
    return Done(moved_bytes=moved)
