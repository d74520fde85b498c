"""`steelyard retrieve build FOLDER` and `search "words"`: what a newcomer types; wrong input."""

import json
from pathlib import Path

import numpy as np
import pytest

from steelyard.catalog import Architecture
from steelyard.cli.main import main
from steelyard.data.tokenizer import train_tokenizer
from steelyard.nn.towers import Tower
from steelyard.nn.transformer import build
from steelyard.retrieve.towers import QueryEncoder, TowerEncoder, save_encoder
from steelyard.runs.ledger import Ledger
from steelyard.runs.store import RunStore


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "notes"
    folder.mkdir()
    rng = np.random.default_rng(0)
    words = [f"topic{number}" for number in range(80)]
    for place in range(12):
        lines = [" ".join(rng.choice(words, 12)) + "." for _ in range(40)]
        (folder / f"{place}.md").write_text("\n".join(["# Notes", *lines]))
    (folder / "backups.txt").write_text("Backups are made at midnight.\n")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["retrieve", *map(str, words)])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_two_lines_find_a_note(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "build", home / "notes", "--words", "32", "--report", home / "p.html"
    )
    assert code == 0
    assert "words + flat vectors: comparing all" in out
    assert "a search takes" in out
    assert "What words and vectors find" in (home / "p.html").read_text()
    code, out, _ = run(capsys, "search", "when are backups made", "--k", "2")
    assert code == 0
    assert "backups.txt:1" in out
    told = json.loads(run(capsys, "build", home / "notes", "--words", "32", "--json")[1])
    assert (told["read"], told["encoded"], told["unchanged"]) == (0, 0, 13)
    # The first build's forecasts are in the ledger: the next ones learn from them.
    other = json.loads(run(capsys, "build", home / "notes", "--out", home / "b", "--json")[1])
    assert {item["quantity"] for item in other["checks"]} == {
        "retrieve.index_time",
        "retrieve.memory",
        "retrieve.search_p50",
        "retrieve.search_p95",
        "retrieve.search_rate",
    }
    found = json.loads(run(capsys, "search", home / "b", "backups", "--json")[1])
    assert found["queries"][0]["answers"][0]["path"] == str(home / "notes" / "backups.txt")


def test_a_recipe_is_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "r.toml").write_text('kind = "bm25"\nwords = 16\n')
    told = json.loads(
        run(capsys, "build", home / "notes", "--recipe", home / "r.toml", "--json")[1]
    )
    assert told["kind"] == "words"
    (home / "r.toml").write_text('sort = "bm25"\n')
    code, _, err = run(capsys, "build", home / "notes", "--recipe", home / "r.toml")
    assert code == 2
    assert "sort" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["search", "anything"], "no index of texts was built yet"),
        (["build"], "nothing is named"),
        (["build", "none"], "no such file or folder"),
        (["build", "notes", "--kind", "fastscan"], "is for vectors"),
        (["build", "v.npy"], "--out is missing"),
        (["build", "v.npy", "--out", "x", "--kind", "hybrid"], "is for texts"),
        (["build", "notes", "--words", "2"], "--words is 2, but must be 8 or more"),
        (["serve", "nosuch.index"], "nosuch.index is no file"),
    ],
)
def test_wrong_input_is_named(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(home)
    np.save(home / "v.npy", np.zeros((40, 4), np.float32))
    code, _, err = run(capsys, *words)
    assert code == 2
    assert told in err


def _tower(texts: list[str], seed: int) -> TowerEncoder:
    arch = Architecture(
        name="tiny",
        num_layers=1,
        hidden_size=16,
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=16,
        vocab_size=300,
        max_positions=32,
    )
    model = Tower(build(arch, seed=seed), 16, pooling="mean", seed=seed)
    return TowerEncoder(model, train_tokenizer(texts, 300), max_tokens=32)


def test_an_index_keeps_its_tower_and_refuses_others(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [path.read_text() for path in (home / "notes").iterdir()]
    documents, student = _tower(texts, 0), _tower(texts, 1)
    save_encoder(documents, home / "documents")
    save_encoder(QueryEncoder(student, documents.fingerprint), home / "student")
    save_encoder(QueryEncoder(student, "tower-of-others"), home / "stale")
    build_it = ["build", home / "notes", "--words", 32, "--out", home / "i", "--json", "--encoder"]
    assert json.loads(run(capsys, *build_it, home / "documents")[1])["encoded"] > 0
    assert json.loads(run(capsys, *build_it, home / "documents")[1])["unchanged"] == 13
    asked = ["search", home / "i", "backups at midnight", "--json"]
    for more in ([], ["--encoder", home / "student"]):
        found = json.loads(run(capsys, *asked, *more)[1])
        assert found["queries"][0]["answers"]
    code, _, error = run(capsys, *asked, "--encoder", home / "stale")
    assert code == 2 and "asks documents of encoder tower-of-others" in error
    code, _, error = run(capsys, *build_it, home / "student")
    assert code == 2 and "tower of queries" in error
    # Built again without it, the index has an encoder of its own, and no tower beside.
    assert json.loads(run(capsys, *build_it[:-1])[1])["encoded"] > 0
    assert not (home / "i" / "tower").exists()
    np.save(home / "v.npy", np.zeros((9, 4), "f4"))
    vectors = ["build", home / "v.npy", "--out", home / "v", "--encoder", home / "documents"]
    assert run(capsys, *vectors)[0] == 2


def test_a_build_of_vectors_draws_its_cells(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(home / "v.npy", np.random.default_rng(0).normal(size=(1500, 8)).astype("f4"))
    made = ["build", home / "v.npy", "--out", home / "v.index", "--report", home / "v.html"]
    told = json.loads(run(capsys, *made, "--json")[1])
    assert {item["quantity"] for item in told["checks"]} >= {"retrieve.recall", "retrieve.memory"}
    assert "What the index finds by cells" in (home / "v.html").read_text()
    # An exact index learns from the checks of exact ones alone.
    run(capsys, *made, "--kind", "flat", "--json")
    found = {name for name, _ in Ledger(RunStore.existing()).checks()}
    assert found == {"retrieve.build", "retrieve.build.exact"}
