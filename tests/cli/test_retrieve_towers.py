"""Verbs of towers: train, encode, distil on one small file, and a plan from a ladder."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.retrieve.towers import QueryEncoder, load_encoder

WORDS = [a + b for a in ("ba", "ko", "mi", "tu", "re") for b in ("lan", "sod", "fer", "gup")]
RNG = np.random.default_rng(4)
TEXTS = [
    ". ".join(" ".join(RNG.choice(WORDS, 6)).capitalize() for _ in range(3)) for _ in range(90)
]
RUN = ["--steps", "4", "--batch", "16", "--threads", "1"]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    def call(*words: object) -> dict:
        monkeypatch.setattr(sys, "argv", ["steelyard", *map(str, words), "--json"])
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


def test_a_ladder_becomes_a_plan(run, tmp_path: Path) -> None:
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
    assert "fits" in run(*asked, "--p95", "1 us")["error"]
    assert "--sizes" in run(*asked, "--p95", "1 s", "--sizes", "0")["error"]
    (tmp_path / "ladder.csv").write_text("size,entropy\n1,2\n")
    assert "lacks parameters" in run(*asked, "--p95", "1 s")["error"]
