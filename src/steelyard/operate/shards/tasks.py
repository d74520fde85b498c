"""Changes of shards under way: numbered, due when their nodes know enough, given up when late."""

from collections.abc import Callable, Iterator

from steelyard.data.shardstore.shardmap import Shard
from steelyard.operate.shards.commands import ShardCommand, ShardTask, TaskKind

__all__ = ["TaskTable"]


class TaskTable:
    """Tasks by number, in the order in which they began; at most one change of a shard at a time.

    The comparison of two replicas after a death is the one exception: there are several of a shard.
    """

    def __init__(self, version: Callable[[], int]) -> None:
        """Begin with nothing under way.

        Args:
            version: returns that of the newest map.
        """
        self._version = version
        self._tasks: dict[int, ShardTask] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[ShardTask]:
        return iter(list(self._tasks.values()))  # a copy: callers begin and end tasks meanwhile

    def begin(
        self,
        kind: TaskKind,
        shard: Shard,
        target: str,
        now_s: float,
        *,
        source: str = "",
        nodes: tuple[str, ...] = (),
        number: int = 0,
        replaces: str = "",
        waits_for: tuple[str, ...] = (),
    ) -> None:
        """Add a task.

        Args:
            kind: what is to be done.
            shard: what it happens to.
            target: node that does it.
            now_s: the time.
            source: node to read from.
            nodes: holders of fragments.
            number: fragment to make.
            replaces: node that gives its copy up at the end.
            waits_for: nodes that must have the map of this moment first.
        """
        self._last += 1
        command = ShardCommand(self._last, kind, shard.id, target, source, nodes, number)
        self._tasks[self._last] = ShardTask(
            command, self._version(), waits_for, now_s, replaces=replaces
        )

    def pop(self, number: int) -> ShardTask | None:
        """Take a task out; None where it was given up before its answer came."""
        return self._tasks.pop(number, None)

    def pop_of(self, name: str) -> list[ShardTask]:
        """Take out all tasks that need a node, and return them."""
        found = [
            number
            for number, task in self._tasks.items()
            if name in (task.command.target, task.command.source) or name in task.waits_for
        ]
        return [self._tasks.pop(number) for number in found]

    def pop_retiring(self, shard: int) -> tuple[str, ...]:
        """Take out the tasks of nodes that give up a copy of a shard, and return these nodes."""
        found = [
            number
            for number, task in self._tasks.items()
            if (task.command.kind, task.command.shard) == ("retire", shard)
        ]
        return tuple(self._tasks.pop(number).command.target for number in found)

    def busy(self) -> set[int]:
        """Return the shards that something happens to."""
        return {task.command.shard for task in self._tasks.values()}

    def begun_before(self, time_s: float) -> list[int]:
        """Return the numbers of tasks that began before a time."""
        return [number for number, task in self._tasks.items() if task.since_s < time_s]

    def num_received(self, name: str) -> int:
        """Return how many copies and blocks a node makes; comparisons move next to nothing."""
        return sum(command.target == name for command in self._copying())

    def num_sent(self, name: str) -> int:
        """Return how many copies a node sends."""
        return sum(command.source == name for command in self._copying())

    def _copying(self) -> list[ShardCommand]:
        commands = (task.command for task in self._tasks.values())
        return [command for command in commands if command.kind not in ("reconcile", "retire")]

    def awaited(self, has_map: Callable[[str, int], bool]) -> set[str]:
        """Return the nodes whose map is too old for something to begin; `has_map` as of `due`."""
        return {
            name
            for task in self._tasks.values()
            for name in task.waits_for
            if not task.is_sent and not has_map(name, task.version)
        }

    def due(self, has_map: Callable[[str, int], bool]) -> list[ShardCommand]:
        """Return commands whose time has come, in order, and mark them as sent.

        Args:
            has_map: whether a node has a map of at least a version.

        Returns:
            Commands.
        """
        found = [
            task
            for task in self._tasks.values()
            if not task.is_sent and all(has_map(name, task.version) for name in task.waits_for)
        ]
        for task in found:
            task.is_sent = True
        return [task.command for task in found]
