"""Reads that reached a device: without them a timing of cold reads says nothing."""

from pathlib import Path

from steelyard.errors import ConfigError

__all__ = ["device_read_bytes"]


def device_read_bytes() -> int:
    """Return the bytes that this process had read from devices so far, by the system's count.

    Returns:
        Bytes; what came from the page cache is not among them.

    Raises:
        ConfigError: the system keeps no such count.
    """
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError as error:
        raise ConfigError(
            f"this system counts no reads: {error}", hint="run on Linux with task accounting"
        ) from error
    return int(dict(line.split(": ") for line in lines)["read_bytes"])
