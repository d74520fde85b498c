"""What the end of a change makes of its shard: who holds it then, in which form."""

from steelyard.data.shardstore.shardmap import Shard
from steelyard.operate.shards.commands import ShardTask

__all__ = ["shard_after"]


def shard_after(shard: Shard, task: ShardTask, *, ok: bool, code: tuple[int, int]) -> Shard:
    """Return a shard as the end of one of its tasks leaves it.

    Args:
        shard: shard in the map.
        task: what has ended.
        ok: whether it was done.
        code: blocks of data and parity that a shard was coded into.

    Returns:
        The shard; the same object where nothing changes, as after a comparison.
    """
    command = task.command
    if command.kind == "copy":
        return _after_copy(shard, task, ok=ok)
    if command.kind == "retire":
        return shard.with_(learners=_without(shard.learners, command.target))
    if command.kind == "freeze":
        if not ok:
            return shard.with_(sealed=False, fragments=())
        return shard.with_(sealed=False, code=code, fragments=command.nodes, replicas=())
    if command.kind == "warm":
        if not ok:
            return shard.with_(learners=())
        return shard.with_(
            epoch=shard.epoch + 1,
            replicas=shard.learners,
            learners=(),
            code=(0, 0),
            fragments=(),
        )
    if command.kind == "rebuild":
        nodes = list(shard.fragments)
        if ok:
            nodes[command.number] = command.target
        return shard.with_(fragments=tuple(nodes), learners=())
    return shard


def _after_copy(shard: Shard, task: ShardTask, *, ok: bool) -> Shard:
    """Make a learner that has caught up a replica, in place of another where that was meant."""
    target = task.command.target
    if target not in shard.learners:
        return shard  # it died, or the shard was changed meanwhile
    learners = _without(shard.learners, target)
    if not ok:
        return shard.with_(learners=learners)
    if task.replaces not in shard.replicas:
        return shard.with_(learners=learners, replicas=(*shard.replicas, target))
    place = shard.replicas.index(task.replaces)
    return shard.with_(
        # Who is replaced gets every write until it knows; the next task waits for that.
        learners=(*learners, task.replaces),
        replicas=(*shard.replicas[:place], target, *shard.replicas[place + 1 :]),
        epoch=shard.epoch + (place == 0),  # another node writes now
    )


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(item for item in names if item != name)
