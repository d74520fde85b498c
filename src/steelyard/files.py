"""Files that are never half-written: written beside, flushed, renamed; and where the user's own files live."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from steelyard.errors import CapacityError, DataError

__all__ = ["atomic_path", "read_json", "sha256_file", "user_dir", "write_bytes", "write_json"]


def user_dir() -> Path:
    """Give the user's data folder: `$STEELYARD_HOME`, or `steelyard` under the XDG data folder."""
    home = os.environ.get("STEELYARD_HOME")
    if home:
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "steelyard"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it and rename it over `path`, else remove it.

    Raises:
        CapacityError: the disk is full or a quota is reached; `path` is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        import errno

        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise CapacityError(f"disk full while writing {path}", hint="free some space or choose another --out folder") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, payload: bytes) -> None:
    """Write a whole file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(payload)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, indented; dataclasses and msgspec structs are allowed."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: the file is missing or is not JSON.
    """
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"no such file: {path}") from error
    except msgspec.DecodeError as error:
        raise DataError(f"{path} is not valid JSON: {error}", hint="delete it and run again to make it anew") from error


def sha256_file(path: Path) -> str:
    """Give the SHA-256 of a file's bytes as lower-case hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
