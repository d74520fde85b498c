"""Files of indexes for tenants: one pack with the settings, names, tree, vectors and lists."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError
from steelyard.retrieve.tenants.tree import ClusterTree
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex

__all__ = ["read_tree_index", "write_tree_index"]

_TREE = "tree/"


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
    sections = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8), **_columns(index)}
    write_pack(path, sections)


def _columns(index: ClusterTreeIndex) -> dict[str, NDArray[Any]]:
    """Return all that the index holds, as arrays by name; removed rows are left out."""
    kept = index.rows.all_rows()
    seen = [index.rows.numbers[index.rows_of(name)] for name in index.tenants]
    tree = index.tree.arrays() if index.tree else {}
    return {
        "vectors": index.rows.vectors[kept],
        "numbers": index.rows.numbers[kept],
        "leaves": index.rows.leaves[kept],
        "granted": np.concatenate([np.empty(0, np.int64), *seen]),
        "granted_ends": np.cumsum([len(numbers) for numbers in seen], dtype=np.int64),
        **{f"{_TREE}{name}": values for name, values in tree.items()},
    }


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
    index = ClusterTreeIndex(**about["settings"])
    tree = {name.removeprefix(_TREE): pack[name] for name in pack.names if name.startswith(_TREE)}
    if tree:
        index.take_tree(ClusterTree.restored(tree))
    index.rows.add(pack["vectors"], pack["numbers"], pack["leaves"])
    index.rows.next_id = about["next_id"]
    granted, ends = pack["granted"], pack["granted_ends"].tolist()
    for name, begin, end in zip(about["tenants"], [0, *ends], ends, strict=False):
        index.grant(granted[begin:end], name)
    return index, about
