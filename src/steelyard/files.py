"""Files that are never half-written, folders held by one process, and the user's own folder."""

import ctypes
import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from steelyard.errors import CapacityError, DataError, StoreError

__all__ = [
    "atomic_path",
    "disk_full_told",
    "exclusive",
    "folder_beside",
    "is_inside",
    "read_json",
    "remove_leftovers",
    "replace_folder",
    "sha256_file",
    "user_dir",
    "writable_user_dir",
    "write_bytes",
    "write_json",
]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SUFFIX = ".part"
_HERE, _EXCHANGE = -100, 2
"""Linux's AT_FDCWD and RENAME_EXCHANGE."""


def user_dir() -> Path:
    """Return the user's data folder: `$STEELYARD_HOME`, or `steelyard` in the XDG data folder."""
    home = os.environ.get("STEELYARD_HOME")
    if home:
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "steelyard"


def writable_user_dir() -> Path:
    """Return the user's data folder, made where it is missing; for work that ends in writing there.

    Returns:
        The folder.

    Raises:
        OSError: it cannot be made, or nothing may be written in it.
    """
    folder = user_dir()
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return folder


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed over `path` on success and removed otherwise.

    What a killed process of this machine left beside the same path is removed first. Missing parent
    folders are made.

    Args:
        path: the file to make or replace.

    Yields:
        An empty file in the same folder; write it by its name.

    Raises:
        CapacityError: the disk is full or a quota is reached; `path` is left as it was.
        DataError: the folder cannot be made or written to.
    """
    temporary = _beside(path)
    try:
        yield temporary
        # The content has to be on the disk before the name points to it: after a power cut, a
        # rename without this flush may leave a file of the right name and no bytes.
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full(path) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`, for what is made before `replace_folder` or taken away.

    What killed processes of this machine left beside the same path is removed first. Missing parent
    folders are made.

    Args:
        path: the file or folder that is made meanwhile.

    Yields:
        The folder; whatever is still in it afterwards is removed.

    Raises:
        CapacityError: the disk is full or a quota is reached.
        DataError: the parent folder cannot be made or written to.
    """
    with _told(path):
        prefix = _cleared(path)
        made = Path(tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX, dir=path.parent))
    made.chmod(0o777 & ~_mask())
    try:
        with disk_full_told(path):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _beside(path: Path) -> Path:
    """Make an empty temporary file in the folder of `path`, with the rights of a plain new file."""
    with _told(path):
        prefix = _cleared(path)
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=_SUFFIX, dir=path.parent)
    os.fchmod(handle, 0o666 & ~_mask())
    os.close(handle)
    return Path(name)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say in the package's words that nothing can be made beside a path."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full(path) from error
        raise DataError(
            f"cannot write {path}: {error.strerror}", hint="choose a folder that you may write to"
        ) from error


def _mask() -> int:
    """Return the mask of rights: temporary files are made for the owner alone, plain ones by it."""
    # It can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cleared(path: Path) -> str:
    """Make the folder of `path`, remove what killed processes left, and return how names begin."""
    # In the same folder, because a rename is atomic only within one file system. The process number
    # in the name tells a later writer whether the file is still being written.
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    return f".{path.name}.{os.getpid()}."


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove what killed processes of this machine were making in a folder.

    Args:
        folder: the folder.
        name: what they were making; any file or folder when it is left out.
    """
    wanted = re.compile(rf"\.{re.escape(name) or '.+'}\.(\d+)\.[^.]+{re.escape(_SUFFIX)}")
    for entry in os.scandir(folder):
        found = wanted.fullmatch(entry.name)
        if not found or _is_running(int(found[1])):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


def is_inside(folder: Path, name: str) -> bool:
    """Return whether a name that a file gives leads to somewhere below a folder, links followed."""
    return (folder / name).resolve().is_relative_to(folder.resolve())


def _is_running(process: int) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # beyond the kernel's range: not a process number
        return False
    except PermissionError:
        return True
    return True


def _flush_folder(folder: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _disk_full(path: Path) -> CapacityError:
    return CapacityError(
        f"disk full while writing {path}", hint="free some space or choose another --out folder"
    )


@contextmanager
def disk_full_told(path: Path) -> Iterator[None]:
    """Say what was being written when the disk became full in the block.

    Args:
        path: what is written, for the message.

    Yields:
        Nothing.

    Raises:
        CapacityError: the disk is full or a quota is reached.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full(path) from error
        raise


def replace_folder(made: Path, folder: Path) -> None:
    """Put a finished folder in the place of another, or where there is none yet.

    On Linux both change places in one step, so that a process that is killed leaves the old one or
    the new one. Elsewhere the old one is renamed first; between the two steps there is none, and
    the old one stands beside as `.NAME.old`.

    Args:
        made: the finished folder, on the same file system; it is gone afterwards.
        folder: where it shall stand.

    Raises:
        StoreError: it cannot be renamed.
    """
    old = folder.with_name(f".{folder.name}.old")
    try:
        if not folder.exists():
            made.rename(folder)
        elif _exchange(made, folder):
            made.rename(old)
        else:
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
            made.rename(folder)
        _flush_folder(folder.parent)
    except OSError as error:
        raise StoreError(
            f"cannot put {made} in the place of {folder}: {error.strerror}",
            hint="move one of them by hand",
        ) from error
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two names change places; False where the system cannot."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "renameat2"):
        return False
    names = (os.fsencode(path) for path in (one, other))
    first, second = (ctypes.c_char_p(name) for name in names)
    return library.renameat2(_HERE, first, _HERE, second, ctypes.c_uint(_EXCHANGE)) == 0


def write_bytes(path: Path, payload: bytes) -> None:
    """Write a whole file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(payload)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, indented.

    Args:
        path: the file to make or replace.
        value: plain values, dataclasses, msgspec structs, paths (as text), numpy scalars and
            arrays; NaN becomes null.
    """
    write_bytes(
        path, msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=2) + b"\n"
    )


def _plain(value: Any) -> Any:
    """Turn a path into text and a numpy scalar or array into numbers."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: the file.

    Returns:
        Dicts, lists and scalars.

    Raises:
        DataError: the file is missing, cannot be read, or is not JSON.
    """
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"no such file: {path}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not valid JSON: {error}", hint="delete it and run again to make it anew"
        ) from error


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as lower-case hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def exclusive(directory: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """Hold a folder for this process.

    The kernel frees the lock when its holder dies, however it dies, so no lock is ever stale.

    Args:
        directory: folder to hold; made when missing.
        wait_s: seconds to wait for another holder, which may be about to end.

    Yields:
        Nothing; the folder is held inside the block. Where the system has no `flock`, nothing is
        locked.

    Raises:
        StoreError: another process still holds the folder, or it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = (directory / ".lock").open("w")
    except OSError as error:
        raise StoreError(
            f"cannot write to {directory}: {error.strerror}", hint="choose another --out folder"
        ) from error
    # The lock file stays behind: removing it would let a third process lock a new file of the same
    # name while a second one still waits on the old one.
    with handle:
        _acquire(handle.fileno(), directory, wait_s)
        yield


def _acquire(descriptor: int, directory: Path, wait_s: float) -> None:
    """Take the lock, trying until `wait_s` is over."""
    try:
        import fcntl
    except ImportError:
        return
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise StoreError(
                    f"another process is working in {directory}",
                    hint="wait for it, stop it, or choose another folder",
                ) from error
        time.sleep(0.05)
