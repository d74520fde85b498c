"""Itemsets that were mined: what they hold, how often, and how they are written and compared."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.files import atomic_path

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Itemsets", "check_out", "write_itemsets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Itemsets:
    """Itemsets with their supports, in no particular order; the empty one is not among them.

    Attributes:
        begins: begin of each itemset, int64 [itemsets + 1].
        items: item numbers of all itemsets, ascending in each, int32.
        supports: baskets that hold each itemset, [itemsets].
        labels: what each item number stands for.
        num_baskets: all baskets, empty ones too.
        min_count: baskets that had to hold an itemset.
        target: "frequent", "closed" or "maximal".
    """

    begins: NDArray[np.int64]
    items: NDArray[np.int32]
    supports: NDArray[np.int32]
    labels: NDArray[Any]
    num_baskets: int
    min_count: int
    target: str = "frequent"

    def __len__(self) -> int:
        """Return the number of itemsets."""
        return len(self.supports)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Items in each itemset, [itemsets]."""
        return np.diff(self.begins)

    @property
    def longest(self) -> int:
        """Items of the longest itemset, 0 where there is none."""
        return int(self.lengths.max(initial=0))

    def __getitem__(self, place: int) -> tuple[tuple[Any, ...], int]:
        """Return an itemset.

        Args:
            place: place among the itemsets, from 0.

        Returns:
            Its items by label, and its support.
        """
        part = self.items[self.begins[place] : self.begins[place + 1]]
        return tuple(self.labels[part].tolist()), int(self.supports[place])

    def take(self, places: NDArray[Any]) -> "Itemsets":
        """Return some of the itemsets.

        Args:
            places: their places or a mask, in the order that is wanted.

        Returns:
            The itemsets.
        """
        chosen = np.flatnonzero(places) if places.dtype == bool else places
        lengths = self.lengths[chosen]
        begins = np.concatenate([[0], np.cumsum(lengths)])
        at = np.arange(begins[-1]) - np.repeat(begins[:-1] - self.begins[chosen], lengths)
        return Itemsets(
            begins=begins,
            items=self.items[at],
            supports=self.supports[chosen],
            labels=self.labels,
            num_baskets=self.num_baskets,
            min_count=self.min_count,
            target=self.target,
        )

    def most_frequent(self, count: int, *, least_items: int = 1) -> "Itemsets":
        """Return the itemsets of the largest support.

        Args:
            count: how many.
            least_items: fewest items of each.

        Returns:
            At most so many, the most frequent first; of equal ones the longer, then by place.
        """
        able = np.flatnonzero(self.lengths >= least_items)
        order = np.lexsort((-self.lengths[able], -self.supports[able].astype(np.int64)))
        return self.take(able[order[:count]])

    def digest(self) -> str:
        """Return the first 16 digits of the SHA-256 of the itemsets as sorted lines "1 2:30"."""
        names = [str(label) for label in self.labels.tolist()]
        items, begins = self.items.tolist(), self.begins.tolist()
        lines = [
            " ".join([names[item] for item in items[begins[place] : begins[place + 1]]])
            + f":{support}"
            for place, support in enumerate(self.supports.tolist())
        ]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]

    def to_arrow(self) -> "pa.Table":
        """Return a table with the columns `items`, a list, and `support`, baskets."""
        import pyarrow as pa

        # The places of a list are 32-bit numbers unless the list is a large one.
        lists = pa.LargeListArray.from_arrays(
            pa.array(self.begins), pa.array(self.labels[self.items])
        )
        return pa.table({"items": lists, "support": pa.array(self.supports)})


def check_out(path: Path) -> None:
    """Refuse a file name that tells no format.

    Args:
        path: the file.

    Raises:
        ConfigError: the name does not end in .parquet, .arrow or .dat.
    """
    if path.suffix not in (".parquet", ".arrow", ".dat"):
        raise ConfigError(
            f"{path} cannot be written", hint="name a file that ends in .parquet, .arrow or .dat"
        )


def write_itemsets(itemsets: Itemsets, path: Path) -> None:
    """Write itemsets to a file by the end of its name, whole or not at all.

    Args:
        itemsets: what to write.
        path: .parquet, .arrow, or .dat for lines such as "1 2 3 (40)".

    Raises:
        ConfigError: the name ends otherwise.
        CapacityError: the disk is full; an older file stays.
    """
    from pyarrow import feather, parquet

    check_out(path)
    with atomic_path(path) as beside:
        if path.suffix == ".parquet":
            parquet.write_table(itemsets.to_arrow(), beside)
        elif path.suffix == ".arrow":
            feather.write_feather(itemsets.to_arrow(), str(beside), compression="zstd")
        else:
            _write_lines(itemsets, beside)


def _write_lines(itemsets: Itemsets, path: Path) -> None:
    """Write a line for each itemset."""
    with path.open("w") as file:
        for place in range(len(itemsets)):
            items, support = itemsets[place]
            file.write(f"{' '.join(map(str, items))} ({support})\n")
