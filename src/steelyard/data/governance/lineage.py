"""What each file was made of, and by which pipeline."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steelyard.config import convert
from steelyard.data.stages import hash_of
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive, read_json, sha256_file, write_json

__all__ = ["Lineage", "LineageRecord"]

_FILE = "lineage.json"


@dataclass(frozen=True, kw_only=True)
class LineageRecord:
    """One output.

    Attributes:
        output: its path, a file or a folder of files.
        inputs: paths that it was made of.
        pipeline: file of the pipeline that made it; empty where another program did.
        training: whether its rows are those the pipeline learned from.
        split: rule of the split by plain values, if it is a share of one.
        share: name of the share.
        sha256: of its content.
        key: hash of the keys of the inputs and of the pipeline: equal for outputs made alike.
        time_s: when it was made.
    """

    output: str
    inputs: list[str]
    pipeline: str = ""
    training: bool = False
    split: dict[str, Any] = field(default_factory=dict)
    share: str = ""
    sha256: str = ""
    key: str = ""
    time_s: float = 0.0


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file, or of all files of a folder with their names."""
    if path.is_dir():
        files = sorted(item for item in path.rglob("*") if item.is_file())
        return hash_of([[str(item.relative_to(path)), sha256_file(item)] for item in files])
    return sha256_file(path)


class Lineage:
    """Records of outputs in a folder.

    Attributes:
        folder: holds them.
    """

    def __init__(self, folder: Path) -> None:
        """Open the records, or name where they will be."""
        self.folder = folder

    @property
    def records(self) -> dict[str, LineageRecord]:
        """Records by output.

        Raises:
            DataError: they are damaged.
        """
        path = self.folder / _FILE
        if not path.exists():
            return {}
        try:
            found = [convert(item, LineageRecord) for item in read_json(path)["records"]]
        except (ConfigError, KeyError, TypeError) as error:
            raise DataError(f"the records {path} are damaged: {error}") from error
        return {item.output: item for item in found}

    def record(
        self,
        output: Path,
        inputs: Sequence[Path],
        *,
        pipeline: Path | None = None,
        training: bool = False,
        split: Mapping[str, Any] | None = None,
        share: str = "",
    ) -> LineageRecord:
        """Remember an output; an older record of it is replaced.

        Args:
            output: file or folder that was written.
            inputs: files that it was made of.
            pipeline: file of the pipeline that made it.
            training: whether its rows are those the pipeline learned from.
            split: rule of the split by plain values, if it is a share of one.
            share: name of the share.

        Returns:
            The record.

        Raises:
            DataError: a file is not there.
            ConfigError: an output is made of itself.
        """
        place, sources = _absolute(output), [_absolute(item) for item in inputs]
        if missing := [path for path in (place, *sources) if not Path(path).exists()]:
            raise DataError(f"{missing[0]} is not there")
        with exclusive(self.folder):
            records = self.records
            if place in sources or place in _ancestors(records, sources):
                raise ConfigError(f"{output} would be made of itself")
            known = [records[path].key if path in records else path for path in sources]
            by = sha256_file(pipeline) if pipeline else ""
            made = LineageRecord(
                output=place,
                inputs=sources,
                pipeline=_absolute(pipeline) if pipeline else "",
                training=training,
                split=dict(split or {}),
                share=share,
                sha256=content_hash(output),
                key=hash_of([known, by, training, dict(split or {}), share]),
                time_s=time.time(),
            )
            self._write(records | {place: made})
        return made

    def _write(self, records: Mapping[str, LineageRecord]) -> None:
        write_json(self.folder / _FILE, {"records": [asdict(item) for item in records.values()]})

    def refresh(self, record: LineageRecord) -> None:
        """Write the hash of an output that was changed on purpose."""
        self.record(
            Path(record.output),
            [Path(item) for item in record.inputs],
            pipeline=Path(record.pipeline) if record.pipeline else None,
            training=record.training,
            split=record.split,
            share=record.share,
        )

    def roots(self) -> list[str]:
        """Return the inputs that are no output."""
        records = self.records
        every = [path for item in records.values() for path in item.inputs]
        return list(dict.fromkeys(path for path in every if path not in records))

    def derived(self, sources: Sequence[str]) -> list[LineageRecord]:
        """Return all that was made of some files, each after what it was made of."""
        found: dict[str, LineageRecord] = {}
        reached = set(sources)
        left = self.records
        while ready := [item for item in left.values() if reached & set(item.inputs)]:
            for item in ready:
                reached.add(item.output)
                found[item.output] = left.pop(item.output)
        return _in_order(found)

    def changed(self) -> list[str]:
        """Return outputs that are gone or no longer what was written."""
        return [
            path
            for path, item in self.records.items()
            if not Path(path).exists() or content_hash(Path(path)) != item.sha256
        ]


def _absolute(path: Path | str) -> str:
    """Return one name of a file."""
    return str(Path(path).resolve())


def _ancestors(records: Mapping[str, LineageRecord], sources: Sequence[str]) -> set[str]:
    """Return all that some files were made of."""
    found: set[str] = set()
    waiting = list(sources)
    while waiting:
        item = waiting.pop()
        if item in records and item not in found:
            waiting += records[item].inputs
        found.add(item)
    return found


def _in_order(found: Mapping[str, LineageRecord]) -> list[LineageRecord]:
    """Return records so that each comes after those of its inputs."""
    ordered: dict[str, LineageRecord] = {}
    while len(ordered) < len(found):
        for path, item in found.items():
            if path not in ordered and all(
                own not in found or own in ordered for own in item.inputs
            ):
                ordered[path] = item
    return list(ordered.values())
