"""The offline cache of a task: its prepared records in shards, written once and verified."""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from steelyard.data.tasks.records import Record
from steelyard.data.tasks.task import Task
from steelyard.data.token_packing import token_dtype
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive, read_json, sha256_file, write_bytes, write_json
from steelyard.parallel import stream_map

__all__ = ["CACHE", "CacheInfo", "CacheShard", "FieldStatistics", "read_info", "write_cache"]

CACHE = "cache.json"
"""Written last: a folder that has it is a finished cache."""

_SHARDS, _LEAST_RECORDS, _MOST_RECORDS = 64, 16, 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldStatistics:
    """Lengths of a field, in tokens, bytes of text, or items.

    Attributes:
        total: sum over all examples.
        shortest: length of the shortest.
        longest: length of the longest.
    """

    total: int
    shortest: int
    longest: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheShard:
    """A file of prepared records.

    Attributes:
        name: file name.
        key: hash of the preprocessing that made it and of the records it holds.
        records: records of the source that were read.
        examples: examples made of them.
        dropped: records that became none.
        sha256: hash of the file.
        kinds: kind of each field: "tokens", "text", "bytes" or "array of" a dtype.
        statistics: lengths by field.
    """

    name: str
    key: str
    records: int
    examples: int
    dropped: int
    sha256: str
    kinds: dict[str, str]
    statistics: dict[str, FieldStatistics]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheInfo:
    """What a finished cache holds.

    Attributes:
        key: hash of the task's source, preparation and vocabularies.
        preparation_key: the same without the source.
        task: name of the task.
        shards: files in order; examples are counted through them.
    """

    key: str
    preparation_key: str
    task: str
    shards: list[CacheShard]

    @property
    def examples(self) -> int:
        """Examples in all shards."""
        return sum(shard.examples for shard in self.shards)

    @property
    def statistics(self) -> dict[str, FieldStatistics]:
        """Lengths by field over all shards that hold an example."""
        parts = [shard.statistics for shard in self.shards if shard.examples]
        return {
            name: FieldStatistics(
                total=sum(part[name].total for part in parts),
                shortest=min(part[name].shortest for part in parts),
                longest=max(part[name].longest for part in parts),
            )
            for name in (parts[0] if parts else ())
        }


def read_info(folder: Path) -> CacheInfo:
    """Read what a cache holds.

    Args:
        folder: folder that `write_cache` finished.

    Returns:
        What it holds; files are not checked.

    Raises:
        DataError: there is no finished cache, its record is damaged, or a shard would lie
            elsewhere.
    """
    path = folder / CACHE
    if not path.is_file():
        state = "holds no finished cache" if folder.is_dir() else "does not exist"
        raise DataError(f"folder {folder} {state}", hint="make it with: steelyard data cache")
    hint = f"delete the folder {folder}"
    try:
        found = msgspec.convert(read_json(path), CacheInfo)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: {error}", hint=hint) from error
    if outside := [shard.name for shard in found.shards if Path(shard.name).name != shard.name]:
        raise DataError(f"{path}: shard {outside[0]!r} is no plain file name", hint=hint)
    return found


def write_cache(
    task: Task,
    folder: Path | str,
    *,
    workers: int | None = 1,
    shards: int | None = None,
    progress: Callable[[float], None] | None = None,
    cluster: str = "",
) -> CacheInfo:
    """Prepare every record of a task once and store what becomes of it.

    A killed call goes on with the first unfinished shard when it is made again; a finished cache
    returns at once. Content does not depend on `workers`.

    Args:
        task: what to prepare; with several workers its steps must be importable.
        folder: folder of the cache; made if it is missing.
        workers: processes; None for one per core.
        shards: files; None for about one per 16 records, at most 64 or as few as keep 65,536
            records in a file.
        progress: callback that is told the fraction done.
        cluster: Ray address; empty for processes of this machine.

    Returns:
        What the cache holds.

    Raises:
        DataError: a record is malformed, nothing is left, or the folder holds the cache of another
            preprocessing.
        ConfigError: `shards` or `workers` is below 1.
        CapacityError: the disk is full; finished shards stay.
    """
    folder = Path(folder)
    count = _num_shards(len(task), shards)
    key = task.key
    with exclusive(folder):
        if (folder / CACHE).is_file():
            found = read_info(folder)
            _refuse_other(folder, found, key, len(found.shards) if shards is None else count)
            return found
        task.check()
        bounds = [len(task) * number // count for number in range(count + 1)]
        work = partial(_shard, task, folder, key)
        made: list[CacheShard] = []
        units = enumerate(itertools.pairwise(bounds))
        for shard in stream_map(work, units, workers=workers, cluster=cluster):
            made.append(shard)
            if progress is not None:
                progress(len(made) / count)
        info = CacheInfo(key=key, preparation_key=task.preparation_key, task=task.name, shards=made)
        _refuse_uneven(task, info)
        write_json(folder / CACHE, info)
        for shard in made:
            (folder / shard.name).with_suffix(".json").unlink(missing_ok=True)
    return info


def _num_shards(records: int, shards: int | None) -> int:
    """Choose the number of files."""
    if shards is not None and not 1 <= shards <= 100_000:
        raise ConfigError(f"{shards} shards are not allowed", hint="give 1 to 100000")
    few = min(max(records // _LEAST_RECORDS, 1), _SHARDS)
    return min(shards or max(few, -(-records // _MOST_RECORDS)), max(records, 1))


def _refuse_other(folder: Path, found: CacheInfo, key: str, shards: int) -> None:
    """Refuse a finished cache that other preprocessing made, or that has other shards."""
    if found.key != key:
        raise DataError(
            f"{folder} holds the cache of another preprocessing (task {found.task!r}, key "
            f"{found.key[:12]}, now {key[:12]})",
            hint=f"delete the folder {folder}, or choose another",
        )
    if len(found.shards) != shards:
        raise DataError(
            f"{folder} holds a finished cache of {len(found.shards)} shards, {shards} were asked",
            hint=f"delete the folder {folder}, or leave out the number of shards",
        )


def _refuse_uneven(task: Task, info: CacheInfo) -> None:
    """Refuse a cache without examples, or with fields that only some shards have."""
    if not info.examples:
        raise DataError(
            f"no example of task {task.name!r} is left of {len(task)} records",
            hint="its prepare steps drop all of them",
        )
    kinds = [shard.kinds for shard in info.shards if shard.examples]
    if any(other != kinds[0] for other in kinds):
        raise DataError(
            f"records of task {task.name!r} have different fields", hint="give all the same fields"
        )


def _shard(task: Task, folder: Path, key: str, unit: tuple[int, tuple[int, int]]) -> CacheShard:
    """Make one shard, or find it finished."""
    number, (start, stop) = unit
    path = folder / f"shard-{number:05d}.safetensors"
    own = f"{key}/{start}-{stop}"
    try:
        found = msgspec.convert(read_json(path.with_suffix(".json")), CacheShard)
        if found.key == own and path.is_file() and sha256_file(path) == found.sha256:
            return found
    except (DataError, msgspec.ValidationError):
        pass  # not made yet, or half
    prepared = [task.prepared(index) for index in range(start, stop)]
    records = [record for several in prepared for record in several]
    arrays, kinds, statistics = _columns(task, records)
    write_bytes(path, safetensors.numpy.save(arrays))
    shard = CacheShard(
        name=path.name,
        key=own,
        records=stop - start,
        examples=len(records),
        dropped=sum(not several for several in prepared),
        sha256=sha256_file(path),
        kinds=kinds,
        statistics=statistics,
    )
    write_json(path.with_suffix(".json"), asdict(shard))
    return shard


def _columns(
    task: Task, records: list[Record]
) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, FieldStatistics]]:
    """Turn records into one array of values and one of ends per field."""
    arrays: dict[str, np.ndarray] = {}
    kinds: dict[str, str] = {}
    statistics: dict[str, FieldStatistics] = {}
    for name in sorted(records[0]) if records else ():
        if any(record.keys() != records[0].keys() for record in records):
            raise DataError(
                f"records of task {task.name!r} have different fields",
                hint="give all the same fields",
            )
        pairs = [_item(task, name, record[name]) for record in records]
        found = {kind for kind, _ in pairs}
        if len(found) > 1:
            raise DataError(
                f"field {name!r} of task {task.name!r} is {' and '.join(sorted(found))}"
            )
        sizes = np.array([len(item) for _, item in pairs], dtype=np.int64)
        arrays[f"items/{name}"] = np.concatenate([item for _, item in pairs])
        arrays[f"ends/{name}"] = np.cumsum(sizes)
        kinds[name] = found.pop()
        statistics[name] = FieldStatistics(
            total=int(sizes.sum()), shortest=int(sizes.min()), longest=int(sizes.max())
        )
    return arrays, kinds, statistics


def _item(task: Task, name: str, value: Any) -> tuple[str, np.ndarray]:
    """Return the kind of a field and its items."""
    if name in task.features and isinstance(value, np.ndarray) and value.ndim == 1:
        size = task.features[name].vocabulary.size
        if len(value) and not (value.min() >= 0 and value.max() < size):
            raise DataError(
                f"feature {name!r} of task {task.name!r} has id {value.max()} outside of its "
                f"vocabulary of {size}",
                hint="use the vocabulary that the ids are of",
            )
        return "tokens", value.astype(token_dtype(size))
    if isinstance(value, str):
        return "text", np.frombuffer(value.encode(), dtype=np.uint8)
    if isinstance(value, bytes):
        return "bytes", np.frombuffer(value, dtype=np.uint8)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iufb":
        return f"array of {value.dtype}", value
    raise DataError(
        f"field {name!r} of task {task.name!r} is {type(value).__name__}; a cache holds text, "
        "bytes and arrays of one dimension",
        hint="drop the field with a rename step, or turn it into an array",
    )
