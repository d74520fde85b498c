"""Stages of a long job: each one's result is a file, so a killed job goes on where it stopped."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steelyard.config import convert, to_plain
from steelyard.errors import DataError
from steelyard.files import read_json, write_json
from steelyard.runs.progress import Advance, StageBar, silent_bar

__all__ = ["Stages"]

T = TypeVar("T")


def _digest(value: Any) -> str:
    """Hash plain data; equal data has equal hashes."""
    return hashlib.sha256(msgspec.json.encode(to_plain(value), order="deterministic")).hexdigest()


@dataclass(frozen=True, slots=True)
class Stages:
    """Results of named stages under one folder.

    Attributes:
        directory: folder that holds one `NAME.json` per finished stage.
        bar: opens the progress bar of a stage.
    """

    directory: Path
    bar: StageBar = silent_bar

    def run(self, name: str, inputs: Any, kind: type[T], work: Callable[[], T]) -> T:
        """Return the stored result of a stage, or do its work and store the result atomically.

        A stored result counts only when it came from the same inputs and its own hash holds.

        Args:
            name: file name of the stage, without suffix.
            inputs: plain data the result depends on.
            kind: type of the result, which JSON must be able to hold.
            work: makes the result; called at most once.

        Returns:
            The result, decoded from JSON whether it was stored or made now.

        Raises:
            DataError: the stored file is corrupted.
            ConfigError: what is stored is no `kind`.
        """
        path = self.directory / f"{name}.json"
        key = _digest(inputs)
        if path.exists():
            stored = read_json(path)
            if not isinstance(stored, dict) or stored.get("sha256") != _digest(
                stored.get("result")
            ):
                raise DataError(
                    f"{path} is corrupted (hash mismatch)", hint="delete this file and run again"
                )
            if stored.get("inputs") == key:
                return convert(stored["result"], kind, where=str(path))
        # A result made now takes the same way through JSON as a stored one, so that a job which was
        # stopped and one which was not go on with equal values.
        result = msgspec.json.decode(msgspec.json.encode(to_plain(work())))
        write_json(
            path, {"stage": name, "inputs": key, "sha256": _digest(result), "result": result}
        )
        return convert(result, kind, where=str(path))

    def run_shown(
        self, name: str, inputs: Any, kind: type[T], work: Callable[[Advance], T], *, title: str
    ) -> T:
        """Do as `run` does, with a progress bar while the work lasts.

        Args:
            name: file name of the stage, without suffix.
            inputs: plain data the result depends on.
            kind: type of the result, which JSON must be able to hold.
            work: makes the result and reports its progress; called at most once.
            title: words before the bar.

        Returns:
            The result, decoded from JSON.
        """

        def shown() -> T:
            with self.bar(title) as advance:
                return work(advance)

        return self.run(name, inputs, kind, shown)
