"""Folders of text as an index: what is found, what is left out, and what a second build does."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.retrieve.corpus import CorpusIndex, CorpusOptions, build_corpus
from steelyard.retrieve.corpus import building as building_module
from steelyard.retrieve.corpus.cutting import cut_lines
from steelyard.retrieve.corpus.files import TextPart
from steelyard.retrieve.text.fusion import Fusion
from steelyard.retrieve.text.weighing import WeighedFusion

RNG = np.random.default_rng(5)
TOPICS = {
    "bread": ["flour", "yeast", "oven", "dough", "crust", "salt", "water", "proof"],
    "rail": ["train", "signal", "sleeper", "gauge", "points", "depot", "guard", "line"],
    "sea": ["tide", "harbor", "keel", "anchor", "wave", "mast", "reef", "buoy"],
}


def _sentences(topic: str, count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(TOPICS[topic], 9)) + "." for _ in range(count)]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    for place, topic in enumerate(TOPICS):
        lines = [f"# {topic}", "", *_sentences(topic, 40, place)]
        if topic == "bread":
            lines.append("The secret ingredient is cardamom.")
        (folder / f"{topic}.md").write_text("\n".join(lines))
    return folder


OPTIONS = CorpusOptions(words=32, dim=8)
_EQUAL = WeighedFusion(fusion=Fusion(), queries=0, found={})


def test_a_note_is_found_with_its_line(notes: Path, tmp_path: Path) -> None:
    built = build_corpus(tmp_path / "index", [notes], OPTIONS)
    assert (built.read, built.unchanged, built.removed) == (3, 0, 0)
    best = built.index.search("where is cardamom?", 3)[0]
    path = notes / "bread.md"
    assert best.path == str(path)
    lines = path.read_text().splitlines()
    assert "cardamom" in lines[best.line - 1]
    assert "cardamom" in best.snippet
    assert best.text == "\n".join(lines[best.first_line - 1 : best.last_line])
    assert {Path(item.path).name for item in built.index.search("harbor reef mast", 3)} == {
        "sea.md"
    }
    again = CorpusIndex(tmp_path / "index")
    assert again.search("where is cardamom?", 3)[0] == best


def test_a_second_build_encodes_only_what_changed(notes: Path, tmp_path: Path) -> None:
    build_corpus(tmp_path / "index", [notes], OPTIONS)
    assert build_corpus(tmp_path / "index", [notes], OPTIONS).encoded == 0
    text = (notes / "rail.md").read_text()
    (notes / "rail.md").write_text(text + "\nA new tunnel opens in spring.\n")
    (notes / "sea.md").unlink()
    second = build_corpus(tmp_path / "index", [notes], OPTIONS)
    assert (second.read, second.unchanged, second.removed) == (1, 1, 1)
    assert 1 <= second.encoded <= 2
    assert second.reused > 20
    assert second.index.store.encoder is not None
    assert second.index.search("tunnel spring", 1)[0].path == str(notes / "rail.md")
    assert not [item for item in second.index.search("harbor", 5) if item.path.endswith("sea.md")]
    # Words have no history: they are those of an index that is made at once.
    fresh = build_corpus(tmp_path / "other", [notes], OPTIONS).index.store
    store = second.index.store
    assert list(fresh.passages.texts()) == list(store.passages.texts())
    assert fresh.words is not None
    assert store.words is not None
    for query in ("signal gauge", "yeast"):
        np.testing.assert_array_equal(fresh.words.scores(query), store.words.scores(query))


class _Slow:
    """Counts what it encodes, and dies after some."""

    fingerprint, dim = "slow", 4

    def __init__(self, most: int = 1 << 30) -> None:
        self.most, self.count = most, 0

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.count += len(texts)
        if self.count > self.most:
            raise KeyboardInterrupt
        rows = [[1, len(text) % 7, text.count("e") % 5, text.count("a") % 3] for text in texts]
        return np.array(rows, np.float32)


def test_a_killed_build_goes_on_with_what_it_had_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steelyard.retrieve.corpus.known._STAGED", 500)
    monkeypatch.setattr(building_module, "sample_passages", lambda *a, **k: None)
    folder = tmp_path / "notes"
    folder.mkdir()
    words = [f"w{number}" for number in range(500)]
    for number in range(40):
        lines = [" ".join(RNG.choice(words, 30)) for _ in range(100)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    options = CorpusOptions(words=32, kind="hybrid")
    monkeypatch.setattr(building_module, "weigh", lambda *a, **k: _EQUAL)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(tmp_path / "index", [folder], options, encoder=_Slow(2500))
    assert not (tmp_path / "index").exists()
    encoder = _Slow()
    built = build_corpus(tmp_path / "index", [folder], options, encoder=encoder)
    assert encoder.count < 2100
    assert built.reused >= 2000
    assert len(built.index) == 4000
    assert not list(tmp_path.glob(".index.building"))


def test_a_full_disk_leaves_the_old_index(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_corpus(tmp_path / "index", [notes], OPTIONS)
    before = CorpusIndex(tmp_path / "index").search("cardamom", 2)
    (notes / "new.md").write_text("An unseen word: quince.")
    real = os.fsync
    calls = [0]

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CapacityError, match="disk full"):
            build_corpus(tmp_path / "index", [notes], OPTIONS)
    assert CorpusIndex(tmp_path / "index").search("cardamom", 2) == before
    later = build_corpus(tmp_path / "index", [notes], OPTIONS)
    assert later.index.search("quince", 1)[0].path == str(notes / "new.md")


def test_tables_pages_and_rows(tmp_path: Path) -> None:
    import polars as pl

    rows = [{"title": "a", "text": "yeast and flour"}, {"text": ""}, {"text": "anchor chain"}]
    (tmp_path / "rows.jsonl").write_text("\n".join([*map(json.dumps, rows), "{broken"]))
    pl.DataFrame({"body": ["gauge of sleepers", None, "tide table"]}).write_parquet(
        tmp_path / "rows.parquet"
    )
    page = "<html><style>p {yeast: 1}</style><body>\n<p>Keel &amp; mast</p>\n</body></html>"
    (tmp_path / "page.html").write_text(page)
    built = build_corpus(tmp_path / "out" / "index", [tmp_path], OPTIONS)
    found = {
        query: (Path(best[0].path).name, best[0].line, best[0].snippet)
        for query in ("anchor", "tide", "mast", "yeast")
        for best in [built.index.search(query, 1)]
    }
    assert found["anchor"] == ("rows.jsonl", 3, "anchor chain")
    assert found["tide"] == ("rows.parquet", 3, "tide table")
    assert found["mast"] == ("page.html", 2, "Keel & mast")
    assert found["yeast"][0] == "rows.jsonl"
    assert built.skipped.counts == {"rows without text": 2, "rows that are no JSON": 1}
    with pytest.raises(ConfigError, match="no column 'words'"):
        options = CorpusOptions(text_field="words")
        build_corpus(tmp_path / "out" / "b", [tmp_path / "rows.parquet"], options)


def test_what_holds_no_text_is_counted(notes: Path, tmp_path: Path) -> None:
    (notes / "empty.md").write_text(" \n")
    (notes / "binary.txt").write_bytes(b"\x00\x01\x02" * 50)
    (notes / "old.txt").write_bytes("Bäckerei mit Öfen und Brötchen".encode("latin-1"))
    (notes / "photo.jpg").write_bytes(b"\xff\xd8")
    secret = notes / "secret.md"
    secret.write_text("hidden")
    secret.chmod(0)
    built = build_corpus(tmp_path / "index", [notes], OPTIONS)
    expected = {"empty": 1, "binary": 1, "not UTF-8": 1, "of another ending": 1}
    if os.geteuid():  # root reads what nobody may
        expected["unreadable"] = 1
    assert built.skipped.counts == expected
    again = build_corpus(tmp_path / "index", [notes], OPTIONS)
    assert again.skipped.counts == expected
    assert "photo.jpg" in again.skipped.told()


def test_wrong_input_is_named(notes: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="no text file in folder"):
        build_corpus(tmp_path / "index", [empty], OPTIONS)
    (empty / "blank.md").write_text("\n")
    with pytest.raises(DataError, match="no text in 1 files: 1 empty"):
        build_corpus(tmp_path / "index", [empty], OPTIONS)
    with pytest.raises(DataError, match="no such file"):
        build_corpus(tmp_path / "fresh", [tmp_path / "none"], OPTIONS)
    assert not (tmp_path / ".fresh.building").exists()
    with pytest.raises(ConfigError, match="holds something else"):
        build_corpus(notes, [notes], OPTIONS)
    with pytest.raises(ConfigError, match="no index is called"):
        build_corpus(tmp_path / "index", [notes], CorpusOptions(kind="graph"))
    assert not (tmp_path / "index").exists()
    index = build_corpus(tmp_path / "index", [notes], OPTIONS).index
    with pytest.raises(ConfigError, match="k is 0"):
        index.search("bread", 0)
    with pytest.raises(DataError, match="query 0 is empty"):
        index.search("  ")
    assert index.search("zzzz qqqq") == []
    with pytest.raises(ConfigError, match="was built with encoder latent-"):
        CorpusIndex(tmp_path / "index", _Slow())
    with pytest.raises(DataError, match="no index of texts"):
        CorpusIndex(notes)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(alphabet="ab #\t", max_size=30), max_size=30),
    st.integers(1, 12),
)
def test_passages_hold_all_words_on_their_lines(lines: list[str], words: int) -> None:
    found = list(cut_lines(TextPart(lines), words))
    assert " ".join(item.text for item in found).split() == " ".join(lines).split()
    for item in found:
        assert 1 <= item.first_line <= item.last_line <= len(lines)
        assert 0 < len(item.text.split()) <= words
        if len(item.text.split("\n")) > 1:
            span = lines[item.first_line - 1 : item.last_line]
            assert item.text == "\n".join(line.rstrip() for line in span)
