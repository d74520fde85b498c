"""Lines of the data room that tests kill and fill the disk of, and what these lines read."""

from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from steelyard.data.graph import PlantedFans  # noqa: E402
from steelyard.data.lake import GraphSettings, Lake, PlanRequest, plan_deletion  # noqa: E402
from steelyard.data.mining import quest_baskets  # noqa: E402

RECIPE = Path(__file__).parents[2] / "recipes" / "pipeline.toml"


def make_data(folder):
    """Make tables, baskets and edges."""
    sales(folder / "sales")
    baskets(folder / "baskets")
    edges(folder / "edges")
    return folder


def sales(folder):
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


def baskets(folder):
    folder.mkdir()
    made = quest_baskets(1200, num_items=60, seed=7)
    for file in range(3):
        ends = zip(made.begins[file * 400 :], made.begins[file * 400 + 1 :][:400], strict=False)
        rows = [" ".join(map(str, made.items[begin:end])) for begin, end in ends]
        (folder / f"{file}.dat").write_text("\n".join(rows) + "\n")


def edges(folder):
    folder.mkdir()
    fans = PlantedFans(
        stars=200, communities=5, fans=2000, follows=6, noise=1, part_fans=500, seed=3
    )
    for part in range(fans.parts):
        accounts, followers = fans.draw(part)
        table = pa.table({"follower": followers, "account": accounts})
        parquet.write_table(table, folder / f"{part}.parquet")


def lake_with_plan(folder):
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
