"""The points of a fit, checked once at the boundary."""

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Grouped

__all__ = [
    "Points",
    "check_inputs",
    "check_positive",
    "named_column",
    "positive_column",
    "positive_columns",
    "refuse_constant",
    "refuse_rows",
]

_NOT_POSITIVE = (
    "drop those rows; a loss of NaN is a diverged run, and one of 0 or less has no logarithm"
)
_SAME_AXIS_SD = 0.03
"""Log inputs that leave less than 3 % of spread beside a straight line do not separate two
exponents."""
_SAME_TARGET = 1e-9


@dataclass(frozen=True, slots=True)
class Points:
    """Points that allow a fit.

    Attributes:
        inputs: values by input, natural units, [n].
        target: natural units, positive, [n].
        weights: not negative, [n]; ones when none were given.
        clusters: number of the cluster each point is drawn with in a bootstrap, [n]; its own row
            when none were given.
    """

    inputs: dict[str, Array]
    target: Array
    weights: Array
    clusters: NDArray[np.int64]

    @classmethod
    def checked(
        cls,
        law: Law,
        inputs: Mapping[str, ArrayLike],
        target: ArrayLike | str,
        weights: ArrayLike | None,
        clusters: ArrayLike | None = None,
    ) -> "Points":
        """Refuse what cannot be fitted, by name of column and row.

        Args:
            law: law whose inputs are needed.
            inputs: values by input in natural units, [n].
            target: natural units, [n], or the name of a column of `inputs`.
            weights: [n], or None for equal ones.
            clusters: labels of what is drawn together in a bootstrap, [n], or None for single
                points.

        Returns:
            The points as float64 columns.

        Raises:
            FitError: a column is missing, of another length, or holds values that are not positive
                and finite; there are fewer points than parameters plus two; the target is the same
                in every row; one input is a function of another in every row.
        """
        columns = check_inputs(law, inputs)
        count = len(columns[law.inputs[0]])
        called = target if isinstance(target, str) else "target"
        goal = positive_column(called, named_column(inputs, target), count)
        weight = np.ones(count) if weights is None else _column("weights", weights, count)
        if not np.isfinite(weight).all() or (weight < 0).any() or not (weight > 0).any():
            raise FitError(
                "weights must be finite, not negative and not all zero",
                hint="drop the rows or give each a weight >= 0",
            )
        _enough(law, int((weight > 0).sum()))
        refuse_constant(called, goal[weight > 0])
        _separable(law, {name: column[weight > 0] for name, column in columns.items()})
        return cls(columns, goal, weight, _clusters(clusters, count))


def check_inputs(law: Law, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Turn the law's inputs into positive float64 columns of one length.

    Args:
        law: law whose inputs are needed; others are ignored.
        inputs: values by input in natural units, [n] or a single number.

    Returns:
        Column by input, [n].

    Raises:
        FitError: an input is missing, of another length, or not positive and finite.
    """
    missing = [name for name in law.inputs if name not in inputs]
    if missing:
        raise FitError(
            f"law {law.name} needs {', '.join(law.inputs)}; missing: {', '.join(missing)}",
            hint=f"given: {', '.join(inputs)}",
        )
    given = {name: inputs[name] for name in law.inputs}
    if isinstance(law.term, Grouped):
        given["group"] = law.term.numbers(np.asarray(given["group"]))
    count = max(np.size(np.asarray(values)) for values in given.values())
    return {name: positive_column(name, values, count) for name, values in given.items()}


def named_column(
    points: Mapping[str, ArrayLike], column: ArrayLike | str, use: str = "to fit"
) -> ArrayLike:
    """Look up a column that was given by its name or as values.

    Args:
        points: columns by name.
        column: name of one of them, or the values themselves.
        use: what the column is for, in the message.

    Returns:
        The values.

    Raises:
        FitError: no column has the name.
    """
    if not isinstance(column, str):
        return column
    if column not in points:
        raise FitError(f"no column {column!r} {use}", hint=f"given: {', '.join(points)}")
    return points[column]


def _clusters(labels: ArrayLike | None, count: int) -> NDArray[np.int64]:
    """Number the clusters, [count]."""
    if labels is None:
        return np.arange(count)
    _, numbers = np.unique(np.asarray(labels), return_inverse=True)
    if numbers.shape != (count,) or numbers.max() < 1:
        raise FitError(
            f"groups must be {count} labels, one per point, of at least two groups",
            hint="leave groups out to resample points",
        )
    return numbers.astype(np.int64)


def _column(name: str, values: ArrayLike, count: int) -> Array:
    """Turn values into [count] float64; a single number is repeated."""
    try:
        column = np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise FitError(f"{name}: not a column of numbers ({error})") from error
    if column.ndim != 1 or len(column) not in (1, count):
        raise FitError(
            f"{name} has shape {column.shape}, the other columns {count} rows",
            hint="give one value per point",
        )
    return np.array(np.broadcast_to(column, (count,)))


def positive_column(name: str, values: ArrayLike, count: int, hint: str = _NOT_POSITIVE) -> Array:
    """Turn values into a positive finite column.

    Args:
        name: name of the column, for messages.
        values: values in natural units, [count] or a single number.
        count: rows of the table.
        hint: what to do about rows that are not.

    Returns:
        The column as float64, [count].

    Raises:
        FitError: the column has another length or holds what is not positive and finite.
    """
    column = _column(name, values, count)
    refuse_rows(
        ~(np.isfinite(column) & (column > 0)),
        f"{name} must be positive and finite",
        column,
        hint,
    )
    return column


def positive_columns(
    columns: Mapping[str, ArrayLike], hint: str = _NOT_POSITIVE
) -> dict[str, Array]:
    """Turn columns of one table into positive finite ones.

    Args:
        columns: values by name in natural units, [n] each.
        hint: what to do about rows that are not.

    Returns:
        The columns as float64, [n] each, in the order given.

    Raises:
        FitError: the columns differ in length, or hold what is not positive and finite.
    """
    shapes = {name: np.shape(values) for name, values in columns.items()}
    if len(set(shapes.values())) != 1:
        raise FitError(
            f"columns have different lengths or shapes: {shapes}; one of each per run is needed"
        )
    return {
        name: positive_column(name, values, np.size(values), hint)
        for name, values in columns.items()
    }


def check_positive(hint: str = "", **numbers: float) -> None:
    """Refuse single numbers that are not positive and finite.

    Args:
        hint: what to do about them.
        **numbers: value by name; an underscore in a name is printed as a blank.

    Raises:
        FitError: some number is not; all of these are shown.
    """
    bad = [
        f"{name.replace('_', ' ')} {number:g}"
        for name, number in numbers.items()
        if not (np.isfinite(number) and number > 0)
    ]
    if bad:
        raise FitError(f"{' and '.join(bad)} must be positive and finite", hint=hint)


def refuse_rows(is_bad: NDArray[np.bool_], rule: str, column: Array, hint: str) -> None:
    """Refuse a column by the rows that break a rule.

    Args:
        is_bad: whether a row breaks it, [n].
        rule: the rule, a sentence without its period.
        column: values of the rows, [n].
        hint: what to do.

    Raises:
        FitError: some row is bad; up to five are shown with their values.
    """
    rows = np.flatnonzero(is_bad)
    if len(rows):
        shown = ", ".join(f"{row + 1} ({column[row]:g})" for row in rows[:5])
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        raise FitError(f"{rule}; rows {shown}{more} are not (the first row is 1)", hint=hint)


def _enough(law: Law, count: int) -> None:
    """Refuse fewer than P + 2 points (3 for a straight line); warn below 2 P."""
    size = len(law.parameters)
    least = size + (2 if size > 2 else 1)
    if count < least:
        raise FitError(
            f"{count} points cannot fit the {size} parameters of {law.name}; at least {least} are "
            f"needed",
            hint="add runs, or choose a law with fewer parameters, such as chinchilla(tied=True)",
        )
    if count < 2 * size:
        warnings.warn(
            f"{count} points for the {size} parameters of {law.name}: fewer than two per "
            f"parameter, its intervals are rough",
            SteelyardWarning,
            stacklevel=5,  # the caller of fit()
        )


def refuse_constant(name: str, goal: Array) -> None:
    """Refuse a column that is the same in every row.

    Args:
        name: name of the column, for the message.
        goal: its positive values, [n].

    Raises:
        FitError: all values are equal.
    """
    if np.ptp(np.log(goal)) < _SAME_TARGET:
        raise FitError(
            f"{name} is {goal[0]:.6g} in every row, so there is nothing to fit",
            hint="take another column, or runs whose results differ",
        )


def _separable(law: Law, columns: Mapping[str, Array]) -> None:
    """Refuse tables in which an input never varies, or follows another one."""
    logs = {name: np.log(columns[name]) for name in law.axes}
    for name, log in logs.items():
        if np.ptp(log) < _SAME_AXIS_SD:
            raise FitError(
                f"{name} is {columns[name][0]:g} in every row, so its exponent cannot be fitted",
                hint=f"add runs with other {name}",
            )
    for first, second in itertools.combinations(logs, 2):
        slope, offset = np.polyfit(logs[first], logs[second], 1)
        if np.std(logs[second] - slope * logs[first] - offset) < _SAME_AXIS_SD:
            power = "" if abs(slope - 1) < 0.01 else f"^{slope:.3g}"
            raise FitError(
                f"one-axis table: {second} = {np.exp(offset):.3g} x {first}{power} in every row, "
                f"so the exponents of {first} and {second} are not separable",
                hint=f"add runs with the same {first} and other {second}",
            )
