"""Points and curves of a fit as the series of a chart.

One input runs along the axis, one is told by colour, and the rest are held.

Where a curve holds other inputs than a point has, the point is moved along the law to the curve's
inputs and keeps its residual, so that its distance from the curve is still how wrong the law is
there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.runs.axes import tick_text

__all__ = [
    "MOST_DRAWN",
    "Series",
    "Split",
    "axis_words",
    "drawn_rows",
    "formula_words",
    "greek",
    "split",
    "unit_of",
    "with_unseen",
]

_GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "eta": "η",
    "theta": "θ",
    "kappa": "κ",
    "lambda": "λ",
    "mu": "μ",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "omega": "ω",
}
_TRAINING = ("tokens", "samples", "examples", "steps")
_MOST = 9
_BINS = 6
_SAME = 0.03
_NO_DATA = 1e-6
_MOVED = 1e-3
_FARTHEST = 50
MOST_DRAWN = 2000
"""Points of a chart: more lie on top of each other and make a page of a hundred megabytes."""
_COUNTS = (
    "parameters",
    "tokens",
    "unique_tokens",
    "batch_tokens",
    "samples",
    "unique_samples",
    "examples",
    "pool_size",
    "batch",
    "steps",
)
_UNITS = dict.fromkeys(_COUNTS, "token") | {"flops": "FLOP", "year": "year"}
_WORDS = {
    "parameters": "Parameters",
    "tokens": "Training tokens",
    "unique_tokens": "Unique tokens",
    "samples": "Training samples",
    "flops": "Training compute, FLOP",
    "year": "Year",
}


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour and the inputs their curve holds.

    Attributes:
        label: text written at the curve.
        rows: rows of the points, [m]; of a large table a sample.
        held: value of every input but the one along the axis.
    """

    label: str
    rows: NDArray[np.int64]
    held: dict[str, float]


@dataclass(frozen=True, slots=True)
class Split:
    """How a fit is drawn.

    Attributes:
        along: input along the axis.
        by: input that colours tell apart, empty for one colour.
        series: series by rising value of `by`.
        is_moved: whether points had to be moved along the law to their curve.
        x: position of each point, [n]: the input along the axis, except for points of no data (a
            millionth of the next one or less), which stand a decade below the others.
        zero: where those stand, None for none.
    """

    along: str
    by: str
    series: tuple[Series, ...]
    is_moved: bool
    x: Array
    zero: float | None

    @property
    def drawn_words(self) -> list[str]:
        """Say in a line how many of the points are drawn; no line where all are."""
        drawn = sum(len(item.rows) for item in self.series)
        words = f"{drawn:,} of {len(self.x):,} points drawn, the farthest from the law among them"
        return [words] if drawn < len(self.x) else []

    @property
    def is_ordered(self) -> bool:
        """Whether the series stand in an order, as sizes do and names of groups do not."""
        return self.by != "group"

    def on_curve(
        self, fit: Fit, inputs: Mapping[str, Array], target: Array, series: Series
    ) -> Array:
        """Move points along the law to the inputs of a series' curve.

        Args:
            fit: fit whose law moves the points.
            inputs: inputs of the points, [m] each.
            target: targets of the points, [m].
            series: series they are moved to.

        Returns:
            Targets on the curve's inputs with the points' own residuals, [m].
        """
        return target * np.exp(_shift(fit, inputs, series))


def unit_of(name: str) -> str:
    """Return the unit in which an input is written, "1" when nothing is known of it."""
    return _UNITS.get(name, "1")


def axis_words(name: str) -> str:
    """Return what stands beside the axis of an input or a target."""
    plain = name.replace("_", " ")
    return _WORDS.get(name, plain[:1].upper() + plain[1:])


def formula_words(formula: str) -> str:
    """Write a formula with Greek letters and proper signs: E + A / N^α + B / D^β."""
    return greek(formula).replace(" - ", " − ").replace(" * ", " · ")


def greek(words: str) -> str:
    """Write alpha as α, and so on, where it stands as a name or the head of one."""
    return re.sub(
        f"(?<![A-Za-z])({'|'.join(_GREEK)})(?![a-z])", lambda match: _GREEK[match.group()], words
    )


def split(fit: Fit, along: str = "", by: str = "") -> Split:
    """Choose the series of a fit.

    Args:
        fit: fit with its points.
        along: input along the axis; empty for training tokens, samples, examples or steps where the
            law has one, else for the input with the most different values.
        by: input that colours tell apart; empty for groups, else the input that moves the law most.

    Returns:
        The series.

    Raises:
        FitError: a fit without points, or no such input.
    """
    fit.study()  # refuses a law without points
    unknown = [name for name in (along, by) if name and name not in fit.law.inputs]
    if unknown or (along and along == by):
        raise FitError(
            f"cannot draw along {along!r} by {by!r}",
            hint=f"inputs of this law: {', '.join(fit.law.inputs)}",
        )
    chosen = along or _main(fit, by)
    others = [name for name in fit.law.inputs if name != chosen]
    varied = [name for name in others if np.ptp(np.log(fit.inputs[name])) > _SAME]
    colour = by or (
        "group"
        if "group" in varied
        else max(varied, key=lambda name: _effect(fit, name), default="")
    )
    series = _series(fit, chosen, colour)
    moved = max(np.abs(_shift(fit, fit.inputs, item)[item.rows]).max() for item in series)
    if len(fit.target) > MOST_DRAWN:
        share = MOST_DRAWN / len(fit.target)
        far = np.argsort(-np.abs(fit.residuals))[:_FARTHEST]
        series = tuple(_sampled(item, fit.inputs[chosen], share, far) for item in series)
    return Split(chosen, colour, series, bool(moved > _MOVED), *_without_zero(fit.inputs[chosen]))


def _shift(fit: Fit, inputs: Mapping[str, Array], series: Series) -> Array:
    """Return the log change by which the law moves points to the curve of a series, [m]."""
    count = len(inputs[fit.law.inputs[0]])
    moved = {
        name: np.full(count, series.held[name]) if name in series.held else inputs[name]
        for name in fit.law.inputs
    }
    theta = fit.theta[None]
    return fit.law.predict(theta, moved)[0] - fit.law.predict(theta, inputs)[0]


def with_unseen(chosen: Split, inputs: Mapping[str, Array]) -> Split:
    """Add a curve for each run that the fit did not see where no curve is theirs.

    Args:
        chosen: how the fit is drawn.
        inputs: inputs of the unseen runs, [m] each.

    Returns:
        The split with a series, without points, per value that no series holds; unchanged where
        colours tell groups apart, series hold several values, or they would become too many.
    """
    if chosen.by in ("", "group") or chosen.is_moved:
        return chosen
    known = np.log([item.held[chosen.by] for item in chosen.series])
    own = {
        float(value): {name: float(column[row]) for name, column in inputs.items()}
        for row, value in enumerate(inputs[chosen.by])
        if np.abs(known - np.log(value)).min() > _SAME
    }
    if not own or len(known) + len(own) > _MOST:
        return chosen
    none = np.zeros(0, dtype=np.int64)
    fresh = [
        Series("", none, {name: value for name, value in run.items() if name != chosen.along})
        for run in own.values()
    ]
    series = sorted((*chosen.series, *fresh), key=lambda item: item.held[chosen.by])
    labels = _labels(series, chosen.by)
    named = (replace(item, label=label) for item, label in zip(series, labels, strict=True))
    return replace(chosen, series=tuple(named))


def _without_zero(column: Array) -> tuple[Array, float | None]:
    """Move values that stand for no data a decade below the others; return that place too."""
    ordered = np.unique(column)
    if len(ordered) < 2 or ordered[0] > _NO_DATA * ordered[1]:
        return column, None
    place = float(ordered[1] / 10)
    return np.maximum(column, place), place


def _main(fit: Fit, by: str) -> str:
    """Return the input that counts training, else the one with the most different values."""
    axes = [name for name in fit.law.axes or fit.law.inputs if name not in (by, "group")] or [
        fit.law.inputs[0]
    ]
    counts = [
        name for name in _TRAINING if name in axes and len(_clusters(np.log(fit.inputs[name]))) > 2
    ]
    if counts:
        return counts[0]
    return max(
        axes,
        key=lambda name: (
            len(_clusters(np.log(fit.inputs[name]))),
            float(np.ptp(np.log(fit.inputs[name]))),
        ),
    )


def _effect(fit: Fit, name: str) -> float:
    """Say how far the log prediction moves from the smallest to the largest value of an input."""
    # All other inputs are held at their median; a group has no middle, so the first is taken.
    middle = {
        key: np.full(2, np.exp(np.median(np.log(column)))) for key, column in fit.inputs.items()
    }
    middle[name] = np.array([fit.inputs[name].min(), fit.inputs[name].max()])
    if "group" in middle and name != "group":
        middle["group"] = np.ones(2)
    low, high = fit.law.predict(fit.theta[None], middle)[0]
    return abs(float(high - low))


def _clusters(log: Array) -> list[NDArray[np.int64]]:
    """Put log values within 3 % of the next into one cluster; return the rows of each, rising."""
    order = np.argsort(log, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(log[order]) > _SAME) + 1)


def _series(fit: Fit, along: str, by: str) -> tuple[Series, ...]:
    """Split the rows by the input that colours tell apart."""
    if not by:
        return (_one(fit, along, "", np.arange(len(fit.target)), ""),)
    clusters = _clusters(np.log(fit.inputs[by]))
    if by == "group":
        names = fit.law.groups
        return tuple(
            _one(fit, along, by, rows, names[round(float(fit.inputs[by][rows[0]])) - 1])
            for rows in clusters
        )
    # Sizes drawn at random make a cluster each; more curves than colours tell apart are cut into
    # bins of equally many points.
    if len(clusters) > _MOST:
        clusters = [
            part
            for part in np.array_split(np.argsort(fit.inputs[by], kind="stable"), _BINS)
            if len(part)
        ]
    found = [_one(fit, along, by, rows, "") for rows in clusters]
    return tuple(
        replace(item, label=label) for label, item in zip(_labels(found, by), found, strict=True)
    )


def drawn_rows(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return at most so many of the rows, always the same ones, in order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _sampled(series: Series, column: Array, share: float, far: NDArray[np.int64]) -> Series:
    """Keep a share of the rows, both ends along the axis, and those far from the law."""
    rows = series.rows
    ends = rows[[column[rows].argmin(), column[rows].argmax()]]
    own = drawn_rows(rows, max(round(share * len(rows)), 1))
    far = np.intersect1d(far, rows)
    return replace(series, rows=np.unique(np.concatenate([own, ends, far])))


def _one(fit: Fit, along: str, by: str, rows: NDArray[np.int64], label: str) -> Series:
    """Return the series of some rows; its curve holds the geometric mean of other inputs."""
    held = {
        name: float(np.exp(np.log(column[rows]).mean()))
        for name, column in fit.inputs.items()
        if name != along
    }
    if "group" in held:
        held["group"] = float(round(float(np.median(fit.inputs["group"][rows]))))
    return Series(label, rows, held)


def _labels(series: Sequence[Series], by: str) -> list[str]:
    """Write the value each series holds, with more digits where two would read the same."""
    values = [item.held[by] for item in series]
    labels = [tick_text(float(f"{value:.2g}"), unit_of(by)) for value in values]
    if len(set(labels)) < len(labels):
        labels = [tick_text(float(f"{value:.4g}"), unit_of(by)) for value in values]
    return labels if len(set(labels)) == len(labels) else [f"{value:.6g}" for value in values]
