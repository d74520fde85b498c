"""Look facts up by name: records of the package, with those of the user's folder over them.

The package's records stand in `catalog/data/*.toml`, the user's in `<user folder>/catalog/*.toml`,
both as tables `[accelerators.NAME]`, `[clusters.NAME]`, `[sites.NAME]`, `[architectures.NAME]`,
`[datacenters.NAME]`, `[storage.NAME]`.
Numbers may be plain SI values or text with a unit ("80 GB", "989.4 TFLOP/s"). A user's table of a
known name changes only the fields it gives.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.calibration import Calibration
from steelyard.catalog.datacenter import DataCenterSpec
from steelyard.catalog.faults import faults
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.si import in_si
from steelyard.catalog.storage import StorageTier
from steelyard.catalog.stored import (
    THIS_MACHINE,
    accelerator_of,
    cluster_of,
    disk_of,
    load_calibration,
)
from steelyard.catalog.validate import validate
from steelyard.config import convert
from steelyard.errors import CatalogError, ConfigError, merged
from steelyard.files import user_dir

__all__ = [
    "KINDS",
    "WORLD_AVERAGE",
    "Kind",
    "accelerator",
    "architecture_by_name",
    "cluster",
    "datacenter",
    "names",
    "near_names",
    "record",
    "site",
    "site_of",
    "storage_tier",
    "user_folder",
]

Kind = Literal["architectures", "accelerators", "clusters", "sites", "datacenters", "storage"]
KINDS: dict[str, type] = {
    "architectures": Architecture,
    "accelerators": Accelerator,
    "clusters": Cluster,
    "sites": Site,
    "datacenters": DataCenterSpec,
    "storage": StorageTier,
}
"""Kinds of record by the name of their table."""

WORLD_AVERAGE = "world-average"
"""Site with the mean overhead, price and carbon intensity of the world."""

Record = Architecture | Accelerator | Cluster | Site | DataCenterSpec | StorageTier
R = TypeVar("R", Architecture, Accelerator, Cluster, Site, DataCenterSpec, StorageTier)
_DATA = Path(__file__).parent / "data"
_MEASURED: dict[str, Callable[[Calibration], Record]] = {
    "accelerators": accelerator_of,
    "clusters": cluster_of,
    "storage": disk_of,
}
"""Makers of the records that a calibration stands for, by kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """One TOML table and the file it stands in."""

    values: Mapping[str, Any]
    file: str


def user_folder() -> Path:
    """Return the folder whose `*.toml` files add and override records."""
    return user_dir() / "catalog"


def names(kind: Kind | str) -> list[str]:
    """List the names of one kind, in the order of the files, the user's new ones last.

    Args:
        kind: one of `KINDS`.

    Returns:
        Names; a calibrated machine adds "this-machine" to accelerators, clusters and storage.

    Raises:
        CatalogError: the kind is unknown, or a user file cannot be read.
    """
    found = list(_tables(_known_kind(kind)))
    if kind in _MEASURED and THIS_MACHINE not in found and load_calibration() is not None:
        found.append(THIS_MACHINE)
    return found


def record(kind: Kind | str, name: str) -> Record:
    """Look a record of any kind up.

    Args:
        kind: one of `KINDS`.
        name: name that `names` lists; case and punctuation other than dots do not matter.
            "this-machine" is the stored calibration: an accelerator, a cluster of one, a disk.
            "mine.toml" is the only record of that kind in a file of one's own, "mine.toml#NAME" one
            of several.

    Returns:
        The record.

    Raises:
        CatalogError: no record has this name (near names are listed), the record is broken (file
            and field are named), or this machine is not calibrated.
    """
    if ".toml" in name:
        return _from_file(_known_kind(kind), name)
    found = _match(_known_kind(kind), name)
    if found is None and kind in _MEASURED and _plain(name) == _plain(THIS_MACHINE):
        return _MEASURED[kind](_calibration())
    if found is None:
        raise CatalogError(f"no {kind.removesuffix('s')} named {name!r}", hint=_near(kind, name))
    made = _build(kind, found, user_folder(), _signature(user_folder()))
    return _with_part(made)


def _with_part(made: Record) -> Record:
    """Refuse a cluster of accelerators that nobody knows."""
    part = made.accelerator if isinstance(made, Cluster) else THIS_MACHINE
    is_known = part == THIS_MACHINE or ".toml#" in part or _match("accelerators", part)
    if not is_known:
        raise CatalogError(
            f"cluster {made.name}: accelerator {part!r} is not in the catalog",
            hint=_near("accelerators", part),
        )
    return made


def _typed(kind: Kind, name: str, record_type: type[R]) -> R:
    """Look a record up whose type the kind decides."""
    found = record(kind, name)
    assert isinstance(found, record_type)
    return found


def architecture_by_name(name: str) -> Architecture:
    """Return an architecture, looked up as by `record`."""
    return _typed("architectures", name, Architecture)


def accelerator(name: str) -> Accelerator:
    """Return an accelerator, looked up as by `record`."""
    return _typed("accelerators", name, Accelerator)


def cluster(name: str) -> Cluster:
    """Return a cluster, looked up as by `record`."""
    return _typed("clusters", name, Cluster)


def site(name: str) -> Site:
    """Return a site, looked up as by `record`."""
    return _typed("sites", name, Site)


def datacenter(name: str) -> DataCenterSpec:
    """Return a data center, looked up as by `record`."""
    return _typed("datacenters", name, DataCenterSpec)


def storage_tier(name: str) -> StorageTier:
    """Return a storage tier, looked up as by `record`."""
    return _typed("storage", name, StorageTier)


def site_of(where: Cluster) -> Site:
    """Return the site of a cluster; the world's average where the catalog does not know it.

    Args:
        where: cluster whose `site` may be free text.

    Returns:
        The site's record.

    Raises:
        CatalogError: the site's record is broken.
    """
    is_known = ".toml#" in where.site or _match("sites", where.site)
    return site(where.site if is_known else WORLD_AVERAGE)


def _calibration() -> Calibration:
    """Return the stored calibration, or say how to make one."""
    calibration = load_calibration()
    if calibration is None:
        raise CatalogError("this-machine is not calibrated yet", hint="run `steelyard calibrate`")
    return calibration


def _known_kind(kind: str) -> str:
    """Return the kind, and refuse one that does not exist."""
    if kind not in KINDS:
        raise CatalogError(f"unknown kind of record {kind!r}", hint=f"kinds: {', '.join(KINDS)}")
    return kind


def _plain(name: str) -> str:
    """Reduce a name to what matters when comparing."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _match(kind: str, name: str) -> str | None:
    """Return the name as the catalog spells it, None when no record has it."""
    tables = _tables(kind)
    if name in tables:
        return name
    return next((known for known in tables if _plain(known) == _plain(name)), None)


def near_names(kind: Kind | str, name: str) -> list[str]:
    """List up to four names of a kind that are spelled like `name` or contain it.

    Args:
        kind: kind of record.
        name: name that was asked for.

    Returns:
        Names, the nearest first; may be empty.
    """
    known = {_plain(item): item for item in _tables(_known_kind(kind))}
    wanted = _plain(name)
    close = difflib.get_close_matches(wanted, known, n=4, cutoff=0.5)
    # Two letters are part of nearly every name.
    inside = [item for item in known if len(wanted) > 2 and wanted in item]
    return [known[item] for item in dict.fromkeys([*close, *inside])][:4]


def _near(kind: str, name: str) -> str:
    """Return a hint at what may have been meant."""
    near = near_names(kind, name)
    if near:
        return f"near names: {', '.join(near)}"
    other = next((item for item in KINDS if item != kind and _match(item, name)), None)
    return f"that is one of the {other}" if other else f"`steelyard catalog list {kind}` shows all"


@lru_cache(maxsize=4096)
def _build(kind: str, name: str, folder: Path, signature: tuple[Any, ...]) -> Record:
    """Convert and check one table.

    The signature is part of the key: a record is kept until a user file changes.
    """
    return _made(kind, name, _merged(kind, folder, signature)[name])


def _made(kind: str, name: str, table: _Table) -> Record:
    """Convert and check one table; hardware that is wrong hears of all its faults at once."""
    where = f"{table.file}: [{kind}.{name}]"
    given = {"name": name} | dict(table.values)
    try:
        values = {field: in_si(field, value, where) for field, value in given.items()}
        made = convert(values, KINDS[kind], where=where)
        validate(made, where=where)
    except (ConfigError, CatalogError) as error:
        if kind != "architectures":
            found = faults(
                given, KINDS[kind], where=where, read=lambda field, item: in_si(field, item, where)
            )
            if len(found) > 1:
                raise merged(found) from error
        raise CatalogError(str(error), hint=error.hint) from error
    return made


def _from_file(kind: str, name: str) -> Record:
    """Return a record of a file of the user's, whose cluster may name parts that stand beside it.

    Args:
        kind: kind of record.
        name: path of the file, with "#NAME" behind it where it holds several.

    Returns:
        The record; a cluster's accelerator and site of the same file are named by their path.

    Raises:
        CatalogError: the file cannot be read, or holds no such record, or a broken one.
    """
    path, _, wanted = name.partition("#")
    content = _read(Path(path))
    tables = content.get(kind, {})
    if not wanted and len(tables) == 1:
        wanted = next(iter(tables))
    if wanted not in tables:
        one = kind.removesuffix("s")
        raise CatalogError(
            f"{path} holds {f'no {one} named {wanted!r}' if wanted else f'{len(tables)} {kind}'}",
            hint=f"name one as {path}#NAME: {', '.join(tables)}"
            if tables
            else f"add [{kind}.NAME]",
        )
    made = _made(kind, wanted, _over(None, tables[wanted]))
    if not isinstance(made, Cluster):
        return made
    parts = {"accelerator": "accelerators", "site": "sites"}
    beside = {
        field: f"{path}#{getattr(made, field)}"
        for field, part in parts.items()
        if getattr(made, field) in content.get(part, {})
    }
    return _with_part(dataclasses.replace(made, **beside))


def _tables(kind: str) -> dict[str, _Table]:
    """Return all tables of one kind."""
    return _merged(kind, user_folder(), _signature(user_folder()))


def _signature(folder: Path) -> tuple[Any, ...]:
    """Return what tells a change of the user's files: their names, times and sizes."""
    if not folder.is_dir():
        return ()
    stats = ((path.name, path.stat()) for path in sorted(folder.glob("*.toml")))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


@lru_cache(maxsize=256)
def _merged(kind: str, folder: Path, signature: tuple[Any, ...]) -> dict[str, _Table]:
    """Lay the user's tables over the package's."""
    merged = dict(_read(_DATA / f"{kind}.toml").get(kind, {}))
    for name, *_ in signature:
        for record, table in _read(folder / name).get(kind, {}).items():
            known = next((item for item in merged if _plain(item) == _plain(record)), record)
            merged[known] = _over(merged.get(known), table)
    return merged


def _over(old: _Table | None, new: _Table) -> _Table:
    """Lay one user table over an older one; its source says so."""
    if old is None:
        start = {"source": f"user file {new.file}", "confidence": "medium"}
    else:
        source = f"{old.values.get('source', '')}; {', '.join(new.values)} from {new.file}"
        start = {**old.values, "source": source}
        if "price_usd_per_hour" in new.values:
            # The month and the source of another price would pass for those of the user's.
            start |= {"price_date": "", "price_source": new.file}
    return _Table({**start, **new.values}, new.file)


def _read(path: Path) -> dict[str, dict[str, _Table]]:
    """Read one file into tables by kind and name."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogError(
            f"cannot read {path}: {error}",
            hint="correct the file or move it out of the catalog folder",
        ) from error
    found: dict[str, dict[str, _Table]] = {}
    for kind, records in content.items():
        if kind not in KINDS:
            raise CatalogError(
                f"{path}: unknown table [{kind}]",
                hint=f"tables: {', '.join(f'[{item}.NAME]' for item in KINDS)}",
            )
        if not isinstance(records, dict) or any(
            not isinstance(values, dict) for values in records.values()
        ):
            raise CatalogError(
                f"{path}: [{kind}] must hold tables [{kind}.NAME]",
                hint='quote names with dots: [architectures."my-1.5b"]',
            )
        found[kind] = {name: _Table(values, str(path)) for name, values in records.items()}
    return found
