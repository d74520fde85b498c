"""Graphs from edge lists against plain dictionaries; generators against what they promise."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.graph import ArrayEdges, CSRGraph, PlantedFans, build_graph, planted_graph
from steelyard.data.graph.building import LEAST_MEMORY_BYTES
from steelyard.data.graph.generators import rmat_edges
from steelyard.data.graph.leiden import leiden, modularity, numbered
from steelyard.data.graph.walktrap import walktrap
from steelyard.errors import CapacityError, ConfigError, DataError, StoreError
from steelyard.files import exclusive

DATA = Path(__file__).parents[4] / "shared" / "data"
EDGES = st.lists(st.tuples(st.integers(-5, 30), st.integers(-5, 30)), min_size=1, max_size=120)


def plain(edges, undirected):
    found = {}
    for row, column in edges:
        if not undirected:
            found.setdefault(row, set()).add(column)
        elif row != column:
            found.setdefault(row, set()).add(column)
            found.setdefault(column, set()).add(row)
    return found


@settings(max_examples=15)
@given(EDGES, st.booleans(), st.integers(1, 50))
def test_a_graph_has_the_edges_of_the_list_whatever_the_parts(
    tmp_path_factory, edges, undirected, cut
):
    path = tmp_path_factory.mktemp("graph") / "graph.pack"
    rows, columns = np.array(edges).T
    source = ArrayEdges(rows, columns, part_edges=cut)
    wanted = plain(edges, undirected)
    if not wanted:
        with pytest.raises(DataError, match="no edge"):
            build_graph(source, path, undirected=undirected)
        return
    graph = build_graph(source, path, undirected=undirected)
    assert {graph.ids[row] for row in range(len(graph))} == set(wanted)
    assert graph.num_columns == len(set().union(*wanted.values()))
    for row in range(len(graph)):
        own = graph.row(row)
        assert len(own) == len(wanted[graph.ids[row]])
        if undirected:
            assert {graph.ids[int(other)] for other in own} == wanted[graph.ids[row]]
    found = graph.find([*wanted, 77])
    assert [graph.ids[int(row)] for row in found[:-1]] == list(wanted)
    assert found[-1] == -1
    assert not path.with_name("graph.pack.parts").exists()


def test_little_memory_changes_no_byte(tmp_path):
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 40_000, (2, 600_000))
    source = ArrayEdges(rows, columns, part_edges=600_000)
    paths = [tmp_path / "small.pack", tmp_path / "large.pack"]
    for path, memory in zip(paths, (LEAST_MEMORY_BYTES, 1 << 30), strict=True):
        build_graph(source, path, undirected=True, memory_bytes=memory)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_text_and_missing_names(tmp_path):
    pytest.importorskip("pyarrow")
    from steelyard.data.graph import TableEdges
    from steelyard.data.table import DataTable

    lines = ["fan,star", "ann,Zoë", "bob,Zoë", "bob,", "ann,Max", "cid,Zoë", "one,two,three"]
    (tmp_path / "edges.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = DataTable.scan(tmp_path / "edges.csv")
    graph = build_graph(TableEdges(table, "star", "fan"), tmp_path / "graph.pack")
    zoe, nobody = graph.find(["Zoë", "Zoe"])
    assert (graph.ids[int(zoe)], nobody) == ("Zoë", -1)
    assert len(graph.row(int(zoe))) == 3
    assert graph.ids.near("Zoe") == ["Zoë"]
    from steelyard.data.pack import Pack

    assert Pack.open(tmp_path / "graph.pack")["skipped"].tolist() == [2]
    with pytest.raises(ConfigError, match="both ends"):
        TableEdges(table, "fan", "fan")


def test_names_of_numbers_and_text_do_not_mix(tmp_path):
    pytest.importorskip("pyarrow")
    from steelyard.data.graph import TableEdges
    from steelyard.data.table import DataTable

    (tmp_path / "edges.csv").write_text("fan,star,day\nann,1,1.5\nbob,2,2.5\n")
    table = DataTable.scan(tmp_path / "edges.csv")
    with pytest.raises(DataError, match="by numbers and others by text"):
        build_graph(TableEdges(table, "star", "fan"), tmp_path / "g.pack", undirected=True)
    with pytest.raises(DataError, match="'day' holds double"):
        build_graph(TableEdges(table, "star", "day"), tmp_path / "g.pack")


def test_a_build_goes_on_after_it_was_stopped(tmp_path):
    rng = np.random.default_rng(1)
    rows, columns = rng.integers(0, 500, (2, 5000))

    class Stopping(ArrayEdges):
        left, read_parts = 3, 0

        def read(self, part):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            self.read_parts += 1
            yield from super().read(part)

    source = Stopping(rows, columns, part_edges=1000)
    with pytest.raises(KeyboardInterrupt):
        build_graph(source, tmp_path / "a.pack")
    source.left = 99
    build_graph(source, tmp_path / "a.pack")
    assert source.read_parts == 5
    build_graph(ArrayEdges(rows, columns, part_edges=1000), tmp_path / "b.pack")
    assert (tmp_path / "a.pack").read_bytes() == (tmp_path / "b.pack").read_bytes()


def test_a_second_builder_and_little_memory_are_refused(tmp_path):
    source = ArrayEdges(np.array([1]), np.array([2]))
    with (
        exclusive(tmp_path / "g.pack.parts"),
        pytest.raises(StoreError, match="another process"),
    ):
        build_graph(source, tmp_path / "g.pack")
    with pytest.raises(ConfigError, match="memory"):
        build_graph(source, tmp_path / "g.pack", memory_bytes=1 << 20)
    with pytest.raises(ConfigError, match="1 float64 rows"):
        ArrayEdges(np.array([1.0]), np.array([2]))


def test_planted_fans_share_as_the_closed_form_says(tmp_path):
    source = PlantedFans(
        stars=300, communities=6, fans=60_000, follows=6, noise=2, part_fans=20_000
    )
    graph = build_graph(source, tmp_path / "graph.pack")
    rows = graph.find(list(range(300)))
    for one, other in ((0, 1), (3, 10), (0, 250), (120, 125)):
        mine, theirs = (set(graph.row(int(rows[star])).tolist()) for star in (one, other))
        found = len(mine & theirs) / len(mine | theirs)
        error = np.sqrt(found * (1 - found) / len(mine | theirs))
        assert abs(found - source.similarity(one, other)) < 5 * error + 1e-4
    with pytest.raises(ConfigError, match="5 stars in 6 communities"):
        PlantedFans(stars=5, communities=6, fans=10)


def test_generated_graphs_have_their_mixing_and_skew():
    one, other, labels = planted_graph(3000, mixing=0.3, seed=1)
    crossing = (labels[one] != labels[other]).mean()
    # Ends that are matched over all nodes meet in one community as often as chance says.
    shares = np.bincount(labels[np.concatenate((one, other))]) / (2 * len(one))
    assert abs(crossing - 0.3 * (1 - (shares**2).sum())) < 0.02
    degrees = CSRGraph.of_edges(one, other, count=3000).degrees
    assert 10 < degrees.mean() < 25
    assert degrees.max() > 5 * degrees.mean()
    rows, _ = rmat_edges(10, 20_000, seed=0)
    # The upper half of the first bit has .76 of the edges.
    assert abs((rows < 512).mean() - 0.76) < 0.02
    with pytest.raises(ConfigError, match="scale"):
        rmat_edges(40, 1)


def plain_modularity(edges, labels):
    total, found = len(edges), 0.0
    for label in set(labels):
        inside = sum(labels[one] == labels[other] == label for one, other in edges)
        ends = sum((labels[one] == label) + (labels[other] == label) for one, other in edges)
        found += inside / total - (ends / (2 * total)) ** 2
    return found


CLIQUES = [(i, j) for base in (0, 5, 10) for i in range(base, base + 5) for j in range(base, i)]
RING = [*CLIQUES, (0, 5), (5, 10), (10, 0)]


@pytest.mark.parametrize("find", [leiden, walktrap])
def test_a_ring_of_cliques_falls_into_its_cliques(find):
    graph = CSRGraph.of_edges(*np.array(RING).T)
    labels = find(graph)
    assert labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert modularity(graph, labels) == pytest.approx(plain_modularity(RING, labels.tolist()))


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), max_size=80), st.integers(0, 9))
def test_leiden_communities_hang_together_and_beat_single_nodes(edges, seed):
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = CSRGraph.of_edges(*(np.array(edges).reshape(-1, 2)).T, count=26)
    labels = leiden(graph, seed=seed)
    assert modularity(graph, labels) >= modularity(graph, np.arange(26)) - 1e-12
    assert np.array_equal(numbered(labels), labels)
    for label in range(labels.max() + 1):
        part = graph.induced(np.flatnonzero(labels == label))
        rows = np.repeat(np.arange(len(part)), part.degrees)
        shape = (len(part), len(part))
        ties = coo_array((np.ones(part.num_edges), (rows, part.targets)), shape)
        assert connected_components(ties, directed=False)[0] == 1


def shared_graph(name):
    folder = DATA / name
    if not folder.exists():
        pytest.skip(f"needs the shared data {name}")
    tables = []
    for file in ("edges", "labels"):
        with gzip.open(folder / f"{file}.csv.gz", "rt") as stream:
            tables.append(list(csv.reader(stream))[1:])
    edges = np.array(tables[0], np.int64)
    names = np.unique([label for _, label in tables[1]], return_inverse=True)[1]
    reference = json.loads((folder / "reference.json").read_text())[0]
    return CSRGraph.of_edges(*edges.T, count=len(names)), names, reference


def mutual_information(one, other):
    joint = np.zeros((one.max() + 1, other.max() + 1))
    np.add.at(joint, (one, other), 1 / len(one))
    left, right = joint.sum(1), joint.sum(0)
    some = joint > 0
    shared = (joint[some] * np.log((joint / np.outer(left, right))[some])).sum()
    return 2 * shared / -sum((part * np.log(part)).sum() for part in (left, right))


def test_leiden_and_walktrap_reach_the_published_quality_on_mail():
    graph, names, reference = shared_graph("email-eu-core")
    assert graph.num_edges == 2 * reference["m_undirected_simple"]
    found = [leiden(graph, seed=seed) for seed in range(3)]
    best = max(modularity(graph, labels) for labels in found)
    assert best > reference["leiden_modularity"] - 0.002
    nmi = np.mean([mutual_information(labels, names) for labels in found])
    assert nmi > reference["leiden_nmi"] - 0.02
    # igraph 1.0.0's community_walktrap(steps=4) reaches .3466 with 129 parts.
    labels = walktrap(graph)
    assert abs(modularity(graph, labels) - 0.3466) < 0.015
    assert abs(labels.max() + 1 - 129) < 15


@pytest.mark.slow
def test_leiden_reaches_the_published_modularity_on_pages():
    graph, _, reference = shared_graph("facebook-pages")
    assert modularity(graph, leiden(graph)) > reference["leiden_modularity"] - 0.002


def test_graphs_that_have_no_communities_are_refused_or_left():
    assert leiden(CSRGraph.of_edges([], [], count=3)).tolist() == [0, 1, 2]
    assert walktrap(CSRGraph.of_edges([], [], count=2)).tolist() == [0, 1]
    two_kinds = CSRGraph(np.array([0, 1]), np.array([3], np.uint32), num_columns=5)
    with pytest.raises(DataError, match="1 rows and 5 columns"):
        leiden(two_kinds)
    with pytest.raises(DataError, match="differ"):
        walktrap(two_kinds)
    with pytest.raises(ConfigError, match="resolution"):
        leiden(CSRGraph.of_edges([0], [1]), resolution=0)
    with pytest.raises(CapacityError, match="6,000 nodes"):
        walktrap(CSRGraph.of_edges([0], [1], count=6000))
    with pytest.raises(DataError, match="below 0"):
        leiden(CSRGraph.of_edges([0], [1], [-1.0]))
