"""Files of indexes for tenants: one pack with the settings, names, tree, vectors and lists."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex

__all__ = ["read_tree_index", "write_tree_index"]


def write_tree_index(
    path: Path, index: ClusterTreeIndex, more: Mapping[str, Any] | None = None
) -> None:
    """Write an index to a file.

    Args:
        path: the file; an older one is replaced at the end.
        index: the index.
        more: plain values that are kept beside its settings.

    Raises:
        CapacityError: the disk is full; an older file stays.
    """
    about = {
        "kind": "cluster-tree",
        "settings": index.settings(),
        "tenants": index.tenants,
        "next_id": index.rows.next_id,
        **(more or {}),
    }
    sections = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8), **index.columns()}
    write_pack(path, sections)


def read_tree_index(path: Path) -> tuple[ClusterTreeIndex, dict[str, Any]]:
    """Read an index.

    Args:
        path: file of `write_tree_index`.

    Returns:
        The index, and everything that was kept beside it.

    Raises:
        DataError: the file is no index for tenants, or is damaged (the section is named).
    """
    pack = Pack.open(path)
    about = json.loads(pack["about"].tobytes()) if "about" in pack.names else {}
    if about.get("kind") != "cluster-tree":
        raise DataError(
            f"{path} is no index for tenants", hint="make one by `retrieve build --tenants`"
        )
    columns = {name: pack[name] for name in pack.names if name != "about"}
    index = ClusterTreeIndex.restored(
        about["settings"], about["tenants"], about["next_id"], columns
    )
    return index, about
