"""What in a table of runs makes a law fitted to it doubtful, said before any answer is given."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.columns import RunColumns
from steelyard.laws.tables.conventions import name_rows
from steelyard.laws.tables.levels import (
    coefficients,
    left_over,
    overlaps,
    share_explained,
    spread_within,
    surface,
    two_levels,
)
from steelyard.laws.tables.trouble import Trouble

__all__ = ["Runs", "table_trouble"]

_SIZES = ("parameters", "tokens", "samples", "bytes")
_FEWEST = 6
_SAME = 0.01
"""Sizes within 1 % are the same size."""
_REPLICATES = 0.05
"""Runs of one recipe and size differ by tenths of a percent; by 5 % and more they are of two."""
_STEP = 0.03
_SHARE = 0.5
_LEAST_EFFECT = 0.01
_RISES = 3.0
_GAP = np.log(4.0)
_MENDS = 0.5
_FEWEST_OF_LEVELS = 20
_BITS = float(-np.log(np.log(2)))
_ONE_AXIS = 0.35
_FEWEST_ON_RAY = 5
_ON_RAY = 0.15
_BESIDE_RAY = 0.6
_OVERLAP = 0.2
_OVERLAP_OF_NUMBERS = 0.5
_MOST_LABELS = 20
_MOST_NUMBERS = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """The columns that are looked at.

    Attributes:
        axes: log of each size that varies, [n] each.
        log: log of the target, [n].
        rows: number of each row in its source.
        labels: columns that may tell recipes apart, [n] words or numbers each.
        target: name of the target.
    """

    axes: dict[str, Array]
    log: Array
    rows: NDArray[np.int64]
    labels: dict[str, NDArray[Any]]
    target: str

    @classmethod
    def of(
        cls, points: Mapping[str, ArrayLike], target: str, inputs: Sequence[str] = ()
    ) -> "Runs | None":
        """Take the columns from a table; None where it has no sizes or no positive target."""
        is_table = isinstance(points, RunColumns)
        plain: Mapping[str, Any] = points.numbers if is_table else points
        columns = {name: np.asarray(values) for name, values in plain.items()}
        goal = columns.get(target)
        names = [name for name in inputs or _SIZES if name in columns]
        if goal is None or not names or goal.dtype.kind not in "fiu" or not (goal > 0).all():
            return None
        sizes = {name: np.log(columns[name].astype(np.float64)) for name in names}
        return cls(
            axes={name: log for name, log in sizes.items() if np.ptp(log) > _SAME},
            log=np.log(goal.astype(np.float64)),
            rows=points.rows if is_table else np.arange(1, 1 + len(goal)),
            labels=_labels(columns, points.words if is_table else {}, {*names, target}),
            target=target,
        )

    @cached_property
    def surface(self) -> Array:
        """A smooth law of the sizes that follows the target, [n, k]."""
        return surface(list(self.axes.values()), self.log)

    def source_rows(self, mask: NDArray[np.bool_]) -> tuple[int, ...]:
        """Return the numbers of rows in their source."""
        return tuple(int(row) for row in self.rows[mask])


def table_trouble(
    points: Mapping[str, ArrayLike], target: str = "loss", inputs: Sequence[str] = ()
) -> tuple[Trouble, ...]:
    """Look a table of runs over for what would make a law fitted to it doubtful.

    Args:
        points: columns in natural units, [n], such as a `RunTable`, whose columns of words are
            looked at too.
        target: name of the column to be fitted.
        inputs: sizes that a law would read; parameters, tokens, samples and bytes unless given.

    Returns:
        What was found, the gravest first; nothing for a table without sizes or target.
    """
    runs = Runs.of(points, target, inputs)
    if runs is None:
        return ()
    if np.ptp(runs.log) < 1e-9:
        return (_constant(runs),)
    if len(runs.log) < _FEWEST or not runs.axes:
        return ()
    flops = np.asarray(points["flops"]) if "flops" in points else None
    mixed = [*_units(runs), *_flops_levels(runs, flops)]
    mixed = mixed or [*_groups(runs)] or [*_replicates(runs)] or [*_levels(runs)]
    # Losses of mixed recipes may rise with size for that reason alone.
    return (*mixed, *([] if mixed else _rising(runs)), *_design(runs))


def _labels(
    columns: Mapping[str, NDArray[Any]], words: Mapping[str, NDArray[Any]], taken: set[str]
) -> dict[str, NDArray[Any]]:
    """Take the columns whose values repeat but are not all the same, the coarsest first."""
    # What is unique in every row names a run; it tells no recipes apart.
    every = {**words, **{name: item for name, item in columns.items() if name not in taken}}
    counts = {name: len(np.unique(column)) for name, column in every.items()}
    # Words say what a recipe is; numbers that go along with them are the poorer name.
    order = sorted(every, key=lambda name: (every[name].dtype.kind not in "US", counts[name]))
    return {name: every[name] for name in order if 1 < counts[name] <= len(every[name]) // 3}


def _constant(runs: Runs) -> Trouble:
    """Say that there is nothing to learn."""
    return Trouble(
        kind="constant",
        sentence=f"{runs.target} is {np.exp(runs.log[0]):.6g} in every row",
        advice="take another column, or runs of other sizes",
        columns=(runs.target,),
    )


def _rising(runs: Runs) -> Iterator[Trouble]:
    """Find sizes with which the target rises while the other sizes stay."""
    logs = np.stack([np.ones(len(runs.log)), *runs.axes.values()], axis=1)
    slopes, errors = coefficients(logs, runs.log)
    for name, slope, error in zip(runs.axes, slopes[1:], errors[1:], strict=True):
        rise = slope * np.ptp(runs.axes[name])
        if slope > _RISES * error and rise > _LEAST_EFFECT:
            others = " and ".join(other for other in runs.axes if other != name)
            yield Trouble(
                kind="rising",
                sentence=f"{runs.target} rises with {name}"
                + (f" at equal {others}" if others else "")
                + f", by {100 * np.expm1(rise):.2g} % from the least to the most",
                advice="look for unfinished, diverged or badly tuned runs, for a measure that "
                "should rise, or for columns that were taken for one another",
                columns=(name, runs.target),
            )


def _units(runs: Runs) -> Iterator[Trouble]:
    """Find columns whose rows fall into two heaps a unit apart."""
    for name, log in runs.axes.items():
        order = np.sort(log)
        at = int(np.diff(order).argmax())
        low = log <= order[at]
        if order[at + 1] - order[at] < _GAP or min(low.sum(), (~low).sum()) < 0.1 * len(log):
            continue
        # A power of 1000 that puts the heaps onto one law is a unit; a ladder and a far target lie
        # on one law as they are.
        power = max(round(float(log[~low].mean() - log[low].mean()) / np.log(1e3)), 1)
        mended = {**runs.axes, name: np.where(low, log + power * np.log(1e3), log)}
        after = left_over(surface(list(mended.values()), runs.log), runs.log)
        if after < _MENDS * left_over(runs.surface, runs.log):
            few = low if low.sum() <= (~low).sum() else ~low
            yield Trouble(
                kind="units",
                sentence=f"{name} is about {1000**power:.0e} times smaller in {low.sum()} of "
                f"{len(log)} rows than in the rest ({name_rows(runs.rows[few])})",
                advice=f"give {name} in one unit",
                rows=runs.source_rows(few),
                columns=(name,),
            )


def _flops_levels(runs: Runs, flops: Array | None) -> Iterator[Trouble]:
    """Find recorded FLOPs that are another multiple of 6 N D in part of the rows."""
    if flops is None or not {"parameters", "tokens"} <= set(runs.axes):
        return
    ratio = np.log(flops / 6) - runs.axes["parameters"] - runs.axes["tokens"]
    found = two_levels(np.ones((len(ratio), 1)), ratio)
    # Attention makes the ratio a function of size; two units of one size do not.
    if found and found.step > 0.2 and overlaps(list(runs.axes.values()), found.is_high) > _OVERLAP:
        few = found.is_high if found.is_high.mean() <= 0.5 else ~found.is_high
        other = np.exp(np.median(ratio[~few]))
        yield Trouble(
            kind="units",
            sentence=f"flops is {np.exp(np.median(ratio[few])):.2f} times 6 parameters x tokens in "
            f"{few.sum()} of {len(few)} rows and {other:.2f} times in the rest "
            f"({name_rows(runs.rows[few])})",
            advice="count FLOPs, parameters and tokens the same way in all rows",
            rows=runs.source_rows(few),
            columns=("flops",),
        )


def _groups(runs: Runs) -> Iterator[Trouble]:
    """Find the column that explains most of what the sizes leave unexplained."""
    best: tuple[float, str, Array] | None = None
    for name, column in runs.labels.items():
        values, codes = np.unique(column, return_inverse=True)
        is_word = column.dtype.kind in "US"
        if len(values) > (_MOST_LABELS if is_word else _MOST_NUMBERS):
            continue
        if _names_a_size(runs, codes, _OVERLAP if is_word else _OVERLAP_OF_NUMBERS):
            continue
        share, effects = share_explained(runs.surface, runs.log, codes)
        known = effects[np.bincount(codes) > 1]
        worth = share + (0.1 if is_word else 0.0)
        if share >= _SHARE and len(known) > 1 and np.ptp(known) >= _LEAST_EFFECT:
            best = max(best or (0.0, "", known), (worth, name, known), key=lambda item: item[0])
    if best is not None:
        _, name, effects = best
        values = [str(value) for value in np.unique(runs.labels[name]).tolist()]
        shown = ", ".join(values[:4]) + (", ..." if len(values) > 4 else "")
        yield Trouble(
            kind="mixed",
            sentence=f"the rows differ by {name} ({shown}): at equal sizes {runs.target} differs "
            f"by up to {100 * np.expm1(np.ptp(effects)):.2g} % between them",
            advice=f"fit one at a time ({_condition(runs, [name])}), or let them share exponents "
            f"(law.grouped)",
            columns=(name,),
        )


def _names_a_size(runs: Runs, codes: NDArray[np.int64], least: float = _OVERLAP) -> bool:
    """Say whether groups differ only where sizes do, so that the law itself explains them."""
    logs = list(runs.axes.values())
    return spread_within(logs, codes) < _SAME or overlaps(logs, codes) < least


def _replicates(runs: Runs) -> Iterator[Trouble]:
    """Find runs of one size whose targets differ by more than chance."""
    apart = _apart(runs)
    if not apart:
        return
    worst = max(apart, key=lambda rows: float(np.ptp(runs.log[rows])))
    ends = worst[[runs.log[worst].argmin(), runs.log[worst].argmax()]]
    differ = _differing(runs, apart)
    low, high = np.exp(runs.log[ends])
    yield Trouble(
        kind="mixed",
        sentence=f"rows {runs.rows[ends[0]]} and {runs.rows[ends[1]]} have the same "
        f"{' and '.join(runs.axes)} and {runs.target} {low:.4g} and {high:.4g}, "
        f"{100 * (high / low - 1):.2g} % apart"
        + (f"; so are runs of {len(apart) - 1} further sizes" if len(apart) > 1 else "")
        + (f". They differ by {', '.join(differ)}" if differ else ""),
        advice=f"keep the runs of one recipe with {_condition(runs, differ)}",
        rows=tuple(int(row) for row in runs.rows[np.concatenate(apart)]),
        columns=tuple(differ),
    )


def _differing(runs: Runs, heaps: Sequence[NDArray[np.int64]]) -> list[str]:
    """Name up to three columns that differ within nearly every heap; words if there are any."""
    found, runs_only = [], []
    for name, column in runs.labels.items():
        codes = np.unique(column, return_inverse=True)[1]
        if np.mean([np.ptp(codes[rows]) > 0 for rows in heaps]) > 0.8:
            # What has one size each names a run; a recipe is the better word.
            (runs_only if _names_a_size(runs, codes) else found).append(name)
    found = found or runs_only
    words = [name for name in found if runs.labels[name].dtype.kind in "US"]
    return (words or found)[:3]


def _apart(runs: Runs) -> list[NDArray[np.int64]]:
    """Return the rows of each size whose targets differ by more than chance."""
    keys = np.stack([np.round(log / _SAME) for log in runs.axes.values()], axis=1)
    cell = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
    order = np.argsort(cell, kind="stable")
    begins = np.flatnonzero(np.diff(cell[order], prepend=-1))
    spread = np.maximum.reduceat(runs.log[order], begins) - np.minimum.reduceat(
        runs.log[order], begins
    )
    heaps = np.split(order, begins[1:])
    return [heaps[index] for index in np.flatnonzero(spread > _REPLICATES)]


def _condition(runs: Runs, columns: Sequence[str]) -> str:
    """Return the option that keeps the rows with the first value of a column."""
    if not columns:
        return "--where"
    value = np.unique(runs.labels[columns[0]])[0]
    return f"--where {columns[0]}={value if isinstance(value, str) else f'{value:g}'}"


def _levels(runs: Runs) -> Iterator[Trouble]:
    """Find two laws a constant factor apart that no column tells apart."""
    found = two_levels(runs.surface, runs.log) if len(runs.log) >= _FEWEST_OF_LEVELS else None
    if found is None or found.step < _STEP:
        return
    few = found.is_high if found.is_high.mean() <= 0.5 else ~found.is_high
    is_bits = abs(found.step - _BITS) < 0.04
    yield Trouble(
        kind="units" if is_bits else "mixed",
        sentence=f"{runs.target} is {np.exp(found.step):.3g} times as high in "
        f"{found.is_high.sum()} of {len(few)} rows as sizes and other rows say "
        f"({'fewer' if few.sum() < len(few) / 2 else 'half'}: {name_rows(runs.rows[few])})"
        + (", as bits are to nats" if is_bits else ""),
        advice="convert these rows" if is_bits else "keep the runs of one recipe",
        rows=runs.source_rows(few),
        columns=(runs.target,),
    )


def _design(runs: Runs) -> Iterator[Trouble]:
    """Find sizes and tokens that were not varied independently."""
    if not {"parameters", "tokens"} <= set(runs.axes):
        return
    size, tokens = runs.axes["parameters"], runs.axes["tokens"]
    ratio = tokens - size
    beside = min(_beside(size, tokens), _beside(tokens, size))
    low, high = (np.exp(np.quantile(ratio, share)) for share in (0.05, 0.95))
    if beside < _ONE_AXIS:
        yield Trouble(
            kind="design",
            sentence=f"tokens follow parameters within a factor {np.exp(beside):.2f} (tokens per "
            f"parameter {low:.3g} to {high:.3g}): size and tokens can hardly be told apart",
            advice="add runs of one size with several times fewer and more tokens",
            columns=("parameters", "tokens"),
        )
        return
    top = _ray(size + tokens, ratio)
    if top.sum() >= _FEWEST_ON_RAY and ratio[~top].std() > _BESIDE_RAY:
        yield Trouble(
            kind="design",
            sentence=f"the {top.sum()} largest runs all have about "
            f"{np.exp(np.median(ratio[top])):.3g} tokens per parameter, the smaller ones "
            f"{low:.3g} to {high:.3g}: beside that ray nothing large was measured",
            advice="fit slices and ray apart and compare, or add large runs beside the ray",
            rows=runs.source_rows(top),
            columns=("parameters", "tokens"),
        )


def _ray(compute: Array, ratio: Array) -> NDArray[np.bool_]:
    """Mark the largest runs down to the first with other tokens per parameter, [n]."""
    order = np.argsort(-compute, kind="stable")
    ray = np.median(ratio[order[:_FEWEST_ON_RAY]])
    others = np.flatnonzero(np.abs(ratio[order] - ray) > _ON_RAY)
    top = np.zeros(len(ratio), dtype=np.bool_)
    top[order[: others[0] if len(others) else len(order)]] = True
    # Runs of one compute are a slice, of which one size may well be all.
    return top & (np.ptp(compute[top]) > np.log(2) if top.any() else False)


def _beside(along: Array, other: Array) -> float:
    """Return the deviation of one log column from a line over another."""
    slope, offset = np.polyfit(along, other, 1)
    return float(np.std(other - slope * along - offset))
