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


def test_the_recipe_is_walked_on_made_tenants(tmp_path: Path, capsys) -> None:
    base, demo, index = ("retrieve", "tenants"), tmp_path / "demo", tmp_path / "index"
    shipped = Path(__file__).parents[2] / "recipes" / "tenants.toml"
    small = ("--vectors", 1500, "--dim", 16, "--tenants", 6, "--queries", 5, "--json")
    assert json.loads(run(capsys, *base, "generate", demo, *small)[1])["tenants"] == 6
    words = (*base, "build", demo / "vectors.npy", "--grants", demo / "grants.csv", "--out", index)
    code, out, _ = run(capsys, *words, "--recipe", shipped, "--json")
    assert (code, json.loads(out)["vectors"]) == (0, 1500)
    run(capsys, *base, "grant", index, "tenant-7", "--ids", "3,5,8", "--json")
    asked = (*base, "search", index, demo / "queries.npy", "--tenant")
    found = json.loads(run(capsys, *asked, "tenant-7", "--json")[1])["ids"]
    assert all(set(row) == {3, 5, 8, -1} for row in found)
    rows = [line.split(",") for line in (demo / "grants.csv").read_text().splitlines()[1:]]
    own = {int(number) for number, tenant in rows if tenant == "tenant-2"}
    found = json.loads(run(capsys, *asked, "tenant-2", "--json")[1])["ids"]
    assert {number for row in found for number in row} <= own
    run(capsys, *base, "revoke", index, "tenant-7", "--ids", "5", "--json")
    now = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    code, out, _ = run(
        capsys, *base, "audit", index, "tenant-7", "--ids", "3,5", "--at", now, "--json"
    )
    assert (code, json.loads(out)["hidden"]) == (1, 1)
    code, _, said = run(capsys, *base, "generate", demo)
    assert (code, "is there already" in said) == (2, True)
    assert "give 1 or more" in run(capsys, *base, "generate", tmp_path / "x", "--tenants", 0)[2]
    (tmp_path / "wrong.toml").write_text("leafsize = 3")
    again = (*words[:-1], tmp_path / "other", "--recipe", tmp_path / "wrong.toml")
    code, _, said = run(capsys, *again)
    assert (code, "leafsize" in said) == (2, True)
