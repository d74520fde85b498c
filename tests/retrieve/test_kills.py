"""Verbs of the retrieval room, killed at random moments: the same line then ends the same."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.killing import Ended, KilledLines, files_of, killed_lines
from tests.retrieve import tenant_changes as changes

from steelyard.retrieve.corpus import CorpusIndex
from steelyard.retrieve.tenants import create_store, open_tenant_index, writing_store
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex

MODULES = (
    "steelyard.cli.main",
    "steelyard.cli.retrieve.build",
    "steelyard.cli.retrieve.build_texts",
    "steelyard.cli.retrieve.tenants",
    "steelyard.cli.retrieve.rerank.build",
    "steelyard.retrieve.corpus",
    "steelyard.retrieve.tenants",
    "steelyard.retrieve.multivector",
    "steelyard.runs.ledger",
)
MANY = pytest.param(20, marks=pytest.mark.slow)
LEAN = [2, MANY]
POINTS = np.random.default_rng(4).normal(size=(600, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledLines]:
    with killed_lines(tmp_path_factory.mktemp("lines"), *MODULES) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors, grants and notes."""
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "vectors.npy", POINTS)
    grants = [f"{row},t{row % 7}" for row in range(600)]
    (folder / "grants.csv").write_text("\n".join(["id,tenant", *grants]) + "\n")
    (folder / "notes").mkdir()
    draw = np.random.default_rng(1)
    words = np.array([f"word{place}" for place in range(300)])
    for note in range(8):
        text = "\n".join(" ".join(draw.choice(words, 12)) for _ in range(20))
        (folder / "notes" / f"{note}.md").write_text(f"# Note {note}\n\n{text}\n")
    return folder


def vectors(data: Path, here: Path) -> list[str]:
    return ["retrieve", "build", str(data / "vectors.npy"), "--out", str(here / "a.index"),
            "--kind", "ivf", "--json"]  # fmt: skip


def texts(data: Path, here: Path) -> list[str]:
    return ["retrieve", "build", str(data / "notes"), "--out", str(here / "notes.index"), "--json"]


def tenants(data: Path, here: Path) -> list[str]:
    return ["retrieve", "tenants", "build", str(data / "vectors.npy"), "--grants",
            str(data / "grants.csv"), "--out", str(here / "shared"), "--json"]  # fmt: skip


def tokens(data: Path, here: Path) -> list[str]:
    return ["retrieve", "rerank", "build", str(data / "notes"), "--out", str(here / "tokens"),
            "--words", "60", "--json"]  # fmt: skip


def found(here: Path) -> Any:
    """Answers of an index of texts: it also holds how long its build took."""
    index = CorpusIndex(here / "notes.index")
    return [index.search(f"word{place} word{place + 9}", 5) for place in range(0, 280, 20)]


def seen(here: Path) -> Any:
    """What each tenant sees: the log also says when that was granted."""
    index = open_tenant_index(here / "shared")
    index.check()
    return {name: sorted(index.granted(name).tolist()) for name in index.tenants}


@pytest.mark.parametrize("kills", LEAN)
@pytest.mark.parametrize(("verb", "made"), [(texts, found), (tenants, seen), (tokens, files_of)])
def test_a_killed_build_ends_as_an_undisturbed_one(
    lines: KilledLines, data: Path, tmp_path: Path, verb: Any, made: Any, kills: int
) -> None:
    # A line of tenants that was killed when all was done finds an index, and refuses to replace it.
    timed = kills > 2 and verb is not tenants
    begun = lines.check(
        lambda here: verb(data, here), tmp_path, kills=kills, made=made, timed=timed
    )
    print(f"{verb.__name__}: {kills} kills, {begun} after something was begun")


@pytest.mark.slow
def test_a_killed_build_of_vectors_ends_as_an_undisturbed_one(
    lines: KilledLines, data: Path, tmp_path: Path
) -> None:
    lines.check(lambda here: vectors(data, here), tmp_path, kills=20, timed=True)


@pytest.mark.slow
def test_a_killed_grant_is_whole_or_not_there(lines: KilledLines, tmp_path: Path) -> None:
    def prepare(here: Path) -> None:
        index = ClusterTreeIndex(8, leaf_size=16)
        index.train(POINTS)
        create_store(here / "shared", index)
        with writing_store(here / "shared", now_s=lambda: 0.0) as store:
            store.add(POINTS)

    def line(here: Path) -> list[str]:
        return ["retrieve", "tenants", "grant", str(here / "shared"), "a", "--ids", "3,5,8"]

    lines.check(line, tmp_path, kills=20, prepare=prepare, made=seen, timed=True)


WRITER = """
import os, sys
sys.path.insert(0, os.getcwd())
from pathlib import Path
from tests.retrieve.tenant_changes import write_on
write_on(Path(sys.argv[1]), *map(int, sys.argv[2:]))
"""


def writer(folder: Path, *numbers: int) -> list[str]:
    return ["-c", WRITER, str(folder), *map(str, numbers)]


def ended_within(
    lines: KilledLines, folder: Path, done: int, last: int, every: int, rng: np.random.Generator
) -> Ended:
    """Let a writer go on to some change, and kill it on its way in one of three manners."""
    words = writer(folder, done, last, every)
    manner = rng.integers(0, 3)
    if manner == 0:
        return lines.run([*words, str(rng.integers(done, last))], folder)
    if manner == 1:
        return lines.run(words, folder, step=int(rng.integers(1, 9)))
    return lines.run(words, folder, after_s=float(rng.uniform(0.1, 4.0)))


@pytest.mark.parametrize(
    ("operations", "kills"),
    [
        (4000, 3),
        pytest.param(100_000, 20, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_kills_within_changes_lose_none_and_let_nothing_foreign_through(
    lines: KilledLines, tmp_path: Path, operations: int, kills: int
) -> None:
    folder, rng, done, killed = tmp_path / "store", np.random.default_rng(3), 0, 0
    seen, every = changes.begin(folder), operations // 40
    for left in range(kills, -1, -1):
        if left:
            last = done + 1 + (operations - done) // (left + 1)
            ended = ended_within(lines, folder, done, last, every, rng)
        else:
            ended = lines.run(writer(folder, done, operations, every), folder)
        assert ended.code in ((0, -signal.SIGKILL) if left else (0,)), ended
        killed += ended.code != 0
        logged, told = changes.logged_of(folder), changes.told_of(folder)
        assert told <= logged <= told + 1, (ended, told, logged)
        changes.apply(seen, done, logged)
        done = logged
        index = open_tenant_index(folder)
        index.check()
        for tenant in range(changes.TENANTS):
            assert np.array_equal(index.granted(str(tenant)), np.flatnonzero(seen[tenant]))
            assert not changes.foreign_or_wrong(index, str(tenant), seen[tenant], rng)
    print(f"{done:,} changes, {killed} kills")
    assert done == operations
    assert killed >= kills // 2
