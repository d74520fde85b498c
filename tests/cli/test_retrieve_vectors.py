"""`steelyard retrieve` on files of vectors: what a newcomer gives wrongly is named."""

from pathlib import Path

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.retrieve import IVFPQ, IVFFlat

ROWS = np.random.default_rng(0).normal(size=(320, 8)).astype(np.float32)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["retrieve", *map(str, words)])
    out, error = capsys.readouterr()
    return int(ended.value.code or 0), out, error


def records(rows: list[np.ndarray]) -> bytes:
    """Rows as a file of .fvecs holds them."""
    return b"".join(np.int32(len(row)).tobytes() + row.astype("<f4").tobytes() for row in rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of vectors, whole and damaged, and indexes of the whole ones."""
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "here").mkdir()
    index = IVFFlat(8, nlist=4)
    index.train(ROWS)
    index.add(ROWS)
    index.save(folder / "my.index")
    codes = IVFPQ(8, nlist=1, parts=2)
    codes.train(ROWS)
    codes.add(ROWS)
    codes.save(folder / "codes.index")
    np.save(folder / "rows.npy", ROWS)
    np.save(folder / "few.npy", ROWS[:9])
    np.save(folder / "wide.npy", np.ones((30, 9)))
    late = np.repeat(ROWS, 300, axis=0)
    late[70_001, 3] = np.nan
    np.save(folder / "late.npy", late)
    bad = ROWS.copy()
    bad[7, 3] = np.nan
    np.save(folder / "nan.npy", bad)
    np.save(folder / "narrow.npy", ROWS[:, :0])
    np.save(folder / "strings.npy", np.array([["a", "b"]]))
    np.save(folder / "complex.npy", ROWS.astype(np.complex64))
    (folder / "empty.npy").write_bytes(b"")
    np.savez(folder / "several.npz", rows=ROWS)
    (folder / "several.npz").rename(folder / "several.npy")
    (folder / "cut.npy").write_bytes((folder / "rows.npy").read_bytes()[:-1])
    (folder / "cut.fvecs").write_bytes(records(list(ROWS))[:-1])
    (folder / "mixed.fvecs").write_bytes(records([ROWS[0], ROWS[1, :5], ROWS[2], ROWS[3]]))
    return folder


WRONG = [
    ("build missing.npy --out a", "missing.npy: no such file or directory"),
    ("build empty.npy --out a", "empty.npy is no whole file"),
    ("build cut.npy --out a", "cut.npy is no whole file"),
    ("build several.npy --out a", "several.npy holds several arrays"),
    ("build strings.npy --out a", "strings.npy holds <U1 [1, 2]"),
    ("build complex.npy --out a", "complex.npy holds complex64"),
    ("build narrow.npy --out a", "narrow.npy holds float32 [320, 0]"),
    ("build cut.fvecs --out a", "row 319 is cut short"),
    ("build mixed.fvecs --out a", "row 1 has 5 numbers"),
    ("build nan.npy --out a --cells 4", "nan.npy: row 7 holds a number that is not finite"),
    ("build late.npy --out a --kind flat", "late.npy: row 70001 holds"),
    ("build few.npy --out a --kind ivfpq", "--kind ivfpq learns 256 centers"),
    ("build rows.npy --out a --kind ivfpq --code-bytes 3", "--code-bytes is 3"),
    ("build rows.npy --out a --cells 321", "--cells is 321"),
    ("build rows.npy --out a --rerank -1", "--rerank is -1"),
    ("build rows.npy --out a --seed -1", "--seed is -1"),
    ("build rows.npy --out a --words 50", "--words is for texts"),
    ("build rows.npy --out here", "here is a folder"),
    ("build rows.npy --out rows.npy/a", "rows.npy is no folder"),
    ("build rows.npy", "--out is missing"),
    ("build rows.npy few.npy --out a", "2 sources"),
    ("build here --cells 3", "--cells is for vectors"),
    ("search my.index", "give an index of vectors and one file of queries"),
    ("search none.index few.npy", "there is no file none.index"),
    ("search rows.npy few.npy", "rows.npy is no pack"),
    ("search my.index wide.npy", "9 numbers, the index has 8"),
    ("search my.index nan.npy", "row 7 of the queries"),
    ("search my.index few.npy --k 0", "--k is 0"),
    ("search my.index few.npy --rerank 2", "--rerank is 2"),
    ("search kettle --rerank 2", "--rerank is for vectors"),
    ("exact strings.npy few.npy", "strings.npy holds <U1"),
    ("exact late.npy few.npy", "row 70001 of the vectors is not finite"),
    ("exact rows.npy few.npy --threads 0", "threads is 0"),
    ("tune my.index rows.npy --vectors rows.npy --recall 0", "--recall is 0"),
    ("tune my.index rows.npy --vectors rows.npy --recall nan", "--recall is nan"),
    ("tune my.index few.npy --vectors rows.npy", "9 queries to choose on"),
    ("tune my.index rows.npy --vectors few.npy", "few.npy has 9 vectors, my.index 320"),
]


@pytest.mark.parametrize(("line", "told"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_input_is_named(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line, told
) -> None:
    monkeypatch.setenv("STEELYARD_HOME", str(made / "home"))
    monkeypatch.chdir(made)
    before = sorted(made.rglob("*"))
    code, out, error = run(capsys, *line.split())
    lines = error.strip().splitlines()
    assert (code, out) == (2, "")
    assert lines[0].startswith("error: ")
    assert told in error
    assert len(lines) == 2 or "but must be" in error
    assert sorted(made.rglob("*")) == before


def test_more_neighbours_than_vectors_can_be_asked_for(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEELYARD_HOME", str(made / "home"))
    monkeypatch.chdir(made)
    words = ("my.index", "rows.npy", "--vectors", "rows.npy", "--k", 400, "--json")
    code, out, _ = run(capsys, "tune", *words)
    assert code == 0
    assert '"heldout_recall"' in out
