"""API keys: where they are read from, and whose key a request carries."""

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from steelyard.errors import ConfigError

__all__ = ["KeyOwners", "read_keys"]


class KeyOwners:
    """Owners of keys; only digests of the keys are kept.

    Attributes:
        names: owner of each key.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        """Keep digests.

        Args:
            keys: owner's name by key.
        """
        self.names = tuple(keys.values())
        self._digests = [_digest(key) for key in keys]

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self.names)

    def place(self, authorization: bytes) -> int | None:
        """Find whose key a request carries.

        Args:
            authorization: value of the header, with or without "Bearer ".

        Returns:
            Place of the key among those given, None where it is none of them.
        """
        # All keys are compared, each in constant time: how long a refusal takes says neither how
        # much of a key was right nor how many there are.
        given = _digest(authorization.removeprefix(b"Bearer ").strip().decode("latin-1"))
        matches = [
            place
            for place, digest in enumerate(self._digests)
            if hmac.compare_digest(digest, given)
        ]
        return matches[0] if matches else None


def _digest(key: str) -> bytes:
    """Hash a key, so that all comparisons have one length."""
    return hashlib.sha256(key.encode()).digest()


def read_keys(variable: str, path: Path | None) -> dict[str, str]:
    """Read keys from the environment and from a file.

    Args:
        variable: environment variable with keys separated by commas; not read when empty.
        path: file with one `KEY [NAME]` per line; `#` begins a comment. Not read when None.

    Returns:
        Owner's name by key; names made up are `key-1`, `key-2`, ...

    Raises:
        ConfigError: a source was named but has no key.
    """
    lines: list[str] = []
    if variable:
        lines += [item for item in os.environ.get(variable, "").split(",") if item.strip()]
        if not lines:
            raise ConfigError(
                f"the environment variable {variable} is not set",
                hint="set it to the keys, separated by commas",
            )
    if path is not None:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cannot read API keys from {path}: {error}",
                hint="give a text file with one key per line",
            ) from error
        found = [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]
        if not found:
            raise ConfigError(f"{path} holds no key", hint="write one key per line")
        lines += found
    keys: dict[str, str] = {}
    for line in lines:
        key, _, name = line.strip().partition(" ")
        keys[key] = name.strip() or f"key-{len(keys) + 1}"
    return keys
