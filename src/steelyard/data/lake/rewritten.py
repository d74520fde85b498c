"""Write tables of a lake in another way: read back first, then put in place of the old file."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from steelyard.config import convert
from steelyard.data.formats.options import option, read_as, write_as
from steelyard.data.lake.deletion import TableRewrite
from steelyard.data.lake.encodings import read_rows
from steelyard.data.lake.lakefolder import LakeFolder, is_as
from steelyard.data.lake.recipes import row_digest
from steelyard.data.lake.tables import look_at_table
from steelyard.data.stages import hash_of
from steelyard.errors import DataError
from steelyard.files import atomic_path, read_json, write_json

__all__ = ["RewrittenTable", "finish_rewrites", "rewrite_tables", "rewritten_tables"]

_ENDS = {"parquet": ".parquet", "steelpack": ".steelpack"}


class RewrittenTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was written in another way.

    Attributes:
        table: its name.
        path: where its new file is, below the lake.
        option: how it is written.
        old_path: where its old file was, below the lake.
        old_bytes: size of that.
        num_bytes: size of the new one.
        trash: where the old file lies, below the lake.
    """

    table: str
    path: str
    option: str
    old_path: str
    old_bytes: int
    num_bytes: int
    trash: str


class _FileExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A new file that waits to take the place of an old one, which has these fingerprints."""

    entry: RewrittenTable
    prints: tuple[tuple[str, str], ...]
    waiting: str


def rewritten_tables(root: Path) -> tuple[RewrittenTable, ...]:
    """Return the tables of a lake that were written in another way.

    Args:
        root: folder of the lake.

    Returns:
        Tables by name; none where nothing was written.

    Raises:
        DataError: the manifest cannot be read.
    """
    return tuple(_entries(LakeFolder(root)).values())


def _manifest(folder: LakeFolder) -> Path:
    return folder.folder / "rewritten.json"


def _journal(folder: LakeFolder) -> Path:
    return folder.folder / "exchange.json"


def _entries(folder: LakeFolder) -> dict[str, RewrittenTable]:
    path = _manifest(folder)
    if not path.is_file():
        return {}
    listed = convert(read_json(path), list[RewrittenTable], where=str(path))
    return {item.table: item for item in listed}


def finish_rewrites(folder: LakeFolder) -> None:
    """Complete the exchange that a killed process had decided.

    The old file goes only while it is as it was read; else the new one is thrown away.

    Args:
        folder: the lake, which no other process works on.
    """
    journal = _journal(folder)
    if not journal.is_file():
        return
    item = convert(read_json(journal), _FileExchange, where=str(journal))
    entry = item.entry
    old, new = folder.inside(entry.old_path), folder.inside(entry.path)
    waiting, trash = folder.inside(item.waiting), folder.inside(entry.trash)
    if not trash.exists() and waiting.exists() and is_as(item.prints):
        trash.parent.mkdir(parents=True, exist_ok=True)
        old.rename(trash)
    if trash.exists():
        if waiting.exists():
            waiting.rename(new)
        write_json(_manifest(folder), list((_entries(folder) | {entry.table: entry}).values()))
    waiting.unlink(missing_ok=True)
    journal.unlink()


def rewrite_tables(
    rewrites: Sequence[TableRewrite],
    listed: Mapping[str, tuple[Path, list[str]]],
    folder: LakeFolder,
    *,
    dry_run: bool,
    advance: Callable[[int, str], None] = lambda done, name: None,
) -> tuple[list[RewrittenTable], dict[str, str]]:
    """Write tables anew, one after another; each is read back before its old file goes.

    A table is read whole into memory. A process that is killed leaves the old file or the new one;
    between them a journal, with which the next call completes the exchange.

    Args:
        rewrites: tables and ways.
        listed: path and files of the tables that are there, by name.
        folder: the lake, which no other process works on.
        dry_run: write and read back, and keep nothing.
        advance: is told the number of tables that were looked at, and the table.

    Returns:
        The tables that passed, and why others stay as they are.

    Raises:
        CapacityError: the disk is full; the table that was written then stays as it is.
    """
    done, refused, known = [], {}, _entries(folder)
    if not dry_run:
        _clear_waiting(folder)
    for count, item in enumerate(rewrites, 1):
        advance(count, item.table)
        if item.table in known and known[item.table].option == item.option:
            continue
        try:
            done.append(_rewrite(item, listed, folder, dry_run=dry_run))
        except DataError as error:
            refused[item.table] = str(error)
    return done, refused


def _clear_waiting(folder: LakeFolder) -> None:
    """Remove files that a killed process was writing; nothing of a lake lies among them."""
    waiting = folder.folder / "waiting"
    for path in waiting.iterdir() if waiting.is_dir() else ():
        path.unlink()


def _rewrite(
    item: TableRewrite,
    listed: Mapping[str, tuple[Path, list[str]]],
    folder: LakeFolder,
    *,
    dry_run: bool,
) -> RewrittenTable:
    """Write one table anew."""
    if item.table not in listed:
        raise DataError(f"{item.table} is no longer there")
    looked = look_at_table(item.table, *listed[item.table])
    if looked.prints != item.prints:
        raise DataError("it has changed since the plan was made")
    chosen, old = option(item.option), Path(item.prints[0][0])
    new = old.with_suffix(_ENDS[chosen.format])
    if new != old and new.exists():
        raise DataError(f"{new} is there already", hint="rename or remove it")
    key = hash_of(item.table, looked.prints, item.option)[:16]
    waiting = folder.folder / "waiting" / f"{key}{new.suffix}"
    if dry_run:
        # Nothing is written into a lake that is only looked at.
        waiting = Path(tempfile.gettempdir()) / f"steelyard-{key}{new.suffix}"
    rows = read_rows(item.table, str(old))
    with atomic_path(waiting) as beside:
        size = write_as(rows, beside, chosen)
        again = read_as(beside, chosen)
    try:
        if not again.schema.equals(rows.schema) or row_digest(again) != row_digest(rows):
            raise DataError(f"as {item.option} other rows are read back")
        if size >= looked.num_bytes:
            raise DataError(f"as {item.option} it takes {size:,} bytes, not less")
        entry = RewrittenTable(
            table=item.table,
            path=str(new.relative_to(folder.root)),
            option=item.option,
            old_path=str(old.relative_to(folder.root)),
            old_bytes=looked.num_bytes,
            num_bytes=size,
            trash=f"{folder.folder.name}/trash/{key}/{old.relative_to(folder.root)}",
        )
        if not dry_run:
            place = str(waiting.relative_to(folder.root))
            exchange = _FileExchange(entry=entry, prints=looked.prints, waiting=place)
            write_json(_journal(folder), exchange)
            finish_rewrites(folder)
            if entry != _entries(folder).get(item.table):
                raise DataError("it changed while it was written")
    finally:
        waiting.unlink(missing_ok=True)
    return entry
