"""What was done with data, in a file of which no line can be changed or dropped unseen."""

import getpass
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.errors import CapacityError, DataError
from steelyard.files import exclusive

__all__ = ["AuditLog", "hash_entry"]

_BEGIN = "0" * 64


class AuditLog:
    """Lines of JSON, each with the hash of the one before it.

    A line that is changed, dropped or put between two breaks the chain. Someone who writes all
    lines from there on anew is found by whoever kept the last hash (`head`).

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        """Open a log, or name where it will be."""
        self.path = path

    def append(self, action: str, about: Mapping[str, Any]) -> str:
        """Add a line.

        Args:
            action: what was done, in a word or two.
            about: what JSON can hold; no values of people.

        Returns:
            Hash of the line.

        Raises:
            DataError: the log is damaged; nothing is added.
            CapacityError: the disk is full.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(self.path.parent):
            entries = self.entries()
            entry = {
                "number": len(entries) + 1,
                "time_s": time.time(),
                "user": _user(),
                "action": action,
                "about": dict(about),
                "before": entries[-1]["hash"] if entries else _BEGIN,
            }
            entry["hash"] = hash_entry(entry)
            self._write(json.dumps(entry).encode() + b"\n")
        return str(entry["hash"])

    def _write(self, line: bytes) -> None:
        """Add a line, whole or not at all."""
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                written = file.write(line)
                # A disk that has room for a part takes that, and only the next call fails.
                if written < len(line):
                    file.write(line[written:])
                os.fsync(file.fileno())
            except OSError as error:
                # Half a line would make every later one be refused.
                file.truncate(end)
                raise CapacityError(
                    f"cannot write {self.path}: {error.strerror}", hint="free some space"
                ) from error

    def entries(self) -> list[dict[str, Any]]:
        """Return all lines.

        Returns:
            Number, time, user, action, about, before and hash of each.

        Raises:
            DataError: the chain is broken; the first line that does not fit is named. Or the file
                is no log.
        """
        if not self.path.exists():
            return []
        found: list[dict[str, Any]] = []
        before = _BEGIN
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], 1):
            if number == 1 and not line.startswith(b"{"):
                raise DataError(
                    f"{self.path} is no audit log", hint="name a file such as LINEAGE/audit.jsonl"
                )
            try:
                entry = json.loads(line)
                fits = entry["before"] == before and entry["hash"] == hash_entry(entry)
            except (ValueError, KeyError, TypeError):
                fits = False
            if not fits or entry["number"] != number:
                raise DataError(
                    f"line {number} of {self.path} was changed, or one before it is missing",
                    hint="restore the log from a copy",
                )
            found.append(entry)
            before = entry["hash"]
        if lines[-1]:
            raise DataError(
                f"the last line of {self.path} is cut short, as by a kill",
                hint="remove what stands after its last line break",
            )
        return found

    @property
    def head(self) -> str:
        """Hash of the last line."""
        entries = self.entries()
        return str(entries[-1]["hash"]) if entries else _BEGIN


def hash_entry(entry: Mapping[str, Any]) -> str:
    """Return the hash of what JSON can hold, without its own "hash"."""
    told = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _user() -> str:
    """Return who runs this; a container may have no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
