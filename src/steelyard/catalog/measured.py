"""What was measured of this machine, in a file of the user each."""

from pathlib import Path
from typing import TypeVar

from steelyard.config import convert
from steelyard.errors import CalibrationError, SteelyardError
from steelyard.files import read_json, user_dir, write_json

__all__ = ["load_measured", "measured_path", "store_measured"]

T = TypeVar("T")


def measured_path(name: str) -> Path:
    """Return the file that holds what was measured.

    Args:
        name: what it is of, such as "calibration".

    Returns:
        The file, which need not be there.
    """
    return user_dir() / f"{name}.json"


def store_measured(name: str, values: object) -> Path:
    """Store what was measured as that of this machine, replacing older values.

    Args:
        name: what it is of.
        values: a dataclass.

    Returns:
        The file that was written.
    """
    path = measured_path(name)
    write_json(path, values)
    return path


def load_measured(name: str, kind: type[T], *, what: str, hint: str) -> T | None:
    """Read what was measured.

    Args:
        name: what it is of.
        kind: its dataclass.
        what: its words in an error, such as "rates of scans are".
        hint: how to measure it again.

    Returns:
        The values, None where there are none.

    Raises:
        CalibrationError: the stored file is damaged.
    """
    path = measured_path(name)
    if not path.exists():
        return None
    try:
        return convert(read_json(path), kind, where=str(path))
    except SteelyardError as error:
        raise CalibrationError(f"stored {what} unusable: {error}", hint=hint) from error
