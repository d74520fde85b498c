"""Studies of a reader over stores of every size: sizes, halves, laws; what each verb refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from steelyard.catalog import Architecture
from steelyard.cli.main import main
from steelyard.data.tokenizer import train_tokenizer
from steelyard.errors import ConfigError, DataError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build
from steelyard.retrieve.datastore import Datastore
from steelyard.retrieve.readers import cut_windows, load_reader, study_reading, teach_copier
from steelyard.retrieve.text import LatentEncoder

WORDS = [a + b for a in ("ba", "ko", "mi", "tu", "re") for b in ("lan", "sod", "fer", "gup")]


def _texts(count: int, seed: int) -> list[str]:
    """Return texts of phrases that come again and again: what was said once is worth copying."""
    rng = np.random.default_rng(99)
    phrases = [" ".join(rng.permutation(WORDS)[:8]) for _ in range(60)]
    draw = np.random.default_rng(seed)
    return [". ".join(phrases[n] for n in draw.integers(0, 60, 6)) for _ in range(count)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts, held-out texts and a reader."""
    folder = tmp_path_factory.mktemp("study")
    for name, count, seed in (("docs", 40, 1), ("others", 8, 2)):
        (folder / name).mkdir()
        for number, text in enumerate(_texts(count, seed)):
            (folder / name / f"{number}.txt").write_text(text)
    tokenizer = train_tokenizer(_texts(40, 1), 300)
    arch = Architecture(
        name="tiny",
        num_layers=1,
        hidden_size=32,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=64,
        vocab_size=300,
        max_positions=256,
    )
    checkpoint.save(build(arch, seed=1), folder / "reader")
    tokenizer.save(str(folder / "reader" / "tokenizer.json"))
    return folder


def test_a_study_is_of_nine_sizes_and_both_filters_and_copies_gain_with_the_store(
    place: Path, tmp_path: Path
) -> None:
    reader = load_reader(place / "reader")
    texts = _texts(40, 1)
    documents = [(f"doc{number}", text) for number, text in enumerate(texts)]
    store = Datastore.build(tmp_path / "store", documents, LatentEncoder.fit(texts, 16), words=16)
    heldout = [(f"other{number}", text) for number, text in enumerate(_texts(8, 2))]
    windows = cut_windows(heldout, reader.tokenizer, known_tokens=16, wanted_tokens=16)
    copier, rest = teach_copier(store, reader, windows, candidates=50)
    found = study_reading(store, copier, rest, candidates=50)
    assert found.filters == ["none", "clean"]
    assert found.windows == len(windows) - len(windows) // 2
    sizes, losses = found.losses("none")
    assert len(sizes) == 9
    assert sizes[-1] == len(store)
    assert losses[-1] < losses[0] < found.alone + 1e-9
    assert found.alone == pytest.approx(reader.losses(rest).mean())
    assert found.foreseen("none").measurement.value == losses[-1]
    assert found.law("none").law.name.startswith("power_law_floor")


def test_one_window_teaches_no_copier(place: Path, tmp_path: Path) -> None:
    reader = load_reader(place / "reader")
    texts = _texts(10, 1)
    documents = [(f"doc{number}", text) for number, text in enumerate(texts)]
    store = Datastore.build(tmp_path / "store", documents, LatentEncoder.fit(texts, 8))
    one = cut_windows(documents, reader.tokenizer, known_tokens=8, wanted_tokens=8, most=1)
    with pytest.raises(ConfigError, match="learns from half"):
        teach_copier(store, reader, one)


def test_a_reader_without_its_tokenizer_or_with_a_damaged_one_is_refused(
    place: Path, tmp_path: Path
) -> None:
    checkpoint.save(load_reader(place / "reader").model, tmp_path / "bare")
    with pytest.raises(DataError, match="no tokenizer"):
        load_reader(tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is no tokenizer"):
        load_reader(tmp_path / "bare")


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["retrieve", *map(str, words)])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_verb_prints_sizes_and_a_law(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    index = tmp_path / "index"
    assert _run(capsys, "build", place / "docs", "--words", 16, "--out", index)[0] == 0
    given = ["--reader", place / "reader", "--heldout", place / "others", "--copies"]
    given += ["--known", 16, "--wanted", 16]
    code, out, _ = _run(
        capsys, "study", index, *given, "--json", "--report", tmp_path / "page.html"
    )
    assert code == 0
    told = json.loads(out)
    assert len(told["stores"]) == 2 * (8 * 3 + 1)
    assert "passages" in (tmp_path / "page.html").read_text()
    code, _, err = _run(capsys, "study", index, *given, "--windows", 0)
    assert (code, "--windows is 0" in err) == (2, True)
