"""What a scan leaves of a table in one file: sketches that answer later without reading it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.pack import Pack, write_pack
from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.partitions import format_of
from steelyard.data.table.profile import ProfileFold, TableProfile
from steelyard.data.table.sources import is_remote, open_source, stamp_of
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.folding import Folded
    from steelyard.data.table.table import DataTable

__all__ = ["FileMark", "TableSketch"]

_KIND, _VERSION = "steelyard table sketch", 1
_END_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """By what a file is known again.

    Attributes:
        path: absolute where it is on this machine.
        num_bytes: its size.
        stamp: its size and time, or what storage says of it.
        ends: SHA-256 of its first and last 64 KiB, where footers of Parquet and Arrow lie.
    """

    path: str
    num_bytes: int
    stamp: str
    ends: str

    @classmethod
    def of(cls, path: str) -> "FileMark":
        """Look at a file's ends.

        Args:
            path: the file.

        Returns:
            Its mark.

        Raises:
            OSError: it cannot be read.
        """
        own = path if is_remote(path) else str(Path(path).resolve())
        num_bytes, ends = _ends_of(own)
        return cls(path=own, num_bytes=num_bytes, stamp=stamp_of(own), ends=ends)

    def state(self) -> str:
        """Return "fresh", "stale" or "gone".

        Data are not read: of a file whose time changed and whose size did not, Parquet and Arrow
        say by their footer whether it is the same, while text may have changed in its middle.
        """
        try:
            stamp = stamp_of(self.path)
            if stamp == self.stamp:
                return "fresh"
            if format_of(self.path) not in ("parquet", "arrow", "steelpack"):
                return "stale"
            return "fresh" if _ends_of(self.path) == (self.num_bytes, self.ends) else "stale"
        except (OSError, DataError):
            return "gone"


def _ends_of(path: str) -> tuple[int, str]:
    """Return the size of a file and the hash of its ends."""
    found = hashlib.sha256()
    with open_source(path, ReadCounts()) as file:
        size = file.size()
        found.update(file.read(min(_END_BYTES, size)))
        file.seek(max(size - _END_BYTES, 0))
        found.update(file.read(min(_END_BYTES, size)))
    return size, found.hexdigest()


@dataclass(frozen=True, slots=True)
class TableSketch:
    """The profile of a table with its sketches, and the files that it is of.

    Attributes:
        profile: what the columns hold.
        files: marks of the files.
        set_aside: rows that broke a rule.
        schema: columns with their types.
    """

    profile: TableProfile
    files: tuple[FileMark, ...]
    set_aside: int
    schema: "pa.Schema"

    @classmethod
    def of(cls, table: "DataTable", folded: "Folded") -> "TableSketch":
        """Return the sketch of a table that was profiled.

        Args:
            table: table of files, with all of their rows.
            folded: results of folds, a `ProfileFold` among them.

        Returns:
            The sketch, with marks of the files as they are now.

        Raises:
            ConfigError: the table is a frame, or rows were chosen or changed: its files do not say
                what it holds.
        """
        if table.frame is not None or table.steps:
            raise ConfigError(
                "a sketch is kept of files, not of a frame or of chosen rows",
                hint="write the table first, and scan what was written",
            )
        return cls(
            profile=folded.results[ProfileFold.name],
            files=tuple(FileMark.of(item.path) for item in table.files),
            set_aside=folded.quarantine.total,
            schema=table.schema,
        )

    def stale(self) -> list[str]:
        """Return the files that are not what they were when the sketch was made."""
        return [item.path for item in self.files if item.state() == "stale"]

    def write(self, path: Path) -> None:
        """Write the sketch, whole or not at all.

        Args:
            path: the file, by custom with the end .sketch.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        about = {
            "kind": _KIND,
            "version": _VERSION,
            "files": [asdict(item) for item in self.files],
            "set_aside": self.set_aside,
        }
        fold = ProfileFold()
        write_pack(
            path,
            {
                "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
                "schema": np.frombuffer(self.schema.serialize(), np.uint8),
                **fold.sections(self.profile.sketches),
            },
        )

    @classmethod
    def open(cls, path: Path) -> "TableSketch":
        """Read a sketch.

        Args:
            path: the file.

        Returns:
            The sketch; whether it is stale is not looked at.

        Raises:
            DataError: it is no sketch, or damaged, or of another version.
        """
        import pyarrow as pa

        pack = Pack.open(path)
        about = _about(pack)
        schema = pa.ipc.read_schema(pa.py_buffer(pack["schema"].tobytes()))
        fold = ProfileFold()
        names = [name for name in pack.names if name not in ("about", "schema")]
        state = fold.of(schema, {name: pack[name] for name in names})
        files = tuple(FileMark(**item) for item in about["files"])
        return cls(fold.finish(state), files, about["set_aside"], schema)


def _about(pack: Pack) -> dict[str, Any]:
    """Return what a sketch says of itself."""
    try:
        found = json.loads(pack["about"].tobytes()) if "about" in pack.names else {}
    except ValueError:
        found = {}
    if found.get("kind") != _KIND or found.get("version") != _VERSION:
        raise DataError(
            f"{pack.where} is no sketch of a table, or one of another version",
            hint="write one with: steelyard data table profile FILES --sketch FILE",
        )
    return found
