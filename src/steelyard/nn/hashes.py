"""Hashes that a saved model carries, checked without loading PyTorch."""

from pathlib import Path

from steelyard.errors import DataError
from steelyard.files import read_json, sha256_file

__all__ = ["HASHES", "check_hashes", "identity_of"]

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


def identity_of(model: Path) -> str:
    """Tell a model's files from any others, without reading them.

    Args:
        model: folder of a model, whose hashes were checked if it has some, or a file.

    Returns:
        The hashes that `checkpoint.save` left; of other files their places, sizes, times of change
        and numbers in the file system, one of which is another as soon as a byte is.
    """
    if (model / HASHES).exists():
        return str(sorted(read_json(model / HASHES)["sha256"].items()))
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    kept = [path for path in files if path.suffix in (".json", ".safetensors", ".gguf")]
    found = [(path.resolve(), path.stat()) for path in kept or files]
    return str(
        [
            (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev)
            for path, stat in found
        ]
    )
