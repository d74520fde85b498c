"""Verbs of the data room, killed at random moments: the same line then makes the same files."""

import shutil
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402
from tests.data.table.conftest import made_rates  # noqa: E402
from tests.killing import files_of, killed_lines  # noqa: E402

from steelyard.catalog.scan_rates import store_scan_rates  # noqa: E402
from steelyard.data.graph import PlantedFans  # noqa: E402
from steelyard.data.lake import (  # noqa: E402
    GraphSettings,
    Lake,
    PlanRequest,
    deleted_tables,
    plan_deletion,
    rebuild_table,
)

RECIPE = Path(__file__).parents[2] / "recipes" / "pipeline.toml"
MODULES = (
    "steelyard.cli.main",
    "steelyard.cli.data.table",
    "steelyard.cli.data.learning",
    "steelyard.cli.data.itemsets",
    "steelyard.cli.data.communities",
    "steelyard.cli.data.lake",
    "steelyard.cli.data.profile_page",
    "steelyard.cli.data.scanning",
    "steelyard.data.table",
    "steelyard.data.table.cleaning",
    "steelyard.data.learning",
    "steelyard.data.mining",
    "steelyard.data.communities",
    "steelyard.data.lake",
    "steelyard.data.pipeline",
    "steelyard.data.anomalies",
    "steelyard.data.clustering",
    "steelyard.runs.ledger",
    "pyarrow.parquet",
    "pyarrow.csv",
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEELYARD_HOME", str(folder / "home"))
        store_scan_rates(made_rates())
    with killed_lines(folder, *MODULES) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tables, baskets, edges and a plan of deletions."""
    folder = tmp_path_factory.mktemp("data")
    _sales(folder / "sales")
    _baskets(folder / "baskets")
    _edges(folder / "edges")
    return folder


def _sales(folder):
    """Six files, in each of which a row breaks a rule."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for file in range(6):
        rows = [
            f"{file * 500 + row},{rng.normal():.3f},{'abc'[row % 3]},{'yes' if row % 5 else 'no'}"
            for row in range(500)
        ]
        rows[17] = f"{file},much,a,no"
        (folder / f"{file}.csv").write_text("id,price,shop,kept\n" + "\n".join(rows) + "\n")


def _baskets(folder):
    from steelyard.data.mining import quest_baskets

    folder.mkdir()
    made = quest_baskets(1200, num_items=60, seed=7)
    for file in range(3):
        ends = zip(made.begins[file * 400 :], made.begins[file * 400 + 1 :][:400], strict=False)
        rows = [" ".join(map(str, made.items[begin:end])) for begin, end in ends]
        (folder / f"{file}.dat").write_text("\n".join(rows) + "\n")


def _edges(folder):
    folder.mkdir()
    fans = PlantedFans(
        stars=200, communities=5, fans=2000, follows=6, noise=1, part_fans=500, seed=3
    )
    for part in range(fans.parts):
        accounts, followers = fans.draw(part)
        table = pa.table({"follower": followers, "account": accounts})
        parquet.write_table(table, folder / f"{part}.parquet")


def _lake(folder):
    """A lake in which two tables lie in a third, and the plan of its deletions."""
    lake = folder / "lake"
    lake.mkdir()
    whole = pa.table({"n": range(3000), "s": [f"word {row % 11}" for row in range(3000)]})
    for name, rows in {
        "whole": whole,
        "part": whole.slice(5, 2000),
        "some": whole.slice(9, 800),
    }.items():
        parquet.write_table(rows, lake / f"{name}.parquet")
    graph = Lake.scan(lake).containment(GraphSettings())
    plan_deletion(graph, PlanRequest()).save(folder / "plan.json")


def profile(data, here):
    words = ["data", "table", "profile", str(data / "sales"), "--journal", str(here / "journal")]
    words += ["--sketch", str(here / "sales.sketch"), "--quarantine", str(here / "bad.csv")]
    return [*words, "--no-keep", "--json"]


SCAN = """
import json, sys
from pathlib import Path
from steelyard.data.table import DataTable, folds
from steelyard.data.table.row_folds import RowHashFold
given = [RowHashFold(), folds.moments(), folds.quantiles()]
found = DataTable.scan(sys.argv[1]).fold(*given, journal=Path(sys.argv[2]) / "journal")
bits = [repr(sorted((name, {key: value.tolist() for key, value in sketch.sections().items()})
        for name, sketch in found.results[fold.name].items())) for fold in given[1:]]
bits += [found.results["row hashes"], found.rows]
bits += sorted(map(list, found.quarantine.counts.items()))
(Path(sys.argv[2]) / "bits.json").write_text(json.dumps(bits))
"""


def scan(data, here):
    return ["-c", SCAN, str(data / "sales"), str(here)]


def clean(data, here):
    return ["data", "table", "clean", str(data / "sales"), "--out", str(here / "clean.parquet"),
            "--drop-duplicates", "--json"]  # fmt: skip


def convert(data, here):
    return ["data", "pack", "convert", str(data / "sales"), "--out", str(here / "a.steelpack")]


PARTS = """
import sys
from pathlib import Path
from steelyard.data.table import DataTable
DataTable.scan(sys.argv[1]).write(Path(sys.argv[2]), parts=".parquet")
"""


def parts(data, here):
    return ["-c", PARTS, str(data / "sales"), str(here / "parts")]


def mine(data, here, *words):
    wanted = ["data", "itemsets", "mine", str(data / "baskets"), "--support", "0.01", "--json"]
    return [*wanted, "--journal", str(here / "j"), "--out", str(here / "out.parquet"), *words]


def mine_parts(data, here):
    return mine(data, here, "--partition", "son")


def mine_items(data, here):
    return mine(data, here, "--partition", "pfp")


def index(data, here):
    return ["data", "communities", "index", str(data / "edges"), "--out", str(here / "network"),
            "--num-hashes", "40", "--bands", "20", "--memory", "68 MB", "--json"]  # fmt: skip


def fit(data, here):
    words = ["data", "table", "fit", str(data / "sales"), "--target", "kept", "--leave-out", "id"]
    return [*words, "--rounds", "40", "--threads", "1", "--out", str(here / "a.model"), "--json"]


def fit_forest(data, here):
    return [*fit(data, here), "--learner", "forest", "--trees", "20"]


def fit_linear(data, here):
    return [*fit(data, here), "--learner", "linear"]


def cluster(data, here):
    return ["data", "table", "cluster", str(data / "sales"), "--clusters", "3", "--leave-out", "id",
            "--out", str(here / "of.parquet"), "--json"]  # fmt: skip


def detect(data, here):
    words = ["data", "table", "detect", str(data / "sales"), "--leave-out", "id", "--json"]
    return [*words, "--out", str(here / "odd.parquet")]


def transform(data, here):
    words = ["data", "table", "transform", str(data / "sales"), "--recipe", str(RECIPE)]
    words += ["--out", str(here / "features"), "--parts", ".parquet"]
    return [*words, "--journal", str(here / "journal"), "--json"]


def apply(data, here):
    return ["data", "lake", "apply", str(here / "plan.json"), "--yes", "--json"]


def seen(here):
    """Files of the lake and its state, what is said of tables that went, and these rebuilt."""
    lake = here / "lake"
    found = dict.fromkeys(files_of(here), "")
    for entry in deleted_tables(lake):
        found[f"{entry.table} of {entry.parent}"] = rebuild_table(lake, entry.table).read_bytes()
    return found


LEAN = [2, pytest.param(20, marks=pytest.mark.slow)]


VERBS = [
    profile,
    scan,
    clean,
    convert,
    parts,
    mine,
    mine_parts,
    mine_items,
    index,
    fit,
    fit_forest,
    fit_linear,
    cluster,
    detect,
    transform,
]


@pytest.mark.parametrize("kills", LEAN)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_killed_verb_makes_what_an_undisturbed_one_does(lines, data, tmp_path, verb, kills):
    begun = lines.check(lambda here: verb(data, here), tmp_path, kills=kills, timed=kills > 2)
    # Of many kills some fall where something was begun.
    assert begun > kills // 4 or kills == 2
    print(f"{verb.__name__}: {kills} kills, {begun} after something was begun")


@pytest.mark.parametrize("kills", LEAN)
def test_a_killed_plan_of_deletions_is_applied_whole(lines, data, tmp_path, kills):
    kept = tmp_path / "kept"

    def prepare(here):
        if not kept.exists():
            _lake(here)
            shutil.copytree(here, kept)
        # Times of change are kept: they belong to what the plan says of each file.
        shutil.copytree(kept, here, dirs_exist_ok=True)

    lines.check(
        lambda here: apply(data, here),
        tmp_path,
        kills=kills,
        prepare=prepare,
        made=seen,
        timed=kills > 2,
    )
