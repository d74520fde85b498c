"""Stages that are done once: a result counts only while its inputs and files hash the same."""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from steelyard.errors import DataError
from steelyard.files import read_json, remove_leftovers, sha256_file, write_json

__all__ = ["StageFolder", "hash_of"]


def hash_of(*values: Any) -> str:
    """Return the SHA-256 of values that JSON can hold."""
    return hashlib.sha256(msgspec.json.encode(values)).hexdigest()


class StageFolder:
    """Remembers finished stages in a folder, one JSON file each.

    Attributes:
        directory: where the records lie, and where most stages put their files.
    """

    def __init__(self, directory: Path) -> None:
        """Open the folder, and remove what a killed writer left half-written.

        Args:
            directory: folder of the records; made if it is missing.
        """
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for folder in (directory, directory.parent):
            remove_leftovers(folder)

    def run(
        self, name: str, key: str, work: Callable[[], tuple[dict[str, Any], list[Path]]]
    ) -> dict[str, Any]:
        """Return what a stage found out, doing its work only if it is not done.

        Args:
            name: name of the stage.
            key: hash of everything its result depends on.
            work: writes its files atomically and returns its findings and the files.

        Returns:
            The findings.
        """
        record = self.directory / f"{name}.json"
        with contextlib.suppress(DataError):
            stored = read_json(record)
            if stored["key"] == key and all(
                Path(path).is_file() and sha256_file(Path(path)) == sha
                for path, sha in stored["files"].items()
            ):
                return stored["findings"]
        # The record goes before the work replaces the files it speaks of.
        record.unlink(missing_ok=True)
        findings, files = work()
        write_json(
            record,
            {
                "key": key,
                "findings": findings,
                "files": {str(path): sha256_file(path) for path in files},
            },
        )
        return findings
