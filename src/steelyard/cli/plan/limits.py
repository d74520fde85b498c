"""Limits of latencies as they are typed."""

from steelyard.errors import ConfigError
from steelyard.units import parse

__all__ = ["limit_s"]


def limit_s(typed: str, flag: str) -> float:
    """Return a limit in seconds.

    Args:
        typed: time with its unit.
        flag: option that it was given to.

    Returns:
        The limit, above 0.

    Raises:
        ConfigError: it is not above 0, no time, or has no unit: 50 would mean a minute per token,
            where milliseconds are what one has in mind.
    """
    seconds = parse(typed, "s", where=flag)
    if typed.strip()[-1:].isdigit():
        raise ConfigError(
            f"{flag}: {typed!r} has no unit", hint=f"such as {flag} '{typed.strip()} ms'"
        )
    if seconds <= 0:
        raise ConfigError(f"{flag}: {typed!r}, but a limit is above 0", hint=f"such as {flag} 1s")
    return seconds
