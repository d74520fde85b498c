"""An index of a network: seeds in, their community out, in milliseconds."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.data.communities.building import IndexSettings, build_index
from steelyard.data.communities.quality import CommunityMetrics, measure
from steelyard.data.communities.ranking import (
    estimates,
    grow,
    rank_pagerank,
    seed_similarities,
    similarity_matrix,
)
from steelyard.data.communities.results import Community, Explanation, Method
from steelyard.data.graph.csr import CSRGraph
from steelyard.data.graph.edges import EdgeSource
from steelyard.data.graph.walktrap import walktrap
from steelyard.data.pack import Pack
from steelyard.data.sketch.lsh import LshTable
from steelyard.errors import ConfigError, DataError

__all__ = ["CommunityIndex"]

_BUCKET = 2048
_POOL = 1000
"""Candidates of the highest average that growing and walks look at; or 3 times the size."""
_TRIED, _FEW_SEEDS = 300, 4
_SECOND_HOP_SEEDS = 10


class CommunityIndex:
    """Signatures and tables of a network, mapped from files.

    Attributes:
        graph: accounts and their neighbours.
        rows: row in the graph of each account that is searched, ascending, [N].
        degrees: neighbours of each.
        signatures: [N, K], uint32.
        ranked: the same with fewer bits.
        settings: settings of the index; the scheme and seed are not kept.
        returns: see `rank_pagerank`.

    Source: Chamberlain et al. 2016, arXiv 1601.03958.
    """

    returns = 3

    def __init__(self, graph: CSRGraph, pack: Pack) -> None:
        """Take the files; see `open` and `build`."""
        self.graph = graph
        self.rows, self.degrees = pack["rows"], pack["degrees"]
        self.signatures = pack["signatures"]
        self.ranked = self.signatures if pack.find("ranked") is None else pack["ranked"]
        names = ("keys", "members", "offsets", "shape")
        self._lsh, self._wide = (
            LshTable.of({name: pack[f"{table}/{name}"] for name in names})
            for table in ("lsh", "wide")
        )
        # Tables are built in groups of bands, of which each knows the same number of accounts.
        hashes, bands, bits, least = (int(value) for value in pack["settings"])
        self.settings = IndexSettings(num_hashes=hashes, bands=bands, bits=bits, min_degree=least)

    @classmethod
    def build(
        cls,
        edges: EdgeSource,
        folder: Path,
        settings: IndexSettings | None = None,
        *,
        undirected: bool = False,
        memory_bytes: int = 1 << 30,
        done: Callable[[str, float], None] = lambda stage, share: None,
    ) -> "CommunityIndex":
        """Build an index, or go on with one that was killed; see `build_index`."""
        chosen = settings or IndexSettings()
        build_index(
            edges, folder, chosen, undirected=undirected, memory_bytes=memory_bytes, done=done
        )
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> "CommunityIndex":
        """Map an index.

        Args:
            folder: that of `build`.

        Returns:
            The index.

        Raises:
            DataError: there is none, it is not finished, or a file is damaged.
        """
        if not (folder / "index.pack").is_file():
            raise DataError(
                f"no finished index in {folder}",
                hint="steelyard data communities index EDGES --out FOLDER",
            )
        graph, pack = CSRGraph.open(folder / "graph.pack"), Pack.open(folder / "index.pack")
        if pack.find("signatures") is None:
            raise DataError(f"{folder / 'index.pack'} is no index", hint="build it again")
        return cls(graph, pack)

    def __len__(self) -> int:
        """Return the number of accounts that are searched."""
        return len(self.rows)

    def names(self, accounts: NDArray[np.int64]) -> tuple[int | str, ...]:
        """Return the names of accounts by their numbers in the index."""
        return tuple(self.graph.ids[int(row)] for row in self.rows[accounts])

    def find(self, names: Sequence[int | str]) -> NDArray[np.int64]:
        """Return the numbers of accounts by their names.

        Args:
            names: names of accounts; one that stands twice counts once.

        Returns:
            Distinct numbers in the order of the names.

        Raises:
            ConfigError: no name.
            DataError: an account is not there, or has too few neighbours.
        """
        if not names:
            raise ConfigError("no seed", hint="name one account or more")
        rows = self.graph.find(list(names))
        for name, row in zip(names, rows, strict=True):
            if row < 0:
                near = self.graph.ids.near(name)
                some = f"accounts are named such as {self.graph.ids[0]}"
                raise DataError(
                    f"no account {str(name)!r}",
                    hint=f"near names: {', '.join(near)}" if near else some,
                )
        places = np.minimum(np.searchsorted(self.rows, rows), len(self) - 1)
        for name, row, place in zip(names, rows, places, strict=True):
            if self.rows[place] != row:
                raise DataError(
                    f"account {str(name)!r} has {self.graph.degrees[row]} neighbours, and only "
                    f"those of {self.settings.min_degree} or more are in the index",
                    hint="choose another account, or build the index with a smaller --min-degree",
                )
        return np.array(list(dict.fromkeys(places.tolist())), np.int64)

    def candidates(
        self, seeds: NDArray[np.int64], wanted: int
    ) -> tuple[NDArray[np.int64], str, int]:
        """Find accounts that may be near seeds.

        Args:
            seeds: numbers of accounts.
            wanted: how many there should be; with fewer the search is widened.

        Returns:
            Numbers of accounts, ascending and without the seeds; how the search was widened; and
            buckets that were cut short.
        """
        hits, cut = self._hits(self._lsh, seeds)
        widened = []
        if self._found(hits, seeds) < wanted:
            more, more_cut = self._hits(self._wide, seeds)
            hits, cut = hits + more, cut + more_cut
            widened.append("single places")
        if 0 < self._found(hits, seeds) < wanted:
            near = np.argsort(-hits, kind="stable")
            near = near[hits[near] > 0]
            near = near[~np.isin(near, seeds)][:_SECOND_HOP_SEEDS]
            more, more_cut = self._hits(self._wide, near)
            hits, cut = hits + more, cut + more_cut
            widened.append("second hop")
        hits[seeds] = 0
        return np.flatnonzero(hits), " and ".join(widened), cut

    def _hits(self, table: LshTable, seeds: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
        """Add up the bands that accounts share with seeds."""
        hits, cut = np.zeros(len(self), np.int32), 0
        for seed in seeds:
            _, own_cut = table.hits(self.signatures[seed], _BUCKET, hits)
            cut += own_cut
        return hits, cut

    @staticmethod
    def _found(hits: NDArray[np.int32], seeds: NDArray[np.int64]) -> int:
        return int((hits > 0).sum() - (hits[seeds] > 0).sum())

    def query(
        self, seeds: Sequence[int | str], size: int = 100, method: Method = "auto"
    ) -> Community:
        """Find the community around seeds.

        Args:
            seeds: names of accounts.
            size: members to find, seeds not counted; there may be fewer.
            method: "average" ranks by the mean similarity to the seeds; "agglomerative" adds the
                best, then averages over it too; "pagerank" walks from the seeds; "auto" takes that
                of the first two which finds each second seed earlier from the others, or "average"
                where there are fewer than four.

        Returns:
            The community.

        Raises:
            ConfigError: no seed, no member wanted, or another method.
            DataError: an account is not there, or has too few neighbours.
        """
        if size < 1 or method not in ("auto", "average", "agglomerative", "pagerank"):
            raise ConfigError(
                f"{size} members by {method!r}",
                hint="give 1 member or more, by auto, average, agglomerative or pagerank",
            )
        began_s = time.perf_counter()
        members = self.find(seeds)
        found, widened, cut = self.candidates(members, size)
        alike = seed_similarities(self.ranked, found, members)
        chosen = self._chosen(members, found, alike) if method == "auto" else method
        order, scores = self._ranked(members, found, alike, size, chosen)
        ranked = found[order]
        return Community(
            seeds=self.names(members),
            members=self.names(ranked),
            scores=scores,
            similarity=alike[order].mean(axis=1),
            containment=self._containment(ranked, members, alike[order]),
            degrees=self.degrees[ranked],
            method=chosen,
            candidates=len(found),
            widened=widened,
            cut_buckets=cut,
            seconds=time.perf_counter() - began_s,
        )

    def _ranked(
        self,
        seeds: NDArray[np.int64],
        found: NDArray[np.int64],
        alike: NDArray[np.float64],
        size: int,
        method: str,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return places in `found` in the order of a method, and scores."""
        initial = alike.mean(axis=1)
        if method == "average":
            order = np.argsort(-initial, kind="stable")[:size]
            return order, initial[order]
        kept = _nearest(initial, max(_POOL, 3 * size))
        if method == "agglomerative":
            taken, scores = grow(self.ranked, found[kept], initial[kept], len(seeds), size)
            return kept[taken], scores
        both = np.concatenate((seeds, found[kept]))
        alike = similarity_matrix(self.ranked, both)
        rank = rank_pagerank(alike, np.arange(len(seeds)), returns=self.returns)[len(seeds) :]
        order = np.argsort(-rank, kind="stable")[:size]
        return kept[order], rank[order]

    def _chosen(
        self, seeds: NDArray[np.int64], found: NDArray[np.int64], alike: NDArray[np.float64]
    ) -> str:
        """Return the rule that finds every second seed earlier from the others."""
        if len(seeds) < _FEW_SEEDS:
            return "average"
        kept, hidden = seeds[::2], seeds[1::2]
        near = _nearest(alike[:, ::2].mean(axis=1), _TRIED)
        pool = np.union1d(found[near], hidden)
        initial = seed_similarities(self.ranked, pool, kept).mean(axis=1)
        average = np.argsort(-initial, kind="stable")
        taken, _ = grow(self.ranked, pool, initial, len(kept), len(pool) // 2)
        ranks = []
        for order in (average, taken):
            place = np.full(len(pool), len(pool))
            place[order] = np.arange(len(order))
            ranks.append(place[np.searchsorted(pool, hidden)].clip(max=len(pool) // 2).mean())
        return "agglomerative" if ranks[1] < ranks[0] else "average"

    def _containment(
        self, accounts: NDArray[np.int64], seeds: NDArray[np.int64], alike: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Estimate how much of the accounts' neighbours the nearest seed has."""
        own, theirs = self.degrees[accounts][:, None], self.degrees[seeds][None]
        # |A and B| = J (|A| + |B|) / (1 + J), and the degrees are known exactly.
        shared = alike * (own + theirs) / (1 + alike)
        return np.minimum((shared / own).max(axis=1), 1.0)

    def explain(self, account: int | str, nearest: int = 10) -> Explanation:
        """Say what an account is like, with exact figures beside those of the index.

        Args:
            account: its name.
            nearest: most similar accounts to list.

        Returns:
            The explanation.

        Raises:
            DataError: the account is not there, or has too few neighbours.
        """
        one = int(self.find([account])[0])
        found, _, _ = self.candidates(np.array([one]), nearest)
        alike = estimates(self.ranked, found, one)
        order = np.argsort(-alike, kind="stable")[:nearest]
        own = self.graph.row(int(self.rows[one]))
        rows = [self.graph.row(int(self.rows[other])) for other in found[order]]
        shared = np.array([len(np.intersect1d(own, row)) for row in rows], np.int64)
        joint = np.array([len(own) + len(row) for row in rows], np.int64) - shared
        values = alike[order]
        return Explanation(
            account=self.names(np.array([one]))[0],
            degree=int(self.degrees[one]),
            candidates=len(found),
            nearest=self.names(found[order]),
            similarity=values,
            error=np.sqrt(values * (1 - values) / self.settings.num_hashes),
            exact=shared / joint,
            shared=shared,
        )

    def metrics(self, names: Sequence[int | str], seed: int = 0) -> CommunityMetrics:
        """Measure how well a set of accounts holds together.

        Args:
            names: names of the members.
            seed: seed of the walks that look for its weakest cut.

        Returns:
            The measures on the graph of similarities.

        Raises:
            ConfigError: fewer than two members.
            DataError: an account is not there, or has too few neighbours.
        """
        members = self.find(names)
        if len(members) < 2:
            raise ConfigError("a community of one account", hint="name two accounts or more")
        outside, _, _ = self.candidates(members, 0)
        boundary = seed_similarities(self.ranked, outside, members).sum()
        inside = similarity_matrix(self.ranked, members)
        return measure(inside, float(boundary), np.random.default_rng(seed))

    def parts(self, names: Sequence[int | str]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Split a community into its parts, by walktrap on the graph of similarities.

        Args:
            names: names of the members.

        Returns:
            Part of each, from 0 on, the largest first, [n]; and their similarities, [n, n].

        Raises:
            ConfigError: no member.
            DataError: an account is not there, or has too few neighbours.
            CapacityError: more than 5,000 members.
        """
        alike = similarity_matrix(self.ranked, self.find(names))
        one, other = np.nonzero(np.triu(alike))
        graph = CSRGraph.of_edges(one, other, alike[one, other], len(alike))
        return walktrap(graph), alike


def _nearest(scores: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Return the places of the highest scores, ascending, `most` of them."""
    if len(scores) <= most:
        return np.arange(len(scores))
    return np.sort(np.argsort(-scores, kind="stable")[:most])
