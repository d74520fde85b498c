"""Edges in any order to a mapped graph: sorted runs, merged by ranges of hashes, within a memory.

Each run and each range is a file of its own that is put in its place whole, so that a build that
was killed goes on where it stood, and ends in the same bytes.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.graph.csr import CSRGraph
from steelyard.data.graph.edges import EdgeBatch, EdgeSource
from steelyard.data.graph.joining import add_joined
from steelyard.data.graph.node_ids import NodeIds
from steelyard.data.pack import Pack, write_pack, writing_pack
from steelyard.data.stages import StageFolder, hash_of
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive
from steelyard.jit import njit
from steelyard.units import pretty

__all__ = ["build_graph"]

LEAST_MEMORY_BYTES = 64 << 20
_EDGE_BYTES = 160
"""Memory that an edge takes while it is sorted: two hashes, their order, names, and copies."""


@njit()
def _sort_rows(rows: np.ndarray, columns: np.ndarray) -> int:
    """Sort the columns of each row, and move distinct edges to the front; return how many."""
    first, count = 0, 0
    while first < len(rows):
        last = first + 1
        while last < len(rows) and rows[last] == rows[first]:
            last += 1
        columns[first:last].sort()
        for place in range(first, last):
            if place == first or columns[place] != columns[place - 1]:
                # The place that is written lies before those that are still to be read, except
                # that the column before was overwritten only by itself.
                rows[count], columns[count] = rows[first], columns[place]
                count += 1
        first = last
    return count


@njit()
def _numbers_of(
    hashes: np.ndarray, starts: np.ndarray, shift: np.uint64, found: np.ndarray
) -> None:
    """Replace hashes in `found` by their places in ascending `hashes`."""
    for item in range(len(found)):
        place = starts[found[item] >> shift]
        while hashes[place] < found[item]:
            place += 1
        found[item] = place


def build_graph(
    edges: EdgeSource,
    path: Path,
    *,
    undirected: bool = False,
    memory_bytes: int = 1 << 30,
    done: Callable[[str, float], None] = lambda stage, share: None,
) -> CSRGraph:
    """Sort edges into a graph in a pack; run it again to continue after a kill.

    Args:
        edges: rows and columns of the graph; one that stands twice counts once.
        path: the pack to make or replace; unfinished parts lie in a folder beside it.
        undirected: rows and columns are nodes of one kind: an edge stands in the rows of both its
            ends, and loops are left out.
        memory_bytes: memory for sorting; the pages of mapped files come on top, which the system
            may take back.
        done: is told the stage and the share of it that is done.

    Returns:
        The graph, mapped.

    Raises:
        ConfigError: the memory is too small.
        DataError: there is no edge, or the source cannot be read.
        StoreError: another process builds the same graph.
        CapacityError: the disk is full.
    """
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise ConfigError(
            f"memory of {pretty(memory_bytes, 'byte')} for sorting edges",
            hint=f"give {pretty(LEAST_MEMORY_BYTES, 'byte')} or more",
        )
    parts = path.with_name(path.name + ".parts")
    with exclusive(parts, wait_s=0.0):
        build = _Build(edges, StageFolder(parts), undirected, memory_bytes, done)
        build.write(path)
    shutil.rmtree(parts)
    return CSRGraph.open(path)


class _Build:
    """The stages of one build."""

    def __init__(
        self,
        edges: EdgeSource,
        stages: StageFolder,
        undirected: bool,
        memory_bytes: int,
        done: Callable[[str, float], None],
    ) -> None:
        self.edges, self.stages, self.undirected, self.done = edges, stages, undirected, done
        self.most_edges = memory_bytes // _EDGE_BYTES
        self.key = hash_of(edges.key, undirected, memory_bytes)

    def path(self, name: str) -> Path:
        """Return the file of a stage."""
        return self.stages.directory / f"{name}.pack"

    def write(self, path: Path) -> None:
        """Do all stages."""
        counts = self._runs()
        edges = sum(count["edges"] for count in counts)
        if not edges:
            raise DataError(
                "there is no edge" + f" in {sum(c['skipped'] for c in counts):,} rows",
                hint="look at the files and the columns",
            )
        runs = [
            Pack.open(self.path(f"run-{part}-{piece}"))
            for part, count in enumerate(counts)
            for piece in range(count["pieces"])
        ]
        ranges = max(-(-edges * 2 // self.most_edges), 1)
        columns = [] if self.undirected else self._merge("columns", runs, ranges, _merged_columns)
        rows = self._merge("rows", runs, ranges, _merged_rows)
        targets = self._numbered(rows if self.undirected else columns, rows)
        self._put_together(path, rows, columns, targets, sum(c["skipped"] for c in counts))

    def _runs(self) -> list[dict[str, int]]:
        """Sort each part of the source by itself."""
        counts = []
        for part in range(self.edges.parts):
            self.done("sort edges", part / self.edges.parts)
            counts.append(
                self.stages.run(f"run-{part}", self.key, lambda part=part: self._run(part))
            )
        return counts

    def _run(self, part: int) -> tuple[dict[str, int], list[Path]]:
        """Sort one part, in pieces where it is larger than the memory."""
        found = {"edges": 0, "pieces": 0, "skipped": 0}
        paths: list[Path] = []
        for batches in _grouped(self.edges.read(part), self.most_edges // (1 + self.undirected)):
            found["skipped"] += sum(batch.skipped for batch in batches)
            sections = _sorted_sections(batches, self.undirected)
            path = self.path(f"run-{part}-{len(paths)}")
            write_pack(path, sections)
            paths.append(path)
            found["edges"] += len(sections["rows"])
        found["pieces"] = len(paths)
        return found, paths

    def _merge(self, name: str, runs: list[Pack], ranges: int, merged: Any) -> list[Pack]:
        """Merge what all runs have in each range of hashes."""
        packs = []
        for number in range(ranges):
            self.done(f"merge {name}", number / ranges)
            path = self.path(f"{name}-{number}")
            low, high = ((number + step) * (1 << 64) // ranges for step in (0, 1))

            def work(path: Path = path, low: int = low, high: int = high) -> Any:
                write_pack(path, merged(runs, low, high))
                return {}, [path]

            self.stages.run(path.stem, self.key, work)
            packs.append(Pack.open(path))
        return packs

    def _numbered(self, columns: list[Pack], rows: list[Pack]) -> list[Pack]:
        """Replace the hashes of columns by their numbers."""
        name = "hashes" if self.undirected else "distinct"
        hashes = np.concatenate([pack[name] for pack in columns])
        if len(hashes) > 1 << 32:
            raise DataError(f"{len(hashes):,} nodes, and 2^32 are the most")
        shift = 64 - max(len(hashes).bit_length() - 1, 1)
        # About two hashes share their first bits; a table of where those begin ends the search
        # after a step or two.
        firsts = np.arange(1 << (64 - shift), dtype=np.uint64) << np.uint64(shift)
        starts = np.searchsorted(hashes, firsts)
        packs = []
        for number, pack in enumerate(rows):
            self.done("number nodes", number / len(rows))
            path = self.path(f"targets-{number}")

            def work(path: Path = path, pack: Pack = pack) -> Any:
                found = pack["columns"].copy()
                _numbers_of(hashes, starts, np.uint64(shift), found)
                write_pack(path, {"targets": found.astype(np.uint32)})
                return {}, [path]

            self.stages.run(path.stem, self.key, work)
            packs.append(Pack.open(path))
        return packs

    def _put_together(
        self, path: Path, rows: list[Pack], columns: list[Pack], targets: list[Pack], skipped: int
    ) -> None:
        """Write the graph."""
        self.done("write", 0.0)
        with writing_pack(path) as writer:
            degrees = np.concatenate([pack["degrees"] for pack in rows])
            writer.add("offsets", np.concatenate(([0], np.cumsum(degrees))).astype(np.int64))
            del degrees
            scratch = self.stages.directory / "joined.bin"
            add_joined(writer, "targets", targets, "targets", scratch)
            add_joined(writer, "hashes", rows, "hashes", scratch)
            if columns:
                add_joined(writer, "column_hashes", columns, "distinct", scratch)
            names = NodeIds.joined([_ids_of(pack) for pack in rows if len(pack["hashes"])])
            for name, values in names.sections().items():
                writer.add(f"ids/{name}", values)
            writer.add("skipped", np.array([skipped]))
        self.done("write", 1.0)


def _grouped(batches: Iterator[EdgeBatch], most: int) -> Iterator[list[EdgeBatch]]:
    """Yield lists of batches of `most` edges or a batch; at least one list, maybe empty."""
    group: list[EdgeBatch] = []
    held = 0
    for batch in batches:
        if group and held + len(batch.rows) > most:
            yield group
            group, held = [], 0
        group.append(batch)
        held += len(batch.rows)
    yield group


def _sorted_sections(batches: list[EdgeBatch], undirected: bool) -> dict[str, NDArray[Any]]:
    """Return distinct edges in order, with the names of their rows and all their columns."""
    if not batches:
        empty = np.zeros(0, np.uint64)
        return {"rows": empty, "columns": empty, "named": empty, "distinct": empty}
    rows = np.concatenate([batch.rows for batch in batches])
    columns = np.concatenate([batch.columns for batch in batches])
    ids = NodeIds.joined([batch.row_ids for batch in batches])
    keep = np.arange(len(rows))
    if undirected:
        ids = NodeIds.joined([ids, *(batch.column_ids for batch in batches)])
        rows, columns = np.concatenate((rows, columns)), np.concatenate((columns, rows))
        keep = np.flatnonzero(rows != columns)
        rows, columns = rows[keep], columns[keep]
    order = np.argsort(rows)
    rows, columns = rows[order], columns[order]
    firsts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1]))[: len(rows)])
    named, names = rows[firsts], ids.take(keep[order[firsts]])
    distinct = named if undirected else np.unique(columns)
    count = _sort_rows(rows, columns)
    found = {"rows": rows[:count], "columns": columns[:count], "named": named, "distinct": distinct}
    return found | {f"ids/{name}": values for name, values in names.sections().items()}


def _inside(values: NDArray[np.uint64], low: int, high: int) -> slice:
    """Return where ascending values lie in [low, high)."""
    first = int(np.searchsorted(values, np.uint64(low)))
    last = len(values) if high > (1 << 64) - 1 else int(np.searchsorted(values, np.uint64(high)))
    return slice(first, last)


def _ids_of(pack: Pack) -> NodeIds:
    return NodeIds.of(
        {name.removeprefix("ids/"): pack[name] for name in pack.names if name.startswith("ids/")}
    )


def _merged_columns(runs: list[Pack], low: int, high: int) -> dict[str, NDArray[Any]]:
    """Return the distinct columns of a range of hashes."""
    parts = [run["distinct"] for run in runs]
    inside = [part[_inside(part, low, high)] for part in parts]
    return {"distinct": np.unique(np.concatenate(inside))}


def _merged_rows(runs: list[Pack], low: int, high: int) -> dict[str, NDArray[Any]]:
    """Return the distinct edges of the rows in a range of hashes, and those rows' names."""
    rows, columns, named, ids = [], [], [], []
    for run in runs:
        inside = _inside(run["rows"], low, high)
        rows.append(run["rows"][inside])
        columns.append(run["columns"][inside])
        within = _inside(run["named"], low, high)
        if within.stop > within.start:
            named.append(run["named"][within])
            ids.append(_ids_of(run).take(np.arange(within.start, within.stop)))
    ends, others = np.concatenate(rows), np.concatenate(columns)
    order = np.argsort(ends)
    ends, others = ends[order], others[order]
    count = _sort_rows(ends, others)
    found = {"columns": others[:count]}
    if not named:
        empty = np.zeros(0, np.uint64)
        return found | {"hashes": empty, "degrees": np.zeros(0, np.int64)}
    hashes, first = np.unique(np.concatenate(named), return_index=True)
    edges = np.append(np.searchsorted(ends[:count], hashes), count)
    names = NodeIds.joined(ids).take(first).sections()
    found |= {"hashes": hashes, "degrees": np.diff(edges)}
    return found | {f"ids/{name}": values for name, values in names.items()}
