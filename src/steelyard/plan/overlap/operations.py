"""Operations of a layer, each with the resource it occupies, its times and what it waits for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from steelyard.errors import ConfigError, merged

__all__ = ["Operation", "OperationGraph", "Rewrite", "TokenTimes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTimes:
    """Seconds of an operation that runs alone, by the tokens it works on.

    Attributes:
        tokens: rising counts, at least 1.
        seconds: time at each count, positive.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse times that cannot be interpolated."""
        rising = all(a < b for a, b in zip(self.tokens, self.tokens[1:], strict=False))
        if not self.tokens or len(self.tokens) != len(self.seconds) or not rising:
            raise ConfigError(f"times need rising tokens and as many seconds, got {self.tokens}")
        if self.tokens[0] < 1 or not all(0 < item < float("inf") for item in self.seconds):
            raise ConfigError("times need tokens of at least 1 and positive, finite seconds")

    def at(self, tokens: int) -> float:
        """Return the seconds of some tokens, 0 for none.

        Between two counts times are interpolated; below the first they do not shrink, as a kernel's
        launch does not; beyond the last they grow in proportion.
        """
        if tokens <= 0:
            return 0.0
        beyond = max(1.0, tokens / self.tokens[-1])
        return float(np.interp(tokens, self.tokens, self.seconds)) * beyond


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation of a layer.

    Attributes:
        name: unique in the layer.
        kind: entry of the interference table, such as "gemm" or "decode_attention".
        resource: what it occupies; operations of one resource never overlap.
        times: seconds by tokens.
        after: operations of the same layer that it waits for.
        after_layer: operations of the layer before that it waits for.
        first: first token of the batch that it works on.
        last: token after its last one; 0 for the batch's end.
    """

    name: str
    kind: str
    resource: str
    times: TokenTimes
    after: tuple[str, ...] = ()
    after_layer: tuple[str, ...] = ()
    first: int = 0
    last: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewrite:
    """Operations that may stand for others with the same result.

    Attributes:
        replaces: operations that go.
        by: operations that come; whoever waited for one that goes waits for the last of these.
    """

    replaces: tuple[str, ...]
    by: tuple[Operation, ...]


@dataclass(frozen=True, kw_only=True)
class OperationGraph:
    """A layer that is repeated, over one batch.

    Attributes:
        tokens: tokens of the batch.
        operations: operations of one layer, in any order.
        rewrites: equivalent replacements, each taken or left.
        unit: pieces are multiples of so many tokens.
        num_layers: how often the layer runs.
    """

    tokens: int
    operations: tuple[Operation, ...]
    rewrites: tuple[Rewrite, ...] = ()
    unit: int = 128
    num_layers: int = 1

    def extent(self, operation: Operation) -> tuple[int, int]:
        """Return the first token that an operation works on, and the one after its last."""
        return operation.first, operation.last or self.tokens

    def rewritten(self, rewrite: Rewrite) -> "OperationGraph":
        """Return the graph with one rewrite taken.

        Args:
            rewrite: one of `rewrites`.

        Returns:
            A graph that offers the other rewrites.

        Raises:
            ConfigError: the rewrite replaces an operation that is not there.
        """
        gone, last = set(rewrite.replaces), rewrite.by[-1].name
        missing = gone - {item.name for item in self.operations}
        if missing:
            raise ConfigError(f"a rewrite replaces {', '.join(sorted(missing))}, not in the graph")

        def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(dict.fromkeys(last if name in gone else name for name in names))

        kept = tuple(
            replace(item, after=renamed(item.after), after_layer=renamed(item.after_layer))
            for item in self.operations
            if item.name not in gone
        )
        rest = tuple(item for item in self.rewrites if item is not rewrite)
        return replace(self, operations=kept + rewrite.by, rewrites=rest)

    def ordered(self) -> list[Operation]:
        """Return the operations so that each comes after those it waits for.

        Returns:
            All operations; of those that are ready the first given comes first.

        Raises:
            ConfigError: names what is wrong: names used twice or unknown, extents outside the
                batch, or operations that wait for one another.
        """
        problems = list(self._problems())
        if problems:
            raise merged([ConfigError(text) for text in problems])
        found: dict[str, Operation] = {}
        waiting = list(self.operations)
        while waiting:
            ready = next((one for one in waiting if all(name in found for name in one.after)), None)
            if ready is None:
                names = ", ".join(one.name for one in waiting)
                raise ConfigError(
                    f"operations wait for one another in a cycle: {names}",
                    hint="what the layer before has to end goes into after_layer",
                )
            found[ready.name] = ready
            waiting.remove(ready)
        return list(found.values())

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong besides cycles, a sentence each."""
        names = [item.name for item in self.operations]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"two operations are called {name}"
        if self.tokens < 1 or self.unit < 1 or self.num_layers < 1:
            yield "tokens, unit and num_layers must be at least 1"
        if not names:
            yield "a graph needs at least one operation"
        for item in self.operations:
            first, last = self.extent(item)
            if not 0 <= first < last <= self.tokens:
                yield f"{item.name} works on tokens {first} to {last} of {self.tokens}"
            for other in (*item.after, *item.after_layer):
                if other not in names:
                    yield f"{item.name} waits for {other}, which is not in the graph"
