import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from steelyard.data.shards import TokenShards, load_tokenizer
from steelyard.data.sources import list_files
from steelyard.data.text import default_sources, prepare
from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.files import sha256_file

SENTENCE = (
    "the quick brown fox jumps over a lazy dog while rain falls on green hills and rivers "
    "run to the wide grey sea under stars"
)
WORDS = SENTENCE.split()


def prose(seed: int, words: int = 400) -> str:
    draw = random.Random(seed)
    return "".join(
        draw.choice(WORDS)
        + ("\n" if i % 12 == 11 else " ")
        + (f"{draw.randrange(1000)} " if i % 7 == 0 else "")
        for i in range(words)
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(60):
        (source / f"{number}.txt").write_text(prose(number))
    (source / "copy.txt").write_text(prose(3).replace("\n", "\r\n"))
    (source / "near.txt").write_text(prose(4) + " one more line here")
    (source / "short.txt").write_text("tiny")
    (source / "dull.txt").write_text("again and again\n" * 500)
    (source / "binary.txt").write_bytes(b"\x7fELF\0\0" + bytes(range(256)) * 4)
    (source / "latin.txt").write_bytes("caf\xe9 ".encode("latin-1") * 100)
    (source / "picture.png").write_bytes(b"not looked at")
    (source / ".hidden.txt").write_text(prose(99))
    return source


def contents(out: Path) -> dict[str, str]:
    return {
        path.name: sha256_file(path)
        for path in sorted(out.iterdir())
        if path.name != "manifest.json"
    }


def test_folder_becomes_shards(folder, tmp_path):
    stages = []
    manifest = prepare(
        [folder],
        tmp_path / "out",
        vocab_size=400,
        heldout_fraction=0.1,
        progress=lambda *step: stages.append(step),
    )
    assert manifest.documents == 60
    assert manifest.documents_dropped == {
        "short": 1,
        "repetitive": 1,
        "exact duplicate": 1,
        "near duplicate": 1,
    }
    assert manifest.files_skipped == {"binary": 2}
    assert manifest.duplicate_fraction == pytest.approx(2 / 62)
    assert manifest.vocab_size == 400
    assert 0.08 < manifest.heldout_bytes / manifest.text_bytes < 0.14
    assert [name for i, (name, _) in enumerate(stages) if i == 0 or stages[i - 1][0] != name] == [
        "read",
        "deduplicate",
        "tokenizer",
        "pack",
    ]
    assert all(0 <= fraction <= 1 for _, fraction in stages)
    assert stages[-1] == ("pack", 1.0)
    shards = TokenShards(tmp_path / "out")
    tokens = np.fromfile(tmp_path / "out" / manifest.train[0].name, dtype="<u2")
    assert shards.num_tokens == len(tokens) == manifest.num_tokens
    texts = (
        load_tokenizer(tmp_path / "out")
        .decode(tokens.tolist(), skip_special_tokens=False)
        .split("<|endoftext|>")
    )
    originals = {prose(number).strip() for number in range(60)} | {
        (prose(4) + " one more line here").strip()
    }
    assert len(texts) == manifest.documents - manifest.heldout_documents + 1
    assert texts.pop() == ""
    assert set(texts) <= originals
    assert not (tmp_path / "out" / "work").exists()


def test_same_input_same_bytes_and_a_finished_call_does_no_work(folder, tmp_path):
    first = prepare([folder], tmp_path / "a", vocab_size=400)
    assert prepare([folder], tmp_path / "b", vocab_size=400) == first
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    stamp = (tmp_path / "a" / "train-00000.bin").stat().st_mtime_ns
    assert prepare([folder], tmp_path / "a", vocab_size=400) == first
    assert (tmp_path / "a" / "train-00000.bin").stat().st_mtime_ns == stamp
    other = prepare([folder], tmp_path / "a", vocab_size=400, seed=1)
    assert other.key != first.key
    assert other.train != first.train


def test_a_changed_source_is_noticed_a_corrupted_shard_refused_and_a_missing_one_made_anew(
    folder, tmp_path
):
    first = prepare([folder], tmp_path / "out", vocab_size=400)
    shard = tmp_path / "out" / "train-00000.bin"
    shard.write_bytes(b"xx")
    with pytest.raises(DataError, match="corrupted"):
        prepare([folder], tmp_path / "out", vocab_size=400)
    shard.unlink()
    assert prepare([folder], tmp_path / "out", vocab_size=400) == first
    TokenShards(tmp_path / "out")
    (folder / "1.txt").write_text(prose(1000))
    assert prepare([folder], tmp_path / "out", vocab_size=400).key != first.key


def test_useless_text_does_not_spoil_an_earlier_result(folder, tmp_path):
    first = prepare([folder], tmp_path / "out", vocab_size=400)
    (tmp_path / "tiny.txt").write_text(prose(0))
    with pytest.raises(DataError, match="too little text"):
        prepare([tmp_path / "tiny.txt"], tmp_path / "out", vocab_size=400)
    assert TokenShards(tmp_path / "out").manifest == first
    (tmp_path / "out" / "train-00009.bin").write_bytes(b"left over")
    assert prepare([folder], tmp_path / "out", vocab_size=400, seed=2).seed == 2
    assert not (tmp_path / "out" / "train-00009.bin").exists()


def test_max_bytes_stops_reading(folder, tmp_path):
    manifest = prepare([folder], tmp_path / "out", vocab_size=400, max_bytes=70_000)
    assert 69_000 < manifest.text_bytes < 74_000


def test_one_large_file_is_cut_into_documents(tmp_path):
    text = "\n\n".join(prose(number) for number in range(80))
    (tmp_path / "book").write_text(text)
    manifest = prepare([tmp_path / "book"], tmp_path / "out", vocab_size=400)
    assert manifest.documents == 3
    assert manifest.heldout_documents == 1
    assert manifest.text_bytes == pytest.approx(len(text), rel=0.001)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no usable text"),
        (b"\0\1\2" * 50_000, "no usable text.*1 files binary"),
        (
            prose(0).encode(),
            r"too little text in .*/file\.txt: \d+ bytes after cleaning, 65536 needed",
        ),
    ],
    ids=["empty", "binary", "little"],
)
def test_useless_text_is_refused_and_leaves_nothing(content, words, tmp_path):
    (tmp_path / "file.txt").write_bytes(content)
    with pytest.raises(DataError, match=words):
        prepare([tmp_path / "file.txt"], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_wrong_paths_and_options_are_refused(folder, tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        prepare([tmp_path / "none"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no text file in folder"):
        prepare([tmp_path / "empty"], tmp_path / "out")
    with pytest.raises(DataError, match="no text was named"):
        prepare([], tmp_path / "out")
    with pytest.raises(ConfigError, match="vocab_size = 256"):
        prepare([folder], tmp_path / "out", vocab_size=256)
    with pytest.raises(ConfigError, match="heldout_fraction = 0"):
        prepare([folder], tmp_path / "out", heldout_fraction=0.0)
    with pytest.raises(ConfigError, match="max_bytes = 10"):
        prepare([folder], tmp_path / "out", max_bytes=10)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CapacityError, match="cannot write"):
        prepare([folder], tmp_path / "file")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_reported_and_the_next_call_goes_on(folder, tmp_path):
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from steelyard.data.text import prepare; from steelyard.errors import CapacityError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, "
        "(100_000, -1))\n"
        "try: prepare([Path(sys.argv[1])], Path(sys.argv[2]), vocab_size=400)\n"
        "except CapacityError as error: print(error); sys.exit(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "disk full" in done.stdout) == (7, True), done.stderr
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
    prepare([folder], tmp_path / "out", vocab_size=400)
    TokenShards(tmp_path / "out")


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_call_is_finished_by_the_next(folder, tmp_path, lines, kills):
    def line(here):
        return ["data", "prepare", str(folder), "--out", str(here / "out"), "--vocab-size", "400"]

    assert lines.check(line, tmp_path / "runs", kills=kills, timed=kills > 2)


def test_what_a_call_killed_at_the_very_end_left_goes(folder, tmp_path):
    expected = prepare([folder], tmp_path / "out", vocab_size=400)
    (tmp_path / "out" / "work").mkdir()
    (tmp_path / "out" / "work" / "read.json").write_text("{}")
    assert prepare([folder], tmp_path / "out", vocab_size=400) == expected
    assert not (tmp_path / "out" / "work").exists()


def test_finished_stages_are_not_done_again(folder, tmp_path, monkeypatch):
    from steelyard.data import text

    def broken(*_args, **_kwargs):
        raise RuntimeError("stopped here")

    monkeypatch.setattr(text, "pack", broken)
    with pytest.raises(RuntimeError):
        prepare([folder], tmp_path / "out", vocab_size=400)
    monkeypatch.undo()
    for name in ("write_documents", "text_signatures", "train_tokenizer"):
        monkeypatch.setattr(text, name, broken)
    assert prepare([folder], tmp_path / "out", vocab_size=400).documents == 60


def test_default_sources_are_many_files_of_this_python():
    sources = default_sources()
    assert any(path.name == "argparse.py" for path in sources)
    assert not any("__pycache__" in path.parts for path in sources)
    listed = list_files(sources, 6_000_000)
    assert 6_000_000 <= sum(file.size_bytes for file in listed) < 8_000_000


def test_a_corrupted_manifest_is_named(folder, tmp_path):
    prepare([folder], tmp_path / "out", vocab_size=400)
    values = json.loads((tmp_path / "out" / "manifest.json").read_text())
    values["vocab_size"] = "many"
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"manifest\.json.*vocab_size"):
        TokenShards(tmp_path / "out")
