"""What the controller wants done, and how far each of its tasks is."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["ShardCommand", "ShardTask", "TaskKind"]

TaskKind = Literal["copy", "reconcile", "retire", "freeze", "warm", "rebuild"]
"""A copy of a shard to another node, the comparison of two replicas, waiting until a node knows
that it serves no more, coding a shard, reading one back to memory, making a lost fragment again."""


@dataclass(frozen=True, slots=True)
class ShardCommand:
    """One thing to do, by a node.

    Attributes:
        task: number to answer with.
        kind: what to do.
        shard: number of the shard.
        target: node that does it.
        source: node to read from, for "copy" and "reconcile".
        nodes: holders of the fragments, in their order.
        number: fragment to make.
    """

    task: int
    kind: TaskKind
    shard: int
    target: str
    source: str = ""
    nodes: tuple[str, ...] = ()
    number: int = 0


@dataclass(slots=True)
class ShardTask:
    """A change under way.

    Attributes:
        command: what is, or will be, done.
        version: map that the nodes in `waits_for` must have before the command goes out.
        waits_for: those nodes.
        replaces: node that gives its copy up when the task is done.
        is_sent: the command is out.
        since_s: when the task began.
    """

    command: ShardCommand
    version: int
    waits_for: tuple[str, ...]
    since_s: float
    replaces: str = ""
    is_sent: bool = False
