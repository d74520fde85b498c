"""Loss curves from a table: one row per measured step, with the learning rate there."""

from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import DataError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules import multipliers
from steelyard.laws.forms.schedules.curves import Curve
from steelyard.laws.forms.schedules.schedule_rates import LearningRates
from steelyard.laws.tables.files import read_frame

__all__ = ["read_curves"]

_NUMBERS = ("step", "lr", "loss")


def read_curves(path: Path, *, warmup: int = 0) -> dict[str, dict[str, Curve]]:
    """Read loss curves of one or several models.

    Between two rows the rate is taken to change evenly. Before the first row of a curve it rises
    linearly over the warm-up to the rate of that row and stays.

    Args:
        path: CSV, Parquet or JSON lines with columns schedule, step, lr and loss, and model where
            there are several.
        warmup: steps of the rise before the first row of every curve.

    Returns:
        Curves by schedule, by model; the model is "" without such a column.

    Raises:
        DataError: a column or number is missing, a step stands twice, or the warm-up reaches beyond
            a first row.
    """
    frame = read_frame(path)
    missing = [name for name in ("schedule", *_NUMBERS) if name not in frame.columns]
    if missing:
        raise DataError(
            f"{path} has no column {missing[0]!r}, only {', '.join(frame.columns)}",
            hint="loss curves have the columns schedule, step, lr, loss, and model where there are "
            "several",
        )
    models = frame["model"] if "model" in frame.columns else [""] * len(frame)
    labels = [
        (str(model), str(name)) for model, name in zip(models, frame["schedule"], strict=True)
    ]
    columns = np.stack([_numbers(path, frame[name].to_list(), name) for name in _NUMBERS])
    found: dict[str, dict[str, Curve]] = {}
    for label in dict.fromkeys(labels):
        rows = columns[:, [index for index, item in enumerate(labels) if item == label]]
        where = f"{path}, curve {' '.join(part for part in label if part)}"
        found.setdefault(label[0], {})[label[1]] = _curve(rows, warmup, where)
    return found


def _numbers(path: Path, values: list[Any], name: str) -> Array:
    """Read one column; the row that holds no number is named."""
    for row, value in enumerate(values, start=2):
        is_number = isinstance(value, int | float) and np.isfinite(value) and value >= 0
        if not is_number or (name == "loss" and value == 0):
            raise DataError(
                f"{path}, line {row}: {name} is {value!r}",
                hint="step and lr are numbers from 0 on, the loss is positive; remove rows without",
            )
    return np.array(values, dtype=np.float64)


def _curve(rows: Array, warmup: int, where: str) -> Curve:
    """Make a curve of its rows, steps, rates and losses, [3, n]."""
    step, rate, loss = rows[:, np.argsort(rows[0], kind="stable")]
    if len(np.unique(step)) < len(step) or (step != np.rint(step)).any():
        raise DataError(f"{where}: steps must be whole and stand once", hint="remove the others")
    first = int(step[0])
    if not 0 <= warmup <= first + 1:
        raise DataError(
            f"{where} begins at step {first}, within a warm-up of {warmup} steps",
            hint="shorten --warmup, or leave it out where the rows hold the rise themselves",
        )
    body = np.interp(np.arange(first, int(step[-1]) + 1), step, rate)
    # One step more than the rise has: a warm-up that ends right before the first row fits too.
    rise = rate[0] * multipliers.constant(first + 1, warmup=warmup)[:first]
    return Curve(rates=LearningRates(np.concatenate([rise, body])), step=step, loss=loss)
