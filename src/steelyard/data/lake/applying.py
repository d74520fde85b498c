"""Delete tables that can be rebuilt: proven first, moved to a trash folder, and brought back."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from steelyard.config import convert
from steelyard.data.lake.deletion import Deletion, DeletionPlan
from steelyard.data.lake.lakefolder import FOLDER, LakeFolder, is_as
from steelyard.data.lake.listing import list_tables
from steelyard.data.lake.recipes import RebuildRecipe, infer_recipe
from steelyard.data.lake.rewritten import RewrittenTable, finish_rewrites, rewrite_tables
from steelyard.data.lake.tables import LakeTable, look_at_table
from steelyard.data.stages import hash_of
from steelyard.data.table.partitions import format_of
from steelyard.errors import ConfigError, DataError
from steelyard.files import atomic_path, exclusive, read_json, write_json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Applied", "DeletedTable", "apply_plan", "deleted_tables", "rebuild_table"]


class DeletedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was deleted.

    Attributes:
        table: its name.
        path: where it was, below the lake.
        parent: table that it is rebuilt from.
        num_bytes: its size.
        rows: number of rows.
        recipe: file of the recipe, below the lake.
        told: the choice of rows in words.
        trash: where its file or folder lies, below the lake.
        compression: compression of its Parquet files, empty for others.
    """

    table: str
    path: str
    parent: str
    num_bytes: int
    rows: int
    recipe: str
    told: str
    trash: str
    compression: str


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What applying a plan did, or would do.

    Attributes:
        is_done: whether tables were moved.
        deleted: tables that were proven, and moved where it is done.
        refused: reason by table of those that stay all the same.
        recipe_bytes: size of the recipes, 0 where nothing was moved.
        rewritten: tables that were written in another way, and put in place where it is done.
    """

    is_done: bool
    deleted: tuple[DeletedTable, ...]
    refused: dict[str, str]
    recipe_bytes: int
    rewritten: tuple[RewrittenTable, ...] = ()


class _Move(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion that was decided: the entry, and what it was proven with."""

    entry: DeletedTable
    prints: tuple[tuple[str, str], ...]
    parent_prints: tuple[tuple[str, str], ...]


class _LakeState(LakeFolder):
    """The folder of a lake that remembers what was deleted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.manifest, self.journal = self.folder / "manifest.json", self.folder / "journal.json"

    def entries(self) -> dict[str, DeletedTable]:
        """Return the tables that were deleted, by name."""
        if not self.manifest.is_file():
            return {}
        listed = convert(read_json(self.manifest), list[DeletedTable], where=str(self.manifest))
        return {item.table: item for item in listed}

    def write(self, entries: Mapping[str, DeletedTable]) -> None:
        """Replace the manifest."""
        write_json(self.manifest, list(entries.values()))

    def finish(self) -> None:
        """Complete the deletions that a killed process had decided; those that changed are undone.

        A table goes only while its files and its parent's are those that the proof was made with.
        """
        self._move()
        finish_rewrites(self)

    def _move(self) -> None:
        """Move the tables of a journal."""
        if not self.journal.is_file():
            return
        moves = convert(read_json(self.journal), list[_Move], where=str(self.journal))
        entries = self.entries()
        for move in moves:
            source, target = self.inside(move.entry.path), self.inside(move.entry.trash)
            if source.exists() and is_as(move.prints) and is_as(move.parent_prints):
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            if target.exists():
                entries[move.entry.table] = move.entry
        self.write(entries)
        self.journal.unlink()


def deleted_tables(root: Path) -> tuple[DeletedTable, ...]:
    """Return the tables that were deleted from a lake.

    Args:
        root: folder of the lake.

    Returns:
        Tables; none where nothing was deleted.

    Raises:
        DataError: the manifest cannot be read.
    """
    return tuple(_LakeState(root).entries().values())


def apply_plan(
    plan: DeletionPlan,
    *,
    dry_run: bool = True,
    advance: Callable[[int, str], None] = lambda done, name: None,
) -> Applied:
    """Prove every deletion of a plan, and move the tables that passed to the trash folder.

    Then tables that are to be written in another way are; their old files go to the trash too.

    A proof finds each row of the table in its parent, and compares all values bit by bit. What is
    not proven stays. Tables are moved after all recipes are on the disk; a process that is killed
    leaves every table in its place, or a journal with which the next call completes the moves.

    Args:
        plan: the plan.
        dry_run: only prove; nothing is kept.
        advance: is told the number of deletions that were looked at, and the table.

    Returns:
        What was deleted, or would be, and what was refused.

    Raises:
        StoreError: another process works on the lake.
        CapacityError: the disk is full; no table was moved that cannot be made again.
        DataError: the lake cannot be listed.
    """
    state = _LakeState(Path(plan.root))
    if dry_run:
        proven, refused = _proven(plan, state, advance)
        rewritten, more = _rewritten(plan, state, advance, dry_run=True)
        return Applied(
            is_done=False,
            deleted=tuple(move.entry for move, _ in proven),
            refused=refused | more,
            recipe_bytes=0,
            rewritten=tuple(rewritten),
        )
    with exclusive(state.folder, wait_s=0.0):
        state.finish()
        proven, refused = _proven(plan, state, advance)
        size = 0
        for move, recipe in proven:
            path = state.inside(move.entry.recipe)
            recipe.save(path)
            size += path.stat().st_size
        if proven:
            write_json(state.journal, [move for move, _ in proven])
            state.finish()
        entries = state.entries()
        rewritten, more = _rewritten(plan, state, advance, dry_run=False)
    return Applied(
        is_done=True,
        # A table that changed after its proof has stayed.
        deleted=tuple(move.entry for move, _ in proven if move.entry.table in entries),
        refused=refused | more,
        recipe_bytes=size,
        rewritten=tuple(rewritten),
    )


def _rewritten(
    plan: DeletionPlan, state: _LakeState, advance: Callable[[int, str], None], *, dry_run: bool
) -> tuple[list[RewrittenTable], dict[str, str]]:
    """Write tables in another way; those that an earlier call wrote are left as they are."""
    if not plan.rewrites:
        return [], {}
    before = len(plan.deletions)
    listed = {name: (path, files) for name, path, files in list_tables(str(state.root))[1]}
    return rewrite_tables(
        plan.rewrites,
        listed,
        state,
        dry_run=dry_run,
        advance=lambda done, name: advance(before + done, name),
    )


def _proven(
    plan: DeletionPlan, state: _LakeState, advance: Callable[[int, str], None]
) -> tuple[list[tuple[_Move, RebuildRecipe]], dict[str, str]]:
    """Return the deletions that hold, with their recipes, and why others do not."""
    refused: dict[str, str] = {}
    found = []
    listed = {name: (path, files) for name, path, files in list_tables(str(state.root))[1]}
    entries = state.entries()
    gone = {item.table for item in plan.deletions}
    parents = {entry.parent: entry.table for entry in entries.values()}
    for count, item in enumerate(plan.deletions, 1):
        advance(count, item.table)
        if item.table in entries and item.table not in listed:
            continue
        try:
            if item.table in parents:
                raise DataError(f"{parents[item.table]}, deleted earlier, is rebuilt from it")
            if item.parent in gone:
                raise DataError(f"{item.parent}, which it would be rebuilt from, is to go too")
            found.append(_prove(item, listed, state))
        except DataError as error:
            refused[item.table] = str(error)
    return found, refused


def _prove(
    item: Deletion, listed: Mapping[str, tuple[Path, list[str]]], state: _LakeState
) -> tuple[_Move, RebuildRecipe]:
    """Return a deletion that holds, with its recipe; one that does not is refused."""
    for name in (item.table, item.parent):
        if name not in listed:
            raise DataError(f"{name} is no longer there")
    child, parent = (look_at_table(name, *listed[name]) for name in (item.table, item.parent))
    if child.prints != item.prints:
        raise DataError("it has changed since the plan was made")
    if not (child.is_columnar and parent.is_columnar):
        raise DataError("a file of text cannot be rebuilt to the bit")
    recipe = infer_recipe(child, parent)
    if recipe is None:
        raise DataError(f"not every row of it is in {item.parent} to the bit")
    inside = child.path.relative_to(state.root)
    key = hash_of(item.table, child.prints)[:16]
    entry = DeletedTable(
        table=item.table,
        path=str(inside),
        parent=item.parent,
        num_bytes=child.num_bytes,
        rows=child.rows,
        recipe=f"{FOLDER}/recipes/{key}.pack",
        told=recipe.told(),
        trash=f"{FOLDER}/trash/{key}/{inside}",
        compression=_compression(child),
    )
    return _Move(entry=entry, prints=child.prints, parent_prints=parent.prints), recipe


def _compression(table: LakeTable) -> str:
    """Return how the columns of a Parquet table are compressed."""
    from pyarrow import parquet

    path = table.prints[0][0]
    if format_of(path) != "parquet":
        return ""
    metadata = parquet.read_metadata(path)
    if not metadata.num_row_groups or not metadata.num_columns:
        return "zstd"
    name = metadata.row_group(0).column(0).compression.lower()
    return str({"uncompressed": "none", "lz4_raw": "lz4"}.get(name, name))


def rebuild_table(root: Path, name: str, *, out: Path | None = None) -> Path:
    """Make a deleted table anew from its parent, equal row by row.

    Args:
        root: folder of the lake.
        name: name of the table.
        out: file to write in place of the table's own; the lake stays as it is.

    Returns:
        The file that was written.

    Raises:
        ConfigError: no such table was deleted.
        DataError: the parent has changed so that other rows come out, or the table is there.
        StoreError: another process works on the lake.
    """
    state = _LakeState(root)
    if out is not None:
        entry = _entry(state, name)
        return _write(_replayed(state, entry), out, entry)
    with exclusive(state.folder, wait_s=0.0):
        state.finish()
        entry = _entry(state, name)
        path = state.inside(entry.path)
        if path.exists():
            raise DataError(f"{path} is there", hint="give --out to write it elsewhere")
        written = _write(_replayed(state, entry), path, entry)
        # The file comes first: after a kill in between, the table is there and still listed.
        state.write({key: item for key, item in state.entries().items() if key != name})
        state.inside(entry.recipe).unlink(missing_ok=True)
    return written


def _entry(state: _LakeState, name: str) -> DeletedTable:
    entries = state.entries()
    if name not in entries:
        raise ConfigError(
            f"no table {name!r} was deleted from {state.root}",
            hint=f"deleted were {', '.join(entries) or 'none'}",
        )
    return entries[name]


def _replayed(state: _LakeState, entry: DeletedTable) -> "pa.Table":
    """Return the rows of a deleted table."""
    listed = {name: (path, files) for name, path, files in list_tables(str(state.root))[1]}
    if entry.parent not in listed:
        raise DataError(
            f"{entry.parent}, which {entry.table} is rebuilt from, is not there",
            hint=f"take the table from {state.inside(entry.trash)}",
        )
    parent = look_at_table(entry.parent, *listed[entry.parent])
    return RebuildRecipe.load(state.inside(entry.recipe)).replay(parent)


def _write(rows: "pa.Table", path: Path, entry: DeletedTable) -> Path:
    """Write a table whole, or not at all."""
    import pyarrow as pa
    from pyarrow import parquet

    with atomic_path(path) as beside:
        if entry.compression:
            parquet.write_table(rows, beside, compression=entry.compression)
        else:
            with pa.OSFile(str(beside), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows)
    return path
