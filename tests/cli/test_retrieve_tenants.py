"""`steelyard retrieve tenants`: build, search, change, tune and audit, with wrong input too."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from steelyard.cli.main import main

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(400, 6)).astype(np.float32)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.fixture
def shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    np.save(tmp_path / "vectors.npy", VECTORS)
    np.save(tmp_path / "queries.npy", VECTORS[:40] + 0.01)
    rows = [f"{number},{('acme', 'legal')[number % 2]}" for number in range(300)]
    rows += [f"{number},legal" for number in range(0, 100, 2)]
    (tmp_path / "grants.csv").write_text("\n".join(["id,tenant", *rows]))
    words = ("retrieve", "tenants", "build", tmp_path / "vectors.npy")
    code, out, _ = run(
        capsys, *words, "--grants", tmp_path / "grants.csv", "--out", tmp_path / "index", "--json"
    )
    assert code == 0
    told = json.loads(out)
    assert (told["tenants"], told["grants"]) == (2, 350)
    return tmp_path


def test_tenants_see_their_own_and_changes_last(shared: Path, capsys) -> None:
    index, queries = shared / "index", shared / "queries.npy"
    base = ("retrieve", "tenants")
    code, out, _ = run(capsys, *base, "search", index, queries, "--tenant", "acme", "--json")
    assert code == 0
    assert all(number % 2 == 0 for row in json.loads(out)["ids"] for number in row)
    both = ("--where", "acme AND legal", "--json")
    ids = json.loads(run(capsys, *base, "search", index, queries, *both)[1])["ids"]
    assert all(number < 100 for row in ids for number in row)
    assert json.loads(run(capsys, *base, "grant", index, "acme", "--ids", "1,3", "--json")[1]) == {
        "tenant": "acme",
        "granted": 2,
        "seen": 152,
    }
    (shared / "ids.txt").write_text("1\n2\n")
    told = run(capsys, *base, "revoke", index, "acme", "--ids", f"@{shared / 'ids.txt'}", "--json")
    assert json.loads(told[1])["revoked"] == 2
    tuned = run(capsys, *base, "tune", index, queries, "--recall", "0.9", "--json")
    assert json.loads(tuned[1])["recall"] >= 0.9
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    code, out, _ = run(
        capsys, *base, "audit", index, "acme", "--ids", "1,4", "--at", later, "--json"
    )
    assert code == 1
    assert [item["visible"] for item in json.loads(out)["vectors"]] == [False, True]
    code, out, _ = run(capsys, *base, "audit", index, "acme", "--ids", "4", "--at", later)
    assert code == 0
    assert "4" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("search", "QUERIES"), "--tenant or --where"),
        (("search", "QUERIES", "--tenant", "nobody"), "nobody"),
        (("search", "QUERIES", "--where", "acme AND"), "cannot be read"),
        (("grant", "acme", "--ids", "5,x"), "--ids has 'x'"),
        (("grant", "acme", "--ids", "5000"), "no vector 5000"),
        (("audit", "acme", "--ids", "5", "--at", "noon"), "--at is 'noon'"),
        (("tune", "QUERIES", "--recall", "1.5"), "--recall is 1.5"),
    ],
)
def test_wrong_input_is_refused_in_the_words_of_the_command(
    shared: Path, capsys, words: tuple[str, ...], told: str
) -> None:
    given = [str(shared / "queries.npy") if word == "QUERIES" else word for word in words]
    code, _, err = run(capsys, "retrieve", "tenants", given[0], shared / "index", *given[1:])
    assert code == 2
    assert told in " ".join(err.split())


def test_grants_that_cannot_be_read_are_refused(shared: Path, capsys) -> None:
    base = ("retrieve", "tenants", "build", shared / "vectors.npy", "--out", shared / "other")
    for text, told in (
        ("id,name\n1,a", "no column tenant"),
        ("id,tenant\n1,a\n900,b", "row 2 grants vector 900"),
        ("id,tenant\nx,a", "whole numbers"),
    ):
        (shared / "bad.csv").write_text(text)
        code, _, err = run(capsys, *base, "--grants", shared / "bad.csv")
        assert code == 2
        assert told in " ".join(err.split())
    assert not (shared / "other").exists()
