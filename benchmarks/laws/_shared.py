"""Where the data sets lie that benchmarks compare with; they are not part of the project."""

import os
from pathlib import Path

from steelyard.errors import DataError

__all__ = ["shared"]


def shared(name: str) -> Path:
    """Return the folder of a shared data set.

    Args:
        name: name of the folder, such as "overtrained-lm".

    Returns:
        The folder, below STEELYARD_SHARED or `shared` beside the checkout.

    Raises:
        DataError: it is not on this machine.
    """
    root = Path(os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    folder = root / "data" / name
    if not folder.is_dir():
        raise DataError(
            f"no data set {name} at {folder}",
            hint="set STEELYARD_SHARED to the folder that holds data/",
        )
    return folder
