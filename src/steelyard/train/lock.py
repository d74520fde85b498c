"""One process per run folder: a lock the kernel frees when its holder dies, however it dies."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard.errors import StoreError

__all__ = ["exclusive"]


@contextmanager
def exclusive(directory: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """Hold a run folder for this process.

    Args:
        directory: made when missing.
        wait_s: how long to wait for another holder, who may be dying.

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
                    f"another process is training in {directory}",
                    hint="wait for it, stop it, or choose another folder",
                ) from error
        time.sleep(0.05)
