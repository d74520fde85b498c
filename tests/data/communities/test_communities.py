"""Communities from an index against exact similarities, plain rules, and planted truth."""

import csv
import gzip
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard.cli.data import app
from steelyard.data.communities import CommunityIndex, IndexSettings, recall_areas
from steelyard.data.communities.layout import placed
from steelyard.data.communities.quality import measure
from steelyard.data.communities.ranking import (
    grow,
    rank_pagerank,
    seed_similarities,
    similarity_matrix,
)
from steelyard.data.communities.results import Method
from steelyard.data.graph import ArrayEdges, PlantedFans
from steelyard.errors import ConfigError, DataError

DATA = Path(__file__).parents[4] / "shared" / "data" / "email-eu-core"
FANS = PlantedFans(stars=400, communities=8, fans=8000, follows=6, noise=1, part_fans=2000, seed=3)
SMALL = IndexSettings(num_hashes=200, bands=100, min_degree=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    CommunityIndex.build(FANS, folder, SMALL)
    return folder


@pytest.fixture(scope="module")
def index(folder):
    return CommunityIndex.open(folder)


def neighbours(index, account):
    return set(index.graph.row(int(index.rows[account])).tolist())


def test_signatures_estimate_the_similarity_of_followers(index):
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, len(index), (500, 2))
    outside = 0
    for one, other in pairs:
        mine, theirs = neighbours(index, one), neighbours(index, other)
        exact = len(mine & theirs) / len(mine | theirs)
        agreed = (index.signatures[one] == index.signatures[other]).mean()
        outside += abs(agreed - exact) > 3 * np.sqrt(exact * (1 - exact) / 200) + 1e-9
    assert outside <= 0.02 * len(pairs)


def test_accounts_of_few_followers_are_left_out(index):
    degrees = index.graph.degrees
    assert (degrees[index.rows] >= 5).all()
    assert len(index) == (degrees >= 5).sum()
    assert index.degrees.tolist() == degrees[index.rows].tolist()


def plain_growth(alike, seeds, candidates, size):
    """The slow obvious version: recompute each mean over all members."""
    members, left, order = list(seeds), sorted(candidates), []
    for _ in range(size):
        best = max(left, key=lambda one: (np.mean([alike[one, m] for m in members]), -one))
        members.append(best)
        order.append(best)
        left.remove(best)
    return order


def test_growing_and_ranking_are_those_of_the_plain_versions(index):
    rows = np.arange(60)
    alike = similarity_matrix(index.signatures, rows)
    # The plain means are rounded otherwise: similarities of 1/200 steps differ by far more.
    seeds, candidates = np.array([3, 10]), np.setdiff1d(rows, [3, 10])
    average = seed_similarities(index.signatures, candidates, seeds).mean(1)
    taken, scores = grow(index.signatures, candidates, average, 2, 15)
    found = candidates[taken].tolist()
    assert np.allclose(scores[0], alike[found[0], seeds].mean())
    plain = plain_growth(np.round(alike, 9), seeds, candidates.tolist(), 15)
    assert len(set(found) & set(plain)) >= 14
    assert np.allclose(average, alike[np.ix_(candidates, seeds)].mean(1))


def test_pagerank_keeps_its_mass_and_prefers_neighbours_of_the_seeds():
    chain = np.diag(np.ones(5), 1) + np.diag(np.ones(5), -1)
    rank = rank_pagerank(chain, np.array([0]))
    assert rank.sum() == pytest.approx(1)
    assert rank[1] > rank[3] > rank[5]
    lonely = rank_pagerank(np.zeros((3, 3)), np.array([1]))
    assert lonely.tolist() == [0, 1, 0]


@pytest.mark.parametrize("method", ["average", "agglomerative", "pagerank", "auto"])
def test_planted_communities_are_found(index, method):
    own = np.flatnonzero(FANS.labels == 2)
    found = index.query(own[:5].tolist(), 25, method)
    assert len(found.members) == 25
    assert not set(found.members) & set(own[:5].tolist())
    least = 0.7 if method == "pagerank" else 0.9
    assert np.mean([FANS.labels[star] == 2 for star in found.members]) > least
    assert (found.containment <= 1).all()
    assert (found.containment >= found.similarity - 1e-9).all()
    again = index.query(own[:5].tolist(), 25, method)
    assert again.members == found.members


def test_fewer_bits_rank_nearly_alike(tmp_path, index):
    wide = CommunityIndex.build(
        FANS, tmp_path, IndexSettings(num_hashes=200, bands=100, min_degree=5, bits=32)
    )
    assert np.array_equal(wide.signatures, index.signatures)
    assert index.ranked.dtype == np.uint8
    seeds = np.flatnonzero(FANS.labels == 1)[:5].tolist()
    one, other = (set(item.query(seeds, 30, "average").members) for item in (wide, index))
    assert len(one & other) > 20


def test_a_search_with_few_candidates_is_widened(tmp_path):
    settings = IndexSettings(num_hashes=60, bands=6, min_degree=5)
    index = CommunityIndex.build(FANS, tmp_path, settings)
    seed = int(np.flatnonzero(FANS.labels == 7)[3])
    few, many = index.query([seed], 1), index.query([seed], 390)
    assert few.widened == "single places"
    assert many.widened == "single places and second hop"
    assert 1 < few.candidates < many.candidates
    assert index.query([seed], 1, "average").members == few.members


def test_a_small_account_beside_a_giant_is_contained(tmp_path):
    rng = np.random.default_rng(0)
    giant = rng.permutation(20_000)[:8000]
    rows = np.concatenate((np.full(8000, 1), np.full(200, 2), np.full(200, 3)))
    columns = np.concatenate((giant, giant[:200], 20_000 + np.arange(200)))
    index = CommunityIndex.build(ArrayEdges(rows, columns), tmp_path, IndexSettings(bits=32))
    found = index.query([1], 5)
    assert found.members == (2,)
    assert found.similarity[0] == pytest.approx(200 / 8000, abs=0.015)
    assert found.containment[0] > 0.5


def test_explanations_have_exact_figures(index):
    star = int(np.flatnonzero(FANS.labels == 1)[0])
    told = index.explain(star, 5)
    one = index.find([star])[0]
    mine = neighbours(index, one)
    assert told.degree == len(mine)
    for row, name in enumerate(told.nearest):
        theirs = neighbours(index, index.find([name])[0])
        assert told.shared[row] == len(mine & theirs)
        assert told.exact[row] == pytest.approx(len(mine & theirs) / len(mine | theirs))
    assert np.abs(told.similarity - told.exact).max() < 0.15


def test_measures_of_known_graphs():
    rng = np.random.default_rng(0)
    clique = np.asarray(np.ones((4, 4)) - np.eye(4), np.float64)
    whole = measure(clique, 6.0, rng)
    assert (whole.conductance, whole.density, whole.separability) == (6 / 18, 1.0, 1.0)
    assert whole.clustering == pytest.approx(1.0)
    # The cut of two nodes of a clique of four: 4 ties across, 6 ends on either side.
    assert whole.cohesiveness == pytest.approx(4 / 6)
    halves = np.asarray(np.kron(np.eye(2), clique), np.float64)
    apart = measure(halves, 0.0, rng)
    assert (apart.conductance, apart.cohesiveness) == (0.0, 0.0)
    assert apart.separability == float("inf")
    none = measure(np.zeros((3, 3)), 0.0, rng)
    assert np.isnan(none.conductance)
    assert none.clustering == 0
    spots = placed(halves)
    assert spots.min() >= 0
    assert spots.max() <= 1
    centers = spots[:4].mean(0), spots[4:].mean(0)
    assert np.linalg.norm(centers[0] - centers[1]) > 0.3


def test_metrics_and_parts_of_a_community(index):
    own = np.flatnonzero(FANS.labels == 2)[:20].tolist()
    other = np.flatnonzero(FANS.labels == 5)[:20].tolist()
    good, mixed = index.metrics(own), index.metrics([*own[:10], *other[:10]])
    assert good.conductance < mixed.conductance
    assert good.cohesiveness > mixed.cohesiveness
    labels, alike = index.parts([*own, *other])
    assert len(set(labels[:20])) == len(set(labels[20:])) == 1
    assert labels[0] != labels[20]
    assert alike.shape == (40, 40)
    with pytest.raises(ConfigError, match="one account"):
        index.metrics(own[:1])


def test_what_cannot_be_asked_is_refused(index, tmp_path):
    with pytest.raises(DataError, match="no account '4000'") as caught:
        index.query([4000])
    assert "399" in caught.value.hint
    lonely = (
        index.graph.ids[int(np.flatnonzero(index.graph.degrees < 5)[0])]
        if (index.graph.degrees < 5).any()
        else None
    )
    if lonely is not None:
        with pytest.raises(DataError, match="only those of 5"):
            index.query([lonely])
    with pytest.raises(ConfigError, match="no seed"):
        index.query([])
    with pytest.raises(ConfigError, match="0 members"):
        index.query([1], 0)
    with pytest.raises(DataError, match="no finished index"):
        CommunityIndex.open(tmp_path)
    with pytest.raises(DataError, match="no account has 90000 neighbours"):
        CommunityIndex.build(FANS, tmp_path, IndexSettings(min_degree=90_000))
    for wrong in ({"bands": 0}, {"bits": 12}, {"min_degree": 0}):
        with pytest.raises(ConfigError):
            replace(IndexSettings(), **wrong)


def test_a_flipped_byte_of_an_index_is_named(folder, tmp_path):
    for name in ("graph.pack", "index.pack"):
        raw = bytearray((folder / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (tmp_path / name).write_bytes(raw)
        other = {"graph.pack": "index.pack", "index.pack": "graph.pack"}[name]
        (tmp_path / other).write_bytes((folder / other).read_bytes())
        with pytest.raises(DataError, match=rf"{name}.* is damaged"):
            CommunityIndex.open(tmp_path)


def test_other_settings_and_other_edges_make_another_index(tmp_path):
    rows, columns = np.random.default_rng(0).integers(0, 50, (2, 3000))
    edges = ArrayEdges(rows, columns)
    first = CommunityIndex.build(edges, tmp_path, IndexSettings(num_hashes=20, bands=10))
    stamp = (tmp_path / "graph.pack").stat().st_mtime_ns
    second = CommunityIndex.build(edges, tmp_path, IndexSettings(num_hashes=40, bands=10))
    assert first.signatures.shape[1] == 20
    assert second.signatures.shape[1] == 40
    assert (tmp_path / "graph.pack").stat().st_mtime_ns == stamp
    third = CommunityIndex.build(ArrayEdges(columns, rows), tmp_path, IndexSettings())
    assert third.graph.num_edges == first.graph.num_edges
    assert not (tmp_path / "parts").exists()


KILLED = """
import sys
from pathlib import Path
from steelyard.data.communities import CommunityIndex, IndexSettings
from steelyard.data.graph import PlantedFans
fans = PlantedFans(
    stars=2000, communities=20, fans=20_000, follows=6, noise=1, part_fans=2000, seed=3
)
def done(stage, share):
    print(stage, flush=True)
CommunityIndex.build(
    fans, Path(sys.argv[1]), IndexSettings(num_hashes=200, bands=100), done=done,
    memory_bytes=64 << 20,
)
print("finished", flush=True)
"""


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "stage",
    [
        # The default tests kill a smaller one at random: see tests/data/test_kills.py.
        pytest.param("sort edges", marks=SLOW),
        pytest.param("sign neighbours", marks=SLOW),
        pytest.param("sort bands (lsh)", marks=SLOW),
    ],
)
def test_a_killed_build_goes_on_and_ends_in_the_same_bytes(tmp_path, stage):
    def run(folder, until):
        command = [sys.executable, "-c", KILLED, str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        count = 0
        for line in process.stdout:
            count += line.strip() == until
            if count == 2 or (count == 1 and until != "sort edges"):
                time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.read()
        process.stdout.close()
        return process.wait()

    assert run(tmp_path / "killed", stage) == -signal.SIGKILL
    assert not (tmp_path / "killed" / "index.pack").exists()
    with pytest.raises(DataError, match="no finished index"):
        CommunityIndex.open(tmp_path / "killed")
    assert run(tmp_path / "killed", "never") == 0
    fans = PlantedFans(
        stars=2000, communities=20, fans=20_000, follows=6, noise=1, part_fans=2000, seed=3
    )
    settings = IndexSettings(num_hashes=200, bands=100)
    CommunityIndex.build(fans, tmp_path / "whole", settings, memory_bytes=64 << 20)
    for name in ("graph.pack", "index.pack"):
        one, other = (tmp_path / place / name for place in ("killed", "whole"))
        assert one.read_bytes() == other.read_bytes()


def mail():
    if not DATA.exists():
        pytest.skip("needs the shared data email-eu-core")
    tables = []
    for file in ("edges", "labels"):
        with gzip.open(DATA / f"{file}.csv.gz", "rt") as stream:
            tables.append(np.array(list(csv.reader(stream))[1:], np.int64))
    return ArrayEdges(*tables[0].T), dict(tables[1].tolist())


def test_recall_on_mail_is_that_of_the_anchor(tmp_path):
    edges, labels = mail()
    settings = IndexSettings(num_hashes=100, bands=50)
    index = CommunityIndex.build(edges, tmp_path, settings, undirected=True)
    # Measured with the published rules on the same data, K = 100 and B = 50.
    anchors: list[tuple[Method, float]] = [("average", 0.361), ("agglomerative", 0.333)]
    for method, anchor in anchors:
        found = recall_areas(index, labels, method)
        assert found.mean == pytest.approx(anchor, abs=0.02)
        assert found.candidates == pytest.approx(0.20, abs=0.03)
    with pytest.raises(ConfigError, match="no community of 500"):
        recall_areas(index, labels, "average", least_members=500)


def run(*words):
    app([str(word) for word in words], result_action="return_value", exit_on_error=False)


def test_the_verbs(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    net, made = tmp_path / "net", tmp_path / "made"
    made.mkdir()
    run("communities", "generate", "fans", "--out", made, "--nodes", 300, "--fans", 4000,
        "--communities", 6)  # fmt: skip
    words = ["--out", net, "--num-hashes", 100, "--bands", 50, "--min-degree", 3]
    run("communities", "index", made / "*.parquet", *words, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["accounts"] >= told["searched"] > 250
    assert told["index_bytes"] <= told["index_bytes_at_most"] + 200_000
    page = tmp_path / "page.html"
    run("communities", "query", net, 0, 1, 2, "--size", 12, "--json", "--report", page)
    found = json.loads(capsys.readouterr().out)
    assert len(found["members"]) == 12
    assert found["metrics"]["members"] == 15
    assert "Members and their strongest ties" in page.read_text()
    run("communities", "query", net, 0, 1, "--size", 5)
    assert "How it holds together" in capsys.readouterr().out
    run("communities", "explain", net, 0)
    assert "shared followers" in capsys.readouterr().out
    run("communities", "evaluate", net, made / "labels.csv", "--json")
    areas = json.loads(capsys.readouterr().out)
    assert areas["average"]["area"] > 0.3
    run("communities", "generate", "planted", "--out", tmp_path / "p", "--nodes", 300)
    labels = tmp_path / "labels.csv"
    run("communities", "detect", tmp_path / "p" / "*.parquet", "--out", labels, "--json")
    detected = json.loads(capsys.readouterr().out)
    assert detected["modularity"] > 0.2
    assert len(labels.read_text().splitlines()) == detected["accounts"] + 1
    run("communities", "generate", "rmat", "--out", tmp_path / "r", "--nodes", 64, "--edges", 99)
    with pytest.raises(DataError, match="no account"):
        run("communities", "query", net, 5000)
    with pytest.raises(ConfigError, match="needs accounts"):
        run("communities", "query", net)
