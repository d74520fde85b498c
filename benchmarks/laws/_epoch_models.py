"""Epoch AI's table of machine learning models, as a user downloads it."""

import csv
import datetime
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import DataError

__all__ = ["ModelRecord", "load_models"]

_NUMBERS = {
    "training_compute_flop": "flop",
    "training_chip_hours": "chip_hours",
    "training_time_h": "hours",
    "hardware_quantity": "num_chips",
    "mfu": "mfu",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecord:
    """One published model; None is unknown.

    Attributes:
        name: name of the model.
        organization: who trained it, several separated by commas.
        published: day of publication.
        chips: kinds of accelerator it was trained on.
        flop: training compute.
        chip_hours: accelerator-hours.
        hours: duration of the training.
        num_chips: accelerators.
        mfu: model FLOP/s over peak.
        is_fine_tune: whether it began from another model.
    """

    name: str
    organization: str
    published: datetime.date
    chips: tuple[str, ...]
    flop: float | None
    chip_hours: float | None
    hours: float | None
    num_chips: float | None
    mfu: float | None
    is_fine_tune: bool


def load_models(path: Path) -> list[ModelRecord]:
    """Read models.csv of Epoch AI's "Data on AI Models".

    Args:
        path: the table; models without a date of publication are left out.

    Returns:
        Models in the order of the file.

    Raises:
        DataError: the file cannot be read, lacks a column, or a cell is no number or date; the row
            and the column are named.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read {path}: {error}", hint="give Epoch AI's models.csv"
        ) from error
    needed = {"model", "organization", "publication_date", "hardware", "base_model", *_NUMBERS}
    lacks = sorted(needed - set(rows[0] if rows else ()))
    if lacks:
        raise DataError(
            f"{path} lacks the columns {', '.join(lacks)}", hint="give Epoch AI's models.csv"
        )
    return [
        _record(row, f"{path} row {number}")
        for number, row in enumerate(rows, start=2)
        if row["publication_date"]
    ]


def _record(row: dict[str, str], where: str) -> ModelRecord:
    """Convert one row."""
    numbers: dict[str, float | None] = {}
    for column, name in _NUMBERS.items():
        try:
            numbers[name] = float(row[column]) if row[column] else None
        except ValueError as error:
            raise DataError(f"{where}: {column} {row[column]!r} is no number") from error
    try:
        day = datetime.date.fromisoformat(row["publication_date"])
    except ValueError as error:
        raise DataError(f"{where}: {row['publication_date']!r} is no date") from error
    return ModelRecord(
        name=row["model"],
        organization=row["organization"],
        published=day,
        chips=tuple(filter(None, row["hardware"].split(","))),
        is_fine_tune=bool(row["base_model"]),
        **numbers,
    )
