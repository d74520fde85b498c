"""A task read from its cache: any example by its number, without the work before `steps`."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steelyard.data.tasks.cache import CacheInfo, CacheShard, read_info
from steelyard.data.tasks.records import Record
from steelyard.data.tasks.task import Feature, Task
from steelyard.errors import ConfigError, DataError
from steelyard.files import sha256_file

__all__ = ["CachedTask", "verify_cache"]

_DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}


class CachedTask:
    """A task whose prepared records lie in a folder, memory-mapped.

    Attributes:
        task: the task, whose `steps` are done at every reading.
        folder: folder of the cache.
        info: what it holds.
        name: name of the task.
    """

    def __init__(
        self,
        task: Task,
        folder: Path | str,
        *,
        check: bool = True,
        check_source: bool = True,
        skip: Collection[str] = (),
    ) -> None:
        """Map the files.

        Args:
            task: the task that the cache was made of.
            folder: folder that `write_cache` finished.
            check: whether every file is compared with its hash first.
            check_source: whether the source must be there and unchanged; False reads a cache where
                its source is not.
            skip: names of shards that are left out, such as damaged ones; the order of what is left
                is another.

        Raises:
            DataError: there is no finished cache, other preprocessing made it, or a file is missing
                or differs.
            ConfigError: a name in `skip` is not a shard, or nothing is left.
        """
        self.task, self.name, self.folder = task, task.name, Path(folder)
        self.info: CacheInfo = read_info(self.folder)
        stored = self.info.key if check_source else self.info.preparation_key
        wanted = task.key if check_source else task.preparation_key
        if stored != wanted:
            raise DataError(
                f"{self.folder} holds the cache of another preprocessing (task {self.info.task!r}, "
                f"key {stored[:12]}, now {wanted[:12]})",
                hint=f"delete the folder {self.folder} and cache the task again",
            )
        unknown = sorted(set(skip) - {shard.name for shard in self.info.shards})
        kept = [shard for shard in self.info.shards if shard.name not in skip and shard.examples]
        if unknown or not kept:
            what = f"there is no shard {', '.join(unknown)}" if unknown else "no shard is left"
            names = ", ".join(shard.name for shard in self.info.shards[:5])
            raise ConfigError(f"{self.folder}: {what}", hint=f"its shards are {names} and so on")
        if check:
            verify_cache(self.folder, kept)
        self._skip = tuple(skip)
        self._kinds = kept[0].kinds
        self._sections = [_sections(self.folder / shard.name) for shard in kept]
        self._lasts = np.cumsum([shard.examples for shard in kept])

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the names of the files to another process, which maps them itself."""
        return _open_again, (self.task, self.folder, self._skip)

    @property
    def features(self) -> Mapping[str, Feature]:
        """What examples end up with."""
        return self.task.features

    def __len__(self) -> int:
        """Count the examples."""
        return int(self._lasts[-1])

    def read(self, index: int, /, *, seed: int = 0, epoch: int = 0) -> Record:
        """Return example `index`, a pure function of its arguments; see `Task.read`."""
        return self.task.finish(self.prepared(index), index, seed=seed, epoch=epoch)

    def prepared(self, index: int) -> dict[str, Any]:
        """Return example `index` as it lies in the cache.

        Args:
            index: number of the example.

        Returns:
            Its fields; tokens are views of the file.

        Raises:
            IndexError: there is no such example.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._lasts, index, side="right"))
        row = index - (int(self._lasts[shard - 1]) if shard else 0)
        sections = self._sections[shard]
        record = {}
        for name, kind in self._kinds.items():
            ends = sections[f"ends/{name}"]
            start = int(ends[row - 1]) if row else 0
            record[name] = _value(kind, sections[f"items/{name}"][start : int(ends[row])])
        return record

    def sizes(self, name: str) -> np.ndarray:
        """Return the length of a field in every example, before steps and the end.

        Args:
            name: the field.

        Returns:
            int64 [N].
        """
        return np.concatenate(
            [np.diff(sections[f"ends/{name}"], prepend=0) for sections in self._sections]
        )


def _open_again(task: Task, folder: Path, skip: tuple[str, ...]) -> CachedTask:
    """Open a cache that was verified before."""
    return CachedTask(task, folder, check=False, check_source=False, skip=skip)


def verify_cache(folder: Path, shards: list[CacheShard]) -> None:
    """Compare every file of a cache with its hash.

    Args:
        folder: folder of the cache.
        shards: what should be there.

    Raises:
        DataError: a file is missing or differs; all such are named.
    """
    wrong = [
        shard.name
        for shard in shards
        if not (folder / shard.name).is_file() or sha256_file(folder / shard.name) != shard.sha256
    ]
    if wrong:
        raise DataError(
            f"{folder}: {', '.join(wrong)} missing or corrupted: the SHA-256 is not the one in the "
            "cache's record",
            hint="delete the folder and cache the task again, or read it with these names in skip",
        )


def _value(kind: str, items: np.ndarray) -> Any:
    """Return a field's value from its kind and items."""
    if kind == "text":
        return items.tobytes().decode()
    return items.tobytes() if kind == "bytes" else items


def _sections(path: Path) -> dict[str, np.ndarray]:
    """Map the arrays of a safetensors file."""
    try:
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        size = int.from_bytes(raw[:8].tobytes(), "little")
        header = msgspec.json.decode(raw[8 : 8 + size].tobytes())
        found = {}
        for name, entry in header.items():
            start, stop = (8 + size + at for at in entry["data_offsets"])
            found[name] = np.asarray(raw[start:stop]).view(_DTYPES[entry["dtype"]])
        return found
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: {error}", hint=f"delete the folder {path.parent}"
        ) from error
