"""Mining baskets: which miner does it, in parts that outlive a kill, within a bound of memory."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.data.mining.apriori import apriori
from steelyard.data.mining.baskets import Baskets
from steelyard.data.mining.closed import mark_closed, mine_closed
from steelyard.data.mining.eclat import SATURATED, eclat
from steelyard.data.mining.fpgrowth import fpgrowth
from steelyard.data.mining.growing import expand_tree
from steelyard.data.mining.itemsets import Itemsets
from steelyard.data.mining.journal import PackJournal, array_key
from steelyard.data.mining.preparing import Prepared, prepare
from steelyard.errors import CapacityError, ConfigError
from steelyard.files import exclusive
from steelyard.parallel import parallel_map

__all__ = [
    "ITEMSET_BYTES",
    "MINERS",
    "TARGETS",
    "count_itemsets",
    "min_count_of",
    "mine",
    "mine_top",
    "spans_of",
]

MINERS: dict[str, Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray, int]]] = {
    "apriori": apriori,
    "eclat": eclat,
    "fpgrowth": fpgrowth,
}
"""Miners of frequent itemsets by the name that a user gives."""
TARGETS = ("frequent", "closed", "maximal")
ITEMSET_BYTES = 96
"""Most memory that mining takes for an itemset of about ten items: its place in the tree while that
is doubled, and its items."""
_PARTS = 16


def min_count_of(min_support: float, num_baskets: int) -> int:
    """Return how many baskets a share of them is.

    Args:
        min_support: share in (0, 1].
        num_baskets: all baskets.

    Returns:
        The count, rounded up, at least 1.

    Raises:
        ConfigError: the share is outside of (0, 1].
    """
    if not 0 < min_support <= 1:
        raise ConfigError(
            f"the support is {min_support}, but must be above 0 and at most 1",
            hint="it is a share of the baskets: 0.01 for one in a hundred",
        )
    # A share of .07 of 100 baskets is 7 of them, not 8, to which 7.000000000000001 is rounded.
    return max(1, math.ceil(min_support * num_baskets * (1 - 1e-12)))


def mine(
    baskets: Baskets,
    min_support: float,
    *,
    algorithm: str = "auto",
    target: str = "frequent",
    max_length: int = 0,
    memory_bytes: float = 4e9,
    workers: int = 1,
    journal: Path | None = None,
    done: Callable[[float], None] = lambda _: None,
) -> Itemsets:
    """Find the itemsets that enough baskets hold.

    Args:
        baskets: the baskets; empty ones count in their number.
        min_support: share of the baskets that must hold an itemset, in (0, 1].
        algorithm: "apriori", "eclat" or "fpgrowth"; "auto" is Eclat, and closures for closed and
            maximal itemsets.
        target: "frequent", "closed" (no larger itemset is as frequent) or "maximal" (no larger one
            is frequent).
        max_length: most items of an itemset, 0 for any; of frequent itemsets only.
        memory_bytes: bound on the memory of the result.
        workers: processes; 1 stays in this one.
        journal: folder that keeps finished parts; a run that was killed goes on there.
        done: is told the share that is finished.

    Returns:
        The itemsets.

    Raises:
        ConfigError: an argument is not allowed.
        CapacityError: the result would not fit in the memory; the message says how many itemsets
            there are at least.
    """
    _check(algorithm, target, max_length)
    min_count = min_count_of(min_support, len(baskets))
    ready = prepare(baskets.begins, baskets.items, len(baskets.labels), min_count)
    limit = max(1, int(memory_bytes / ITEMSET_BYTES))
    task = _Task(ready, min_count, algorithm, target, max_length, limit)
    in_parts = algorithm != "apriori" and (workers > 1 or journal is not None)
    spans = _spans(ready) if in_parts else [(0, ready.num_items)]
    with exclusive(journal, wait_s=0.0) if journal else nullcontext():
        keeper = PackJournal(journal, task.key(spans)) if journal else None
        parts = _parts(task, spans, workers, keeper, done)
        if keeper:
            keeper.clear()
    found = _joined(parts, baskets, min_count, target)
    return _picked(found, algorithm, target)


def _check(algorithm: str, target: str, max_length: int) -> None:
    """Refuse arguments that are not allowed."""
    if algorithm not in (*MINERS, "auto"):
        raise ConfigError(f"no miner {algorithm!r}", hint=f"auto, {', '.join(MINERS)}")
    if target not in TARGETS:
        raise ConfigError(f"no target {target!r}", hint=f"targets are {', '.join(TARGETS)}")
    if max_length < 0 or (max_length and target != "frequent"):
        raise ConfigError(
            f"a longest itemset of {max_length} items cannot be asked for here",
            hint="0 for any length; only frequent itemsets can be cut, closed ones cannot",
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """What is mined, as other processes are told."""

    ready: Prepared
    min_count: int
    algorithm: str
    target: str
    max_length: int
    limit: int

    def key(self, spans: Sequence[tuple[int, int]]) -> str:
        """Return a hash of all that the parts depend on."""
        ready = self.ready
        return array_key(
            [ready.codes, ready.row_begins, ready.row_items],
            [self.min_count, self.algorithm, self.target, self.max_length, self.limit, list(spans)],
        )

    def part(self, span: tuple[int, int]) -> dict[str, np.ndarray]:
        """Mine the itemsets whose rarest item is in a range."""
        first, last = span
        if self.algorithm == "auto" and self.target != "frequent":
            begins, items, supports, count = mine_closed(
                self.ready,
                first,
                last,
                self.min_count,
                maximal=self.target == "maximal",
                limit=self.limit,
            )
        else:
            miner = eclat if self.algorithm == "auto" else MINERS[self.algorithm]
            parents, items, supports, count = miner(
                self.ready,
                first,
                last,
                self.min_count,
                max_length=self.max_length,
                limit=self.limit,
            )
            begins, items = expand_tree(parents, items, self.ready.codes)
        found = np.array([count])
        return {"begins": begins, "items": items, "supports": supports, "count": found}


def _part(task: _Task, keeper: PackJournal | None, span: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return a part, from the journal where it is there."""
    if keeper is None:
        return task.part(span)
    return keeper.kept(f"{span[0]:08d}", lambda: task.part(span))


def _parts(
    task: _Task,
    spans: Sequence[tuple[int, int]],
    workers: int,
    keeper: PackJournal | None,
    done: Callable[[float], None],
) -> list[dict[str, np.ndarray]]:
    """Mine all parts, as many at once as there are workers."""
    parts: list[dict[str, np.ndarray]] = []
    total = 0
    for start in range(0, len(spans), workers):
        some = spans[start : start + workers]
        work = partial(_part, task, keeper)
        parts += [work(some[0])] if workers == 1 else parallel_map(work, some, workers=workers)
        total = sum(int(part["count"][0]) for part in parts)
        if total > task.limit:
            raise CapacityError(
                f"at least {total:,} {task.target} itemsets, of which {task.limit:,} fit in the "
                "memory that is allowed",
                hint="ask for closed or maximal itemsets, a higher support, or more memory",
            )
        done(len(parts) / max(len(spans), 1))
    return parts


def _spans(ready: Prepared) -> list[tuple[int, int]]:
    """Cut the items into ranges of about equal work; never by the number of workers."""
    return spans_of(ready.supports)


def spans_of(supports: np.ndarray) -> list[tuple[int, int]]:
    """Cut items of ascending support into ranges of about equal work: first, and one past last."""
    work = np.cumsum(supports * np.arange(len(supports), 0, -1))
    if not len(work):
        return []
    cuts = np.searchsorted(work, np.linspace(0, work[-1], _PARTS + 1)[1:-1]) + 1
    edges = np.unique([0, *cuts.tolist(), len(supports)])
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _joined(
    parts: Sequence[dict[str, np.ndarray]], baskets: Baskets, min_count: int, target: str
) -> Itemsets:
    """Put parts one behind the other."""
    lengths = [np.diff(part["begins"]) for part in parts] or [np.zeros(0, np.int64)]
    whole: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts] or [np.zeros(0, np.int32)])
        for name in ("items", "supports")
    }
    begins = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    return Itemsets(
        begins=begins,
        items=whole["items"],
        supports=whole["supports"],
        labels=baskets.labels,
        num_baskets=len(baskets),
        min_count=min_count,
        target=target,
    )


def _picked(found: Itemsets, algorithm: str, target: str) -> Itemsets:
    """Return the closed or maximal ones of all frequent itemsets, where a miner found all."""
    if algorithm == "auto" or target == "frequent":
        return found
    closed, maximal = mark_closed(found.begins, found.items, found.supports)
    return found.take(closed if target == "closed" else maximal)


def mine_top(baskets: Baskets, count: int, *, max_length: int = 0) -> Itemsets:
    """Find the most frequent itemsets; the support rises while they are mined.

    Args:
        baskets: the baskets.
        count: how many are wanted, 1 or more.
        max_length: most items of an itemset, 0 for any.

    Returns:
        So many, the most frequent first, and all others as frequent as the last of them.

    Raises:
        ConfigError: fewer than one are wanted.
    """
    if count < 1:
        raise ConfigError(f"{count} itemsets are wanted, but must be 1 or more")
    # An item alone is an itemset: the count-th most frequent bounds the support from below.
    ready = prepare(baskets.begins, baskets.items, len(baskets.labels), 1)
    ordered = np.sort(ready.supports)[::-1]
    least = int(ordered[count - 1]) if count <= len(ordered) else 1
    ready = prepare(baskets.begins, baskets.items, len(baskets.labels), least)
    parents, items, supports, _ = eclat(
        ready, 0, ready.num_items, least, max_length=max_length, top=count
    )
    begins, items = expand_tree(parents, items, ready.codes)
    part = {"begins": begins, "items": items, "supports": supports}
    found = _joined([part], baskets, least, "frequent")
    found = found.most_frequent(len(found))
    last = found.supports[count - 1] if len(found) >= count else 0
    return found.take(found.supports >= last)


def count_itemsets(baskets: Baskets, min_support: float, *, limit: int = SATURATED) -> int:
    """Count the frequent itemsets without keeping them.

    Args:
        baskets: the baskets.
        min_support: share of the baskets that must hold an itemset, in (0, 1].
        limit: itemsets after which counting ends.

    Returns:
        Their number; above the limit it is a lower bound.
    """
    min_count = min_count_of(min_support, len(baskets))
    ready = prepare(baskets.begins, baskets.items, len(baskets.labels), min_count)
    return int(eclat(ready, 0, ready.num_items, min_count, limit=limit, stored=False)[3])
