"""Verbs of towers: train, encode, distil on one small file, and a plan from a ladder."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.cli.retrieve.planned import (
    PLAN_FORECASTER,
    check_retriever,
    keep_retriever,
    told_checks,
)
from steelyard.cli.retrieve.towers.texts import ShapeOptions, parameters_of
from steelyard.data.tokenizer import train_tokenizer
from steelyard.laws.fitting.estimate import Estimate
from steelyard.nn.towers import Tower
from steelyard.nn.transformer import build
from steelyard.plan.retrieve.retriever import RetrieverDesign
from steelyard.plan.retrieve.retriever_cost import DocumentIndex, RetrieverLoad, TowerOption
from steelyard.retrieve.corpus import CorpusIndex
from steelyard.retrieve.corpus.pilot import measure_corpus
from steelyard.retrieve.towers import QueryEncoder, TowerEncoder, load_encoder, save_encoder
from steelyard.runs.ledger import Ledger
from steelyard.runs.store import RunStore

WORDS = [a + b for a in ("ba", "ko", "mi", "tu", "re") for b in ("lan", "sod", "fer", "gup")]
RNG = np.random.default_rng(4)
TEXTS = [
    ". ".join(" ".join(RNG.choice(WORDS, 6)).capitalize() for _ in range(3)) for _ in range(90)
]
RUN = ["--steps", "4", "--batch", "16", "--threads", "1"]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    def call(*words: object, json_too: bool = True) -> dict:
        more = ["--json"] if json_too else []
        monkeypatch.setattr(sys, "argv", ["steelyard", *map(str, words), *more])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        if ended.value.code:
            return {"error": told.err}
        return json.loads(told.out)

    monkeypatch.chdir(tmp_path)
    rows = [{"title": text.split(". ")[0], "body": text} for text in TEXTS] + [
        {"title": "", "body": "x"}
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return call


def test_towers_are_trained_encoded_and_distilled(run) -> None:
    shape = ["--layers", "1", "--width", "16", "--dim", "8", "--vocabulary", "300"]
    pair = ["texts.jsonl", "--query", "title", "--document", "body", "--out", "pair"]
    told = run("retrieve", "towers", "train", *pair, "--clozes", 20, *shape, *RUN, "--rounds", 2)
    assert told["pairs"] == 81 + 20 and told["queries_kept_aside"] == 9
    assert 0 <= told["ndcg_at_10"] <= 1 and told["entropy"] > 0
    folder = ["pair/documents", "texts.jsonl", "--document", "body", "--out", "vectors.npy"]
    said = run("retrieve", "towers", "encode", *folder)
    assert (said["rows"], said["empty"]) == (91, 0)
    assert np.load("vectors.npy").shape == (91, 8)
    student = ["pair/queries", "texts.jsonl", "--query", "title", "--out", "small", "--width", 8]
    found = run("retrieve", "towers", "distill", *student, *RUN, "--made", 30)
    assert (found["queries"], found["made"]) == (81, 30)
    assert found["documents"] == said["encoder"]
    assert found["student_parameters"] < found["teacher_parameters"]
    asks = load_encoder(Path("small"))
    assert isinstance(asks, QueryEncoder) and asks.fingerprint == said["encoder"]
    assert (
        "0 queries or more" in run("retrieve", "towers", "distill", *student, "--made", -1)["error"]
    )
    wrong = ["texts.jsonl", "--query", "name", "--out", "pair"]
    assert "it has title, body" in run("retrieve", "towers", "train", *wrong)["error"]
    assert "0 rounds" not in run("retrieve", "towers", "train", *pair, "--rounds", 1, *RUN)
    assert "no encoder" in run("retrieve", "towers", "encode", "nowhere", *folder[1:])["error"]


def test_a_ladder_becomes_a_plan(run, tmp_path: Path, monkeypatch) -> None:
    rows = ["parameters,entropy,teacher", "53000,2.2,449000"]
    for size in (26_000, 59_000, 102_000, 187_000, 304_000, 449_000):
        rows.append(f"{size},{900 / size**0.6 + 0.9},")
    (tmp_path / "ladder.csv").write_text("\n".join(rows))
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(1300, 8)).astype("f4")
    np.save(tmp_path / "vectors.npy", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    asked = [
        "plan",
        "retriever",
        "ladder.csv",
        "--vectors",
        "vectors.npy",
        "--docs",
        "10k",
        "--qps",
        5,
    ]
    told = run(*asked, "--p95", "10 s", "--sizes", "50k,500k", "--recall", "0.5")
    assert told["best"]["teacher"]["parameters"] == 500_000
    assert told["best"]["entropy"]["low"] < told["best"]["entropy"]["value"]
    assert told["students_measured"] and told["best"]["p95_s"] < 10
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    kept = run(*asked, "--p95", "10 s", "--sizes", "50k,500k", "--recall", "0.5", "--keep")
    assert RunStore.existing().get(kept["run"]).recipe["documents"] == 10_000
    assert "fits" in run(*asked, "--p95", "1 us")["error"]
    assert "--sizes" in run(*asked, "--p95", "1 s", "--sizes", "0")["error"]
    (tmp_path / "ladder.csv").write_text("size,entropy\n1,2\n")
    assert "lacks parameters" in run(*asked, "--p95", "1 s")["error"]


def test_the_recipe_walks_from_a_folder_to_a_search(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    (tmp_path / "notes").mkdir()
    for place, text in enumerate(TEXTS):
        (tmp_path / "notes" / f"{place}.md").write_text(text)
    shipped = (Path(__file__).parents[2] / "recipes" / "towers.toml").read_text()
    small = {"steps = 60": "steps = 4", "steps = 150": "steps = 4", "made = 4000": "made = 50"}
    small |= {
        "width = 96": "width = 16",
        "width = 32": "width = 8",
        "vocabulary = 4096": "vocabulary = 300",
    }
    for name, value in small.items():
        assert name in shipped
        shipped = shipped.replace(name, value)
    (tmp_path / "small.toml").write_text(shipped)
    recipe = ["--recipe", "small.toml"]
    base = ["retrieve", "towers"]
    told = run(*base, "train", "notes", *recipe, "--out", "towers")
    assert "error" not in told, told
    assert told["pairs"] == 81 and told["queries_kept_aside"] == 9
    found = run(*base, "distill", "towers/queries", "notes", *recipe, "--out", "student")
    assert (found["queries"] + found["queries_kept_aside"], found["made"]) == (90, 50)
    made = ["notes", "--encoder", "towers/documents", "--words", 64, "--out", "index"]
    built = run("retrieve", "build", *made, "--kind", "flat")
    assert built["encoded"] == 90
    asked = run("retrieve", "search", "index", TEXTS[3], "--encoder", "student")
    assert len(asked["queries"][0]["answers"]) == 10
    assert (
        "it has query, document"
        in run(*base, "train", "notes", "--query", "title", "--out", "x")["error"]
    )
    (tmp_path / "wrong.toml").write_text("[teacher]\nbreadth = 3\n")
    wrong = run(*base, "train", "notes", "--recipe", "wrong.toml", "--out", "x")
    assert "teacher.breadth" in wrong["error"]


def test_a_kept_plan_is_measured_when_its_retriever_serves(
    run, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    (tmp_path / "notes").mkdir()
    for place, text in enumerate(TEXTS):
        (tmp_path / "notes" / f"{place}.md").write_text(text)
    towers = {}
    for name, width in (("large", 16), ("small", 8)):
        arch = ShapeOptions(layers=1, width=width).architecture(300, 64)
        tower = Tower(build(arch, seed=width), 4, pooling="mean")
        towers[name] = TowerEncoder(tower, train_tokenizer(TEXTS, 300), max_tokens=64)
    asks = QueryEncoder(towers["small"], towers["large"].fingerprint)
    save_encoder(towers["large"], tmp_path / "documents")
    save_encoder(asks, tmp_path / "student")
    sizes = [parameters_of(towers[name].tower) for name in ("large", "small")]
    load = RetrieverLoad(documents=90, queries_per_s=1.0, p95_s=1.0)
    index = DocumentIndex(name="whole", recall=1.0, memory_bytes=90 * 24.0, median_s=1e-4)
    best = RetrieverDesign(
        teacher=TowerOption(name="large", parameters=sizes[0]),
        student=TowerOption(name="small", parameters=sizes[1]),
        index=index,
        p95_s=2e-3,
        alone_p95_s=2e-3,
        service_s=1e-3,
        cores=1,
        offline_flops=1.0,
        offline_usd=0.0,
        online_usd_per_hour=0.0,
        total_usd=0.0,
        entropy=Estimate(1.0, 0.9, 1.1),
    )
    plan = keep_retriever(best, load)
    made = ["notes", "--encoder", "documents", "--out", "index", "--words", 64]
    # The documents' tower asks at the build: it is not the one that was planned.
    assert (
        "tower of queries of"
        in run("retrieve", "build", *made, "--kind", "flat", "--plan", plan)["error"]
    )
    opened = CorpusIndex.asked_by(tmp_path / "index", asks)
    checks = check_retriever(plan, opened, measure_corpus(opened.store, 0.0), sizes[1])
    assert {item.forecast.quantity for item in checks} == {
        "retrieve.search_p50",
        "retrieve.search_p95",
        "retrieve.memory",
    }
    assert len(told_checks(checks)) == 3
    kept = Ledger(RunStore.existing()).checks(PLAN_FORECASTER)
    assert len(kept) == 3
    # The next plan's intervals follow from what this one was off.
    again = RunStore.existing().get(keep_retriever(best, load))
    assert {item.quantity for item in again.forecasts} == {
        name.forecast.quantity for _, name in kept
    }
    hybrid = ["--encoder", "documents", "--out", "words", "--kind", "hybrid"]
    assert "error" not in run("retrieve", "build", "notes", *hybrid)
    for given, said in (
        (["index", "--plan", "nothing"], "nothing"),
        (["index", "--plan", plan], "tower of queries of"),
        (["words", "--plan", plan, "--encoder", "student"], "--kind flat"),
        (["vectors.index", "--encoder", "student"], "is none"),
    ):
        refused = run("retrieve", "serve", *given, json_too=False)["error"]
        assert said in " ".join(refused.split())
