"""A run as the store records it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.quantity import Forecast, Measurement

__all__ = ["STATUSES", "Artifact", "RunRecord"]

STATUSES = ("running", "interrupted", "done", "failed")
"""What a run can be; "interrupted" is a run whose process ended without a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A file or folder a run made.

    Attributes:
        name: what the run calls it.
        path: where it lies, absolute.
        sha256: hash of the file's bytes; of a folder, hash of its sorted file names and hashes.
        num_bytes: size of the file, or of all files of the folder.
    """

    name: str
    path: Path
    sha256: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run: what was asked, on what, what was forecast and what was measured.

    Attributes:
        id: twelve hexadecimal digits; any unique beginning names the run.
        kind: such as "train" or "serve".
        name: the user's words, may be empty.
        status: one of `STATUSES`.
        started_s: seconds since 1970 (UTC).
        finished_s: end in the same seconds, None while it has none.
        recipe: resolved configuration.
        seed: seed of all its randomness.
        versions: versions of Python and the packages that shape results.
        machine: host, system, processor, cores, memory_bytes.
        forecasts: forecasts in the order they were recorded.
        measurements: measurements in the order they were taken.
        artifacts: files the run made.
        directory: folder of the run, with `recipe.json` and `columns/`.
    """

    id: str
    kind: str
    name: str
    status: str
    started_s: float
    finished_s: float | None
    recipe: dict[str, Any]
    seed: int
    versions: dict[str, str]
    machine: dict[str, Any]
    forecasts: tuple[Forecast, ...]
    measurements: tuple[Measurement, ...]
    artifacts: tuple[Artifact, ...]
    directory: Path
