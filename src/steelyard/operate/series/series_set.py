"""Many series of different lengths in a few flat columns, in memory or mapped from files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import TraceError
from steelyard.files import folder_beside, read_json, replace_folder, write_json

__all__ = ["SeriesSet", "joined"]

_COLUMNS = ("values", "mask", "offsets", "start_s", "step_s", "statics")
_DAY_S, _WEEK_S = 86_400.0, 604_800.0


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesSet:
    """Series on regular grids: row `i` is `values[offsets[i] : offsets[i + 1]]`.

    Attributes:
        values: float32 or float64 [total]; NaN where nothing was observed.
        mask: bool [total]; True where a value was observed.
        offsets: int64 [n + 1]; where each series begins and ends.
        start_s: float64 [n]; time of each first value, seconds since 1970 (UTC).
        step_s: float64 [n]; seconds between two values.
        ids: name of each series, all different.
        statics: float32 [n, k]; what does not change within a series.
        static_names: names of the columns of `statics`.
        provenance: where each series came from: a file and column, a query, a generator and seed.
    """

    values: np.ndarray
    mask: np.ndarray
    offsets: np.ndarray
    start_s: np.ndarray
    step_s: np.ndarray
    ids: tuple[str, ...]
    statics: np.ndarray
    static_names: tuple[str, ...] = ()
    provenance: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse columns that do not fit one another."""
        count = len(self.ids)
        lengths = {len(self.start_s), len(self.step_s), len(self.statics), len(self.offsets) - 1}
        totals = {len(self.values), len(self.mask), int(self.offsets[-1])}
        if lengths != {count} or len(totals) > 1:
            raise TraceError(
                f"{count} ids, but columns of {sorted(lengths)} series and {sorted(totals)} values",
                hint="give each column one entry a series, and each value its mask",
            )
        if len(set(self.ids)) != count:
            twice = next(name for name in self.ids if self.ids.count(name) > 1)
            raise TraceError(f"series {twice!r} is there twice", hint="give each series a name")
        if count and not (np.isfinite(self.step_s).all() and (np.asarray(self.step_s) > 0).all()):
            raise TraceError("a step is not above 0 s", hint="give the seconds between two values")

    @classmethod
    def from_arrays(
        cls,
        arrays: Sequence[np.ndarray],
        *,
        step_s: float | Sequence[float] | np.ndarray,
        ids: Sequence[str] | None = None,
        start_s: float | Sequence[float] = 0.0,
        statics: np.ndarray | None = None,
        static_names: Sequence[str] = (),
        provenance: str | Sequence[str] = "",
        dtype: Any = np.float64,
    ) -> "SeriesSet":
        """Join arrays to a set.

        Args:
            arrays: values of each series [T]; NaN and infinite ones count as not observed.
            step_s: seconds between two values, one for all or one each.
            ids: names; None counts from "series-0".
            start_s: time of the first values, seconds since 1970 (UTC), one for all or one each.
            statics: numbers [n, k] that do not change within a series; None for none.
            static_names: names of their columns.
            provenance: where the series came from, one text for all or one each.
            dtype: type of the values.

        Returns:
            The set.

        Raises:
            TraceError: the columns do not fit one another, a name stands twice, or a step is not
                above 0.
        """
        count = len(arrays)
        values = np.concatenate([np.asarray(item, dtype) for item in arrays] or [np.empty(0)])
        # An infinite rate (a count over 0 s) would be the scale of everything beside it.
        mask = np.isfinite(values)
        values = np.where(mask, values, np.nan).astype(dtype)
        made_from = [provenance] * count if isinstance(provenance, str) else provenance
        return cls(
            values=values,
            mask=mask,
            offsets=np.cumsum([0, *(len(item) for item in arrays)], dtype=np.int64),
            start_s=np.array(np.broadcast_to(np.asarray(start_s, np.float64), count)),
            step_s=np.array(np.broadcast_to(np.asarray(step_s, np.float64), count)),
            ids=tuple(ids) if ids is not None else tuple(f"series-{i}" for i in range(count)),
            statics=np.zeros((count, 0), np.float32) if statics is None else np.asarray(statics),
            static_names=tuple(static_names),
            provenance=tuple(made_from),
        )

    def __len__(self) -> int:
        """Count the series."""
        return len(self.ids)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the values of each series."""
        return (self.row(index) for index in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """Number of values of each series, int64 [n]."""
        return np.diff(self.offsets)

    def row(self, index: int) -> np.ndarray:
        """Return the values of one series [T], NaN where nothing was observed."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def index(self, name: str) -> int:
        """Return the place of a series.

        Args:
            name: its id.

        Returns:
            Its index.

        Raises:
            TraceError: there is no such series.
        """
        if name not in self.ids:
            raise TraceError(
                f"no series {name!r}", hint=f"there are: {', '.join(self.ids[:8]) or 'none'}"
            )
        return self.ids.index(name)

    def season(self, index: int) -> int:
        """Return the steps of the period that a series of such a step most likely has.

        Args:
            index: place of the series.

        Returns:
            Steps of a day, of a week where a step is a day or nearly so, at least 1.
        """
        step_s = float(self.step_s[index])
        # Two steps a day are the fewest that show one; slower series show a week at best.
        period_s = _DAY_S if step_s <= _DAY_S / 2 else _WEEK_S
        return max(round(period_s / step_s), 1)

    def cut(
        self,
        rows: Sequence[int] | np.ndarray,
        starts: Sequence[int] | np.ndarray,
        ends: Sequence[int] | np.ndarray,
    ) -> "SeriesSet":
        """Cut windows out of series; a series may be cut more than once.

        Args:
            rows: index of the series of each window.
            starts: first step of each window within its series; below 0 counts as 0.
            ends: step behind each window's last.

        Returns:
            A set of the windows. Windows after the first of a series are named "id@start".
        """
        arrays, names, begins, seen = [], [], [], set()
        for row, start, end in zip(rows, starts, ends, strict=True):
            # A negative start would count from the series' end.
            first = max(int(start), 0)
            arrays.append(self.row(row)[first : int(end)])
            name = self.ids[row] if self.ids[row] not in seen else f"{self.ids[row]}@{first}:{end}"
            seen.add(name)
            names.append(name)
            begins.append(self.start_s[row] + first * self.step_s[row])
        chosen = np.asarray(rows, np.int64)
        return SeriesSet.from_arrays(
            arrays,
            step_s=self.step_s[chosen],
            ids=names,
            start_s=begins,
            statics=self.statics[chosen],
            static_names=self.static_names,
            provenance=[self.provenance[row] for row in chosen] if self.provenance else "",
            dtype=self.values.dtype,
        )

    def before(self, steps: int) -> "SeriesSet":
        """Return every series without its last `steps` values."""
        return self.cut(range(len(self)), [0] * len(self), self.lengths - steps)

    def save(self, folder: Path) -> None:
        """Write the set as a folder of columns, which `load` maps; an older one is replaced.

        Args:
            folder: the folder to make.
        """
        folder = Path(folder)
        # Written beside and renamed: a save that is killed leaves the older set whole.
        with folder_beside(folder) as made:
            for name in _COLUMNS:
                np.save(made / f"{name}.npy", getattr(self, name))
            words = {name: getattr(self, name) for name in ("ids", "static_names", "provenance")}
            write_json(made / "series.json", words)
            replace_folder(made, folder)

    @classmethod
    def load(cls, folder: Path) -> "SeriesSet":
        """Map the columns of a saved set; nothing is read before it is used.

        Args:
            folder: what `save` made.

        Returns:
            The set, read-only.

        Raises:
            DataError: the folder is not there or not such a set.
            TraceError: its columns do not fit one another.
        """
        folder = Path(folder)
        words = read_json(folder / "series.json")
        columns: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r")
            for name in _COLUMNS  # no pickle
        }
        columns |= {name: tuple(text) for name, text in words.items()}
        return cls(**columns)


def joined(sets: Sequence[SeriesSet]) -> SeriesSet:
    """Put sets behind one another.

    Args:
        sets: sets with the same statics and different ids.

    Returns:
        One set of all series.

    Raises:
        TraceError: an id stands twice, or the statics differ.
    """
    if len({item.static_names for item in sets}) > 1:
        raise TraceError("the sets have different statics", hint="give all the same columns")
    # Offsets count from the first value of their own set, so they are made anew.
    lengths = np.concatenate([item.lengths for item in sets])
    return SeriesSet(
        **{
            name: np.concatenate([getattr(item, name) for item in sets])
            for name in _COLUMNS
            if name != "offsets"
        },
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        ids=tuple(name for item in sets for name in item.ids),
        static_names=sets[0].static_names,
        provenance=tuple(text for item in sets for text in item.provenance),
    )
