"""Hashes that a saved model carries, checked without loading PyTorch."""

from pathlib import Path

from steelyard.errors import DataError
from steelyard.files import read_json, sha256_file

__all__ = ["HASHES", "check_hashes"]

HASHES = "steelyard.json"
"""Name of the file that holds them."""


def check_hashes(directory: Path) -> None:
    """Compare files with the hashes that `checkpoint.save` left; folders from elsewhere have none.

    Args:
        directory: folder of a model.

    Raises:
        DataError: a file is missing or another than was saved; it is named.
    """
    if not (directory / HASHES).exists():
        return
    for name, expected in read_json(directory / HASHES)["sha256"].items():
        path = directory / name
        if not path.exists():
            raise DataError(f"{path} is missing", hint="save the model again")
        if sha256_file(path) != expected:
            raise DataError(
                f"{path} is corrupted: its SHA-256 is not the one stored in {HASHES}",
                hint="save the model again",
            )
