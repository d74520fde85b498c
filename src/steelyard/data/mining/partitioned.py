"""Mining tables beyond memory: candidates of each part counted again, or items shared out."""

import math
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.mining.baskets import Baskets, baskets_of_lists, item_column
from steelyard.data.mining.counting import CandidateCounts, ItemCounts, coded
from steelyard.data.mining.eclat import eclat
from steelyard.data.mining.growing import expand_tree
from steelyard.data.mining.itemsets import Itemsets
from steelyard.data.mining.journal import PackJournal
from steelyard.data.mining.miner import min_count_of, spans_of
from steelyard.data.mining.preparing import arranged
from steelyard.data.mining.subsets import plant_candidates
from steelyard.data.pack import Pack
from steelyard.data.stages import hash_of
from steelyard.data.table.quarantine import Quarantine
from steelyard.errors import ConfigError
from steelyard.files import exclusive
from steelyard.parallel import parallel_map

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["PARTITIONED", "mine_table"]

PARTITIONED = ("son", "pfp")
"""Ways to mine a table in parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableMining:
    """What is mined, as other processes are told.

    Attributes:
        table: one column of lists.
        column: its name.
        labels: frequent items by ascending frequency.
        num_baskets: baskets of the table.
        min_count: baskets that must hold an itemset.
        spans: ranges of items that are mined together.
        keeper: folder of what is done.
    """

    table: "DataTable"
    column: str
    labels: NDArray[Any]
    num_baskets: int
    min_count: int
    spans: tuple[tuple[int, int], ...]
    keeper: PackJournal

    def baskets(self, number: int) -> Baskets:
        """Read a part of the table."""
        import pyarrow as pa

        part = self.table.partitions[number]
        # Rows that are set aside were counted when items were.
        batches = list(self.table.read(part, Quarantine()))
        return baskets_of_lists(pa.Table.from_batches(batches, self.table.schema)[self.column])


def mine_table(
    table: "DataTable",
    min_support: float,
    *,
    how: str = "son",
    items: str = "",
    workers: int = 1,
    cluster: str = "",
    journal: Path | None = None,
    done: Callable[[float], None] = lambda _: None,
) -> tuple[Itemsets, Quarantine]:
    """Find the frequent itemsets of a table that need not fit in memory.

    "son" mines each part of the table by itself at the same share of its baskets: what is frequent
    in the whole is so in some part. A second pass counts these candidates. "pfp" writes for each
    range of items the ends of the baskets that hold one of them, and mines each range by itself.

    Args:
        table: baskets as a column of lists; parts follow its files and rows.
        min_support: share of the baskets that must hold an itemset, in (0, 1].
        how: "son" or "pfp".
        items: the column; empty for the only one of lists.
        workers: processes.
        cluster: address of a Ray cluster; empty for processes of this machine.
        journal: folder that keeps what is done; a run that was killed goes on there.
        done: is told the share that is finished.

    Returns:
        The itemsets, the same as `mine` finds; and the rows that were set aside.

    Raises:
        ConfigError: an argument is not allowed, or the table has no such column.
        DataError: a file has changed or cannot be read.

    Source: Savasere, Omiecinski and Navathe 1995 ("son"); Li et al. 2008 ("pfp").
    """
    if how not in PARTITIONED:
        raise ConfigError(f"no way {how!r} to mine in parts", hint=" or ".join(PARTITIONED))
    column = item_column(table, items)
    chosen = table.select([column])
    with tempfile.TemporaryDirectory() if journal is None else nullcontext(str(journal)) as name:
        folder = Path(name)
        with exclusive(folder, wait_s=0.0):
            counted = chosen.fold(
                ItemCounts(column), workers=workers, cluster=cluster, journal=folder / "items"
            )
            job = _job(chosen, column, counted.results, min_support, folder)
            done(0.1)
            mined = _son if how == "son" else _pfp
            found = mined(job, partial(parallel_map, workers=workers, cluster=cluster), done)
            job.keeper.clear()
    return found, counted.quarantine


def _job(
    table: "DataTable", column: str, results: Any, min_support: float, folder: Path
) -> _TableMining:
    """Plan the work from the counts of the items."""
    counts = results[ItemCounts(column).name]
    min_count = min_count_of(min_support, counts.num_baskets)
    frequent = np.flatnonzero(counts.counts >= min_count)
    order = frequent[np.argsort(counts.counts[frequent], kind="stable")]
    stats = [[part.path, part.first, part.last, part.num_bytes] for part in table.partitions]
    times = [Path(item.path).stat().st_mtime_ns for item in table.files]
    return _TableMining(
        table=table,
        column=column,
        labels=counts.labels[order],
        num_baskets=counts.num_baskets,
        min_count=min_count,
        spans=tuple(spans_of(counts.counts[order])),
        keeper=PackJournal(folder, hash_of(stats, times, column, min_count)),
    )


def _son(
    job: _TableMining, run: Callable[..., list[Any]], done: Callable[[float], None]
) -> Itemsets:
    """Mine parts, then count what was found in any of them."""
    numbers = range(len(job.table.partitions))
    parts = run(partial(_local, job), numbers)
    done(0.5)
    tree = plant_candidates([(part["begins"], part["items"]) for part in parts])
    fold = CandidateCounts(job.column, job.labels, tree)
    # Counting goes through the same pool as mining: one pass over the parts.
    counts = np.zeros(len(tree.items), np.int64)
    for part in run(partial(_counted, job, fold), numbers):
        counts += part
    done(1.0)
    begins, items = expand_tree(
        tree.parents, tree.items, np.arange(len(job.labels), dtype=np.int32)
    )
    found = _itemsets(job, begins, items, counts.astype(np.int32))
    return found.take(counts >= job.min_count)


def _local(job: _TableMining, number: int) -> dict[str, NDArray[Any]]:
    """Mine one part at the share of its baskets."""

    def work() -> dict[str, NDArray[Any]]:
        baskets = job.baskets(number)
        least = max(1, math.ceil(job.min_count * len(baskets) / job.num_baskets - 1e-9))
        ready = coded(baskets, job.labels)
        parents, items, _, _ = eclat(ready, 0, ready.num_items, least)
        begins, items = expand_tree(parents, items, ready.codes)
        return {"begins": begins, "items": items}

    return job.keeper.kept(f"son{number:06d}", work)


def _counted(job: _TableMining, fold: CandidateCounts, number: int) -> NDArray[np.int64]:
    """Count the candidates in one part."""
    state = fold.init(job.table.schema)
    for batch in job.table.read(job.table.partitions[number], Quarantine()):
        fold.update(state, batch)
    return state


def _pfp(
    job: _TableMining, run: Callable[..., list[Any]], done: Callable[[float], None]
) -> Itemsets:
    """Share baskets out by ranges of items, then mine each range."""
    numbers = range(len(job.table.partitions))
    run(partial(_shared_out, job), numbers)
    done(0.5)
    parts = run(partial(_range, job), range(len(job.spans)))
    done(1.0)
    lengths = [np.zeros(0, np.int64), *(np.diff(part["begins"]) for part in parts)]
    begins = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    none = np.zeros(0, np.int32)
    items = np.concatenate([none, *(part["items"] for part in parts)])
    return _itemsets(job, begins, items, np.concatenate([none, *(p["supports"] for p in parts)]))


def _shared_out(job: _TableMining, number: int) -> int:
    """Write what each range of items needs of a part; only the number of baskets comes back."""

    def work() -> dict[str, NDArray[Any]]:
        ready = coded(job.baskets(number), job.labels)
        owners = np.repeat(np.arange(ready.num_rows), np.diff(ready.row_begins))
        found: dict[str, NDArray[Any]] = {"rows": np.array([ready.num_rows])}
        for place, (first, last) in enumerate(job.spans):
            # Baskets with an item of the range, from that item on.
            is_within = (ready.row_items >= first) & (ready.row_items < last)
            chosen = np.zeros(ready.num_rows, bool)
            chosen[owners[is_within]] = True
            kept = chosen[owners] & (ready.row_items >= first)
            lengths = np.bincount(owners[kept], minlength=ready.num_rows)[chosen]
            found[f"begins{place}"] = np.concatenate([[0], np.cumsum(lengths)])
            found[f"items{place}"] = ready.row_items[kept]
        return found

    return int(job.keeper.kept(f"pfp{number:06d}", work)["rows"][0])


def _range(job: _TableMining, place: int) -> dict[str, NDArray[Any]]:
    """Mine the itemsets whose rarest item is of one range."""

    def work() -> dict[str, NDArray[Any]]:
        packs = [
            Pack.open(job.keeper.path(f"pfp{number:06d}"))
            for number in range(len(job.table.partitions))
        ]
        lengths = [np.diff(pack[f"begins{place}"]) for pack in packs]
        begins = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        items = np.concatenate([pack[f"items{place}"] for pack in packs])
        codes = np.arange(len(job.labels), dtype=np.int32)
        supports = np.bincount(items, minlength=len(codes))
        ready = arranged(begins, items, codes, codes, supports)
        first, last = job.spans[place]
        parents, found, counts, _ = eclat(ready, first, last, job.min_count)
        begins, found = expand_tree(parents, found, codes)
        return {"begins": begins, "items": found, "supports": counts}

    return job.keeper.kept(f"range{place:06d}", work)


def _itemsets(
    job: _TableMining,
    begins: NDArray[np.int64],
    items: NDArray[np.int32],
    supports: NDArray[np.int32],
) -> Itemsets:
    """Return itemsets with the labels in ascending order."""
    order = np.argsort(job.labels, kind="stable")
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.arange(len(order), dtype=np.int32)
    owners = np.repeat(np.arange(len(supports)), np.diff(begins))
    renamed = numbers[items]
    return Itemsets(
        begins=begins,
        items=renamed[np.lexsort((renamed, owners))],
        supports=supports,
        labels=job.labels[order],
        num_baskets=job.num_baskets,
        min_count=job.min_count,
    )
