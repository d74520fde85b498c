"""Which files below a folder are tables of a lake."""

import glob
import os
import re
from pathlib import Path

from steelyard.data.table.partitions import format_of
from steelyard.errors import DataError

__all__ = ["list_tables"]


def list_tables(source: str) -> tuple[Path, list[tuple[str, Path, list[str]]]]:
    """Return the tables of a lake.

    Args:
        source: a folder, or a pattern with *.

    Returns:
        The lake's folder, and name, path and files of each table, by name.

    Raises:
        DataError: there is no table.
    """
    # Fingerprints and plans hold paths: they must not depend on the folder one stands in.
    source = os.path.abspath(source)  # noqa: PTH100
    root = Path(source)
    if root.is_dir():
        listed = sorted(path for path in root.rglob("*"))
    else:
        # A pattern may be absolute, which `Path.glob` refuses.
        listed = sorted(map(Path, glob.glob(source, recursive=True)))  # noqa: PTH207
        root = Path(re.split(r"[*?\[]", source)[0])
        root = root if root.is_dir() else root.parent
    tables: dict[Path, list[str]] = {}
    for path in listed:
        inner = path.relative_to(root).parts
        # Programs that write tables leave their own files beside them, such as "_SUCCESS".
        if any(part.startswith((".", "_")) for part in inner):
            continue
        if path.is_file() and format_of(str(path)):
            tables.setdefault(_table_of(path, root), []).append(str(path))
    if not tables:
        raise DataError(
            f"no table below {source}", hint="give a folder of Parquet, Arrow, CSV or JSON lines"
        )
    names = _names(list(tables), root)
    return root, [(names[path], path, files) for path, files in tables.items()]


def _table_of(path: Path, root: Path) -> Path:
    """Return the outermost folder whose name ends like that of a table, else the file."""
    inner = [folder for folder in path.parents if folder.is_relative_to(root) and folder != root]
    return next((folder for folder in reversed(inner) if format_of(folder.name)), path)


def _names(paths: list[Path], root: Path) -> dict[Path, str]:
    """Return a name for each table: its path without the ending where that is one table's alone."""
    short = {path: str(path.relative_to(root).with_suffix("")) for path in paths}
    taken = list(short.values())
    return {
        path: name if taken.count(name) == 1 else str(path.relative_to(root))
        for path, name in short.items()
    }
