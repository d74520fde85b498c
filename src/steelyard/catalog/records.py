"""Look facts up by name: records of the package, with those of the user's folder over them.

The package's records stand in `catalog/data/*.toml`, the user's in `<user folder>/catalog/*.toml`,
both as tables `[accelerators.NAME]`, `[clusters.NAME]`, `[sites.NAME]`, `[architectures.NAME]`.
Numbers may be plain SI values or text with a unit ("80 GB", "989.4 TFLOP/s"). A user's table of a
known name changes only the fields it gives.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.stored import THIS_MACHINE, accelerator_of, cluster_of, load_calibration
from steelyard.catalog.validate import validate
from steelyard.config import convert
from steelyard.errors import CatalogError, ConfigError
from steelyard.files import user_dir
from steelyard.units import parse

__all__ = [
    "KINDS",
    "Kind",
    "accelerator",
    "architecture_by_name",
    "cluster",
    "names",
    "near_names",
    "site",
    "user_folder",
]

Kind = Literal["architectures", "accelerators", "clusters", "sites"]
KINDS: dict[str, type] = {
    "architectures": Architecture,
    "accelerators": Accelerator,
    "clusters": Cluster,
    "sites": Site,
}
"""Kinds of record by the name of their table."""

Record = Architecture | Accelerator | Cluster | Site
R = TypeVar("R", Architecture, Accelerator, Cluster, Site)
_DATA = Path(__file__).parent / "data"
_UNITS = (
    ("_flops_per_s", "FLOP/s"),
    ("_bytes_per_s", "byte/s"),
    ("_bytes", "byte"),
    ("_w", "W"),
    ("_parameters", "parameter"),
)


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
        kind: "architectures", "accelerators", "clusters" or "sites".

    Returns:
        Names; a calibrated machine adds "this-machine" to accelerators and clusters.

    Raises:
        CatalogError: the kind is unknown, or a user file cannot be read.
    """
    found = list(_tables(_known_kind(kind)))
    if (
        kind in ("accelerators", "clusters")
        and THIS_MACHINE not in found
        and load_calibration() is not None
    ):
        found.append(THIS_MACHINE)
    return found


def architecture_by_name(name: str) -> Architecture:
    """Look an architecture up.

    Args:
        name: as `names` lists it; case and punctuation other than dots do not matter.

    Returns:
        The architecture's record.

    Raises:
        CatalogError: no record has this name (near names are listed), or the record is broken (file
            and field are named).
    """
    return _lookup("architectures", name, Architecture)


def accelerator(name: str) -> Accelerator:
    """Look an accelerator up; "this-machine" is the stored calibration.

    Args:
        name: as `names` lists it; case and punctuation other than dots do not matter.

    Returns:
        The accelerator's record.

    Raises:
        CatalogError: no record has this name (near names are listed), the record is broken, or this
            machine is not calibrated.
    """
    if _plain(name) == _plain(THIS_MACHINE) and THIS_MACHINE not in _tables("accelerators"):
        return accelerator_of(_calibration())
    return _lookup("accelerators", name, Accelerator)


def cluster(name: str) -> Cluster:
    """Look a cluster up; "this-machine" is a cluster of one.

    Args:
        name: as `names` lists it; case and punctuation other than dots do not matter.

    Returns:
        The cluster's record.

    Raises:
        CatalogError: no record has this name (near names are listed), or the record is broken (file
            and field are named).
    """
    if _plain(name) == _plain(THIS_MACHINE) and THIS_MACHINE not in _tables("clusters"):
        return cluster_of(_calibration())
    found = _lookup("clusters", name, Cluster)
    if _match("accelerators", found.accelerator) is None and found.accelerator != THIS_MACHINE:
        raise CatalogError(
            f"cluster {found.name}: accelerator {found.accelerator!r} is not in the catalog",
            hint=_near("accelerators", found.accelerator),
        )
    return found


def site(name: str) -> Site:
    """Look a site up.

    Args:
        name: as `names` lists it; case and punctuation other than dots do not matter.

    Returns:
        The site's record.

    Raises:
        CatalogError: no record has this name (near names are listed), or the record is broken (file
            and field are named).
    """
    return _lookup("sites", name, Site)


def _calibration() -> Any:
    """Return the stored calibration or say how to make one."""
    calibration = load_calibration()
    if calibration is None:
        raise CatalogError("this-machine is not calibrated yet", hint="run `steelyard calibrate`")
    return calibration


def _known_kind(kind: str) -> str:
    """Refuse kinds that do not exist."""
    if kind not in KINDS:
        raise CatalogError(f"unknown kind of record {kind!r}", hint=f"kinds: {', '.join(KINDS)}")
    return kind


def _plain(name: str) -> str:
    """Reduce a name to what matters when comparing."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _match(kind: str, name: str) -> str | None:
    """Find the name as the catalog spells it."""
    tables = _tables(kind)
    if name in tables:
        return name
    return next((known for known in tables if _plain(known) == _plain(name)), None)


def near_names(kind: Kind | str, name: str) -> list[str]:
    """List up to four names of a kind that are spelled like `name` or contain it.

    Args:
        kind: kind of record.
        name: what was asked for.

    Returns:
        Names, the nearest first; may be empty.
    """
    known = {_plain(item): item for item in _tables(_known_kind(kind))}
    close = difflib.get_close_matches(_plain(name), known, n=4, cutoff=0.5)
    close += [
        item
        for item in known
        if len(_plain(name)) > 2 and _plain(name) in item and item not in close
    ]
    return [known[item] for item in close[:4]]


def _near(kind: str, name: str) -> str:
    """Say what may have been meant."""
    near = near_names(kind, name)
    if near:
        return f"near names: {', '.join(near)}"
    other = next((item for item in KINDS if item != kind and _match(item, name)), None)
    return f"that is one of the {other}" if other else f"`steelyard catalog list {kind}` shows all"


def _lookup(kind: str, name: str, record_type: type[R]) -> R:
    """Find and build one record."""
    found = _match(kind, name)
    if found is None:
        raise CatalogError(f"no {kind.removesuffix('s')} named {name!r}", hint=_near(kind, name))
    record = _build(kind, found, user_folder(), _signature(user_folder()))
    assert isinstance(record, record_type)
    return record


@lru_cache(maxsize=4096)
def _build(kind: str, name: str, folder: Path, signature: tuple[Any, ...]) -> Record:
    """Convert and check one table; kept until a user file changes."""
    table = _merged(kind, folder, signature)[name]
    where = f"{table.file}: [{kind}.{name}]"
    values = {"name": name} | {
        field: _in_si(field, value, where) for field, value in table.values.items()
    }
    try:
        record = convert(values, KINDS[kind], where=where)
    except ConfigError as error:
        raise CatalogError(str(error), hint=error.hint) from error
    validate(record, where=where)
    return record


def _in_si(field: str, value: Any, where: str) -> Any:
    """Read text with a unit where the field's name carries one."""
    unit = next((unit for suffix, unit in _UNITS if field.endswith(suffix)), None)
    if unit is None:
        return value
    if isinstance(value, dict):
        return {key: _in_si(field, item, f"{where} {key}") for key, item in value.items()}
    if isinstance(value, str):
        try:
            return parse(value, unit, where=f"{where} field '{field}'")
        except ConfigError as error:
            raise CatalogError(str(error), hint=error.hint) from error
    return value


def _tables(kind: str) -> dict[str, _Table]:
    """Return all tables of one kind."""
    return _merged(kind, user_folder(), _signature(user_folder()))


def _signature(folder: Path) -> tuple[Any, ...]:
    """Describe the user's files so that a change is noticed."""
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
    """Lay one user table over an older one, saying so in its source."""
    if old is None:
        return _Table(
            {"source": f"user file {new.file}", "confidence": "medium"} | dict(new.values), new.file
        )
    values = dict(old.values) | dict(new.values)
    if "source" not in new.values:
        values["source"] = (
            f"{old.values.get('source', '')}; {', '.join(new.values)} from {new.file}"
        )
    return _Table(values, new.file)


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
        if not isinstance(records, dict) or not all(
            isinstance(values, dict) for values in records.values()
        ):
            raise CatalogError(
                f"{path}: [{kind}] must hold tables [{kind}.NAME]",
                hint='quote names with dots: [architectures."my-1.5b"]',
            )
        found[kind] = {name: _Table(values, str(path)) for name, values in records.items()}
    return found
