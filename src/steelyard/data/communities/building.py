"""Builds an index: a graph, a signature of each account's neighbours, and tables of their bands."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.graph.building import build_graph
from steelyard.data.graph.csr import CSRGraph
from steelyard.data.graph.edges import EdgeSource
from steelyard.data.graph.joining import add_joined
from steelyard.data.pack import Pack, write_pack, writing_pack
from steelyard.data.sketch.lsh import LshTable, band_keys
from steelyard.data.sketch.minhash import BITS, MinHasher, truncated
from steelyard.data.stages import StageFolder, hash_of
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive

__all__ = ["IndexSettings", "build_index"]

_BLOCK_EDGES = 4_000_000
_WIDE_BANDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSettings:
    """How accounts are compared.

    Attributes:
        num_hashes: places K of a signature; the standard error of a similarity J is
            sqrt(J (1 - J) / K).
        bands: bands B of the table; its rows are K // B. Accounts of similarity (1/B)^(B/K) share
            a band about as often as not.
        min_degree: accounts of fewer neighbours are not searched.
        bits: bits of a place that ranking compares: 8 make the error of small similarities larger
            by a few per cent, and queries four times as fast.
        scheme: "k-permutation", or "one-permutation" for networks whose accounts all have several
            times K neighbours.
        seed: seed of the hash functions.
    """

    num_hashes: int = 1000
    bands: int = 500
    min_degree: int = 1
    bits: int = 8
    scheme: Literal["k-permutation", "one-permutation"] = "k-permutation"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not 1 <= self.bands <= self.num_hashes:
            raise ConfigError(
                f"{self.bands} bands of {self.num_hashes} hashes",
                hint="give 1 band or more, and as many hashes or more",
            )
        if self.bits not in BITS:
            raise ConfigError(f"{self.bits} bits a place", hint="give 8, 16 or 32")
        if self.min_degree < 1:
            raise ConfigError(
                f"a least degree of {self.min_degree}",
                hint="give 1 or more: an account without neighbours is like no other",
            )

    @property
    def rows(self) -> int:
        """Places of a band."""
        return self.num_hashes // self.bands

    def index_bytes(self, accounts: int) -> int:
        """Return the most bytes that an index of so many accounts takes, its graph left out."""
        ranked = self.num_hashes * self.bits // 8 if self.bits < BITS[-1] else 0
        entries = self.bands + min(_WIDE_BANDS, self.num_hashes)
        # A key and a member in each band, unless it stands there alone; its row and degree.
        return accounts * (4 * self.num_hashes + ranked + 8 * entries + 16)


def build_index(
    edges: EdgeSource,
    folder: Path,
    settings: IndexSettings,
    *,
    undirected: bool = False,
    memory_bytes: int = 1 << 30,
    done: Callable[[str, float], None] = lambda stage, share: None,
) -> None:
    """Write an index; run it again to continue after a kill.

    Args:
        edges: accounts in rows, their neighbours (such as followers) in columns.
        folder: takes `graph.pack` and `index.pack`.
        settings: how accounts are compared.
        undirected: rows and columns are nodes of one kind, and edges have no direction.
        memory_bytes: memory for sorting; mapped files come on top.
        done: is told the stage and the share of it that is done.

    Raises:
        ConfigError: the memory is too small.
        DataError: there is no edge, or no account has enough neighbours.
        StoreError: another process builds an index in the folder.
        CapacityError: the disk is full.
    """
    with exclusive(folder, wait_s=0.0):
        stages = StageFolder(folder / "stages")
        key = hash_of(edges.key, undirected)
        path = folder / "graph.pack"

        def graph() -> tuple[dict[str, Any], list[Path]]:
            # An index of an older graph would name other accounts by its numbers.
            (folder / "index.pack").unlink(missing_ok=True)
            build_graph(edges, path, undirected=undirected, memory_bytes=memory_bytes, done=done)
            return {}, [path]

        stages.run("graph", key, graph)
        build = _IndexBuild(folder, CSRGraph.open(path), settings, memory_bytes, done)
        stages.run("index", hash_of(key, asdict(settings)), build.write)


class _IndexBuild:
    """The stages of an index behind its graph."""

    def __init__(
        self,
        folder: Path,
        graph: CSRGraph,
        settings: IndexSettings,
        memory_bytes: int,
        done: Callable[[str, float], None],
    ) -> None:
        self.folder, self.graph, self.settings, self.done = folder, graph, settings, done
        self.memory_bytes = memory_bytes
        self.parts = StageFolder(folder / "parts")
        self.rows = np.flatnonzero(graph.degrees >= settings.min_degree)
        if not len(self.rows):
            raise DataError(
                f"no account has {settings.min_degree} neighbours; the most are "
                f"{graph.degrees.max(initial=0)}",
                hint="give a smaller --min-degree",
            )
        assert graph.hashes is not None
        assert graph.column_hashes is not None
        # The hashes of all rows stand for the graph: those of another one differ somewhere.
        told = [len(graph), graph.num_edges, int(np.bitwise_xor.reduce(graph.hashes))]
        self.key = hash_of(told, asdict(settings), memory_bytes)

    def write(self) -> tuple[dict[str, Any], list[Path]]:
        """Do all stages."""
        signed = self._signatures()
        tables = self._tables(signed)
        path = self.folder / "index.pack"
        scratch = self.parts.directory / "joined.bin"
        self.done("write", 0.0)
        with writing_pack(path) as writer:
            settings = self.settings
            given = [settings.num_hashes, settings.bands, settings.bits, settings.min_degree]
            writer.add("settings", np.array(given, np.int64))
            writer.add("rows", self.rows)
            writer.add("degrees", self.graph.degrees[self.rows])
            add_joined(writer, "signatures", signed, "signatures", scratch)
            if settings.bits < BITS[-1]:
                add_joined(writer, "ranked", signed, "ranked", scratch)
            for name, packs in tables.items():
                for section in ("keys", "members"):
                    add_joined(writer, f"{name}/{section}", packs, section, scratch)
                sizes = np.concatenate([np.diff(pack["offsets"]) for pack in packs])
                writer.add(f"{name}/offsets", np.concatenate(([0], np.cumsum(sizes))))
                writer.add(f"{name}/shape", packs[0]["shape"])
        self._clear()
        return {}, [path]

    def _clear(self) -> None:
        import shutil

        shutil.rmtree(self.parts.directory)
        self.done("write", 1.0)

    def _signatures(self) -> list[Pack]:
        """Sign blocks of accounts."""
        settings, packs = self.settings, []
        hasher = MinHasher(settings.seed, settings.num_hashes, settings.scheme)
        blocks = list(self._blocks())
        for number, rows in enumerate(blocks):
            self.done("sign neighbours", number / len(blocks))
            path = self.parts.directory / f"signatures-{number}.pack"

            def work(path: Path = path, rows: NDArray[np.int64] = rows) -> Any:
                signed = self._signed(rows, hasher)
                found: dict[str, Any] = {"signatures": signed}
                if settings.bits < BITS[-1]:
                    found["ranked"] = truncated(signed, settings.bits)
                write_pack(path, found)
                return {}, [path]

            self.parts.run(path.stem, self.key, work)
            packs.append(Pack.open(path))
        return packs

    def _blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the accounts of blocks that have some millions of edges and not too many places."""
        ends = np.cumsum(self.graph.degrees[self.rows])
        most_rows = max(self.memory_bytes // (16 * self.settings.num_hashes), 1)
        first = 0
        while first < len(self.rows):
            behind = ends[first - 1] if first else 0
            last = int(np.searchsorted(ends, behind + _BLOCK_EDGES, side="right"))
            last = min(max(last, first + 1), first + most_rows)
            yield self.rows[first:last]
            first = last

    def _signed(self, rows: NDArray[np.int64], hasher: MinHasher) -> NDArray[np.uint32]:
        """Sign the neighbours of some accounts."""
        graph = self.graph
        assert graph.column_hashes is not None
        first, last = int(graph.offsets[rows[0]]), int(graph.offsets[rows[-1] + 1])
        least = hasher.empty(len(rows))
        lengths = graph.degrees[rows]
        # Accounts between these that have too few neighbours are left out.
        inside = np.repeat(graph.offsets[rows] - np.cumsum(lengths) + lengths, lengths)
        entries = graph.targets[first:last][inside + np.arange(len(inside)) - first]
        ends = np.concatenate(([0], np.cumsum(lengths)))
        hasher.update(least, graph.column_hashes[entries], ends)
        return hasher.finished(least)

    def _tables(self, signed: list[Pack]) -> dict[str, list[Pack]]:
        """Build the table of bands and a wider one of single places, in groups of bands."""
        settings = self.settings
        shapes = {
            "lsh": (settings.bands, settings.rows),
            "wide": (min(_WIDE_BANDS, settings.num_hashes), 1),
        }
        return {name: self._table(name, signed, *shape) for name, shape in shapes.items()}

    def _table(self, name: str, signed: list[Pack], bands: int, rows: int) -> list[Pack]:
        """Build one table."""
        step = max(min(self.memory_bytes // (64 * len(self.rows)), bands), 1)
        packs = []
        for first in range(0, bands, step):
            self.done(f"sort bands ({name})", first / bands)
            path = self.parts.directory / f"{name}-{first}.pack"
            last = min(first + step, bands)

            def work(path: Path = path, first: int = first, last: int = last) -> Any:
                keys = [
                    band_keys(pack["signatures"][:, first * rows : last * rows], last - first, rows)
                    for pack in signed
                ]
                table = LshTable.build(np.concatenate(keys, axis=1), rows)
                write_pack(path, table.sections())
                return {}, [path]

            self.parts.run(path.stem, self.key, work)
            packs.append(Pack.open(path))
        return packs
