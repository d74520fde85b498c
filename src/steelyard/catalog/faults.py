"""Everything that is wrong with a table of hardware, not only the first fault."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from steelyard.catalog.datacenter import DataCenterSpec, RackGroup
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.storage import StorageTier
from steelyard.catalog.validate import validate
from steelyard.config import convert
from steelyard.errors import CatalogError, SteelyardError

__all__ = ["faults"]

_GOOD: dict[type, dict[str, Any]] = {
    Accelerator: {
        "vendor": "x",
        "kind": "gpu",
        "year": 2020,
        "peak_flops_per_s": {"bf16": 1.0},
        "memory_bytes": 1.0,
        "memory_bytes_per_s": 1.0,
    },
    Cluster: {
        "site": "x",
        "year": 2020,
        "num_nodes": 1,
        "accelerator": "x",
        "accelerators_per_node": 1,
    },
    Site: {"country": "x", "pue": 1.0},
    StorageTier: {"vendor": "x"},
    DataCenterSpec: {
        "site": "x",
        "racks": (RackGroup(racks=1, servers=1, server_full_w=2.0, server_idle_w=1.0),),
    },
}
"""Values that break no rule, for required fields that cannot be read."""


def faults(
    values: Mapping[str, Any],
    kind: type,
    *,
    where: str,
    read: Callable[[str, Any], Any],
) -> list[SteelyardError]:
    """List the faults of a table.

    Args:
        values: fields as they stand in the file.
        kind: `Accelerator`, `Cluster`, `Site`, `DataCenterSpec` or `StorageTier`.
        where: file and record, for messages.
        read: turns a field's text into SI units; raises a SteelyardError.

    Returns:
        Unknown and missing fields, values of another type or unit, and rules that the values that
        could be read break.
    """
    found: list[SteelyardError] = []
    hints = get_type_hints(kind)
    good: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(hints)}"
            found.append(CatalogError(f"{where}: unknown field {name!r}", hint=hint))
            continue
        try:
            good[name] = convert(read(name, value), hints[name], where=f"{where} field {name!r}")
        except SteelyardError as error:
            found.append(CatalogError(str(error), hint=error.hint))
    required = {item.name for item in fields(kind) if item.default is MISSING}
    for name in sorted(required - set(values)):
        found.append(CatalogError(f"{where}: field {name!r} is missing", hint=f"give {name}"))
    try:
        # What could not be read has a value that no rule minds.
        validate(kind(**(_GOOD[kind] | good)), where=where)
    except SteelyardError as error:
        found += error.parts or (error,)
    return found
