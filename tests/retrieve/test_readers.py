"""Readers of passages: windows, prompts, losses against the obvious computation, training."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from steelyard.catalog import Architecture
from steelyard.data.tokenizer import train_tokenizer
from steelyard.errors import ConfigError, DataError
from steelyard.nn.transformer import Transformer, build
from steelyard.retrieve.datastore import Candidates, PassageStore, writing_passages
from steelyard.retrieve.readers import (
    CopyingReader,
    PassageReader,
    cut_windows,
    train_reader,
)
from steelyard.retrieve.readers.copying import copy_probabilities
from steelyard.retrieve.readers.reader import prompts
from steelyard.train import EstimatorConfig

WORDS = [a + b for a in ("ba", "ko", "mi", "tu", "re") for b in ("lan", "sod", "fer", "gup")]
RNG = np.random.default_rng(3)
TEXTS = [" ".join(RNG.choice(WORDS, 60)) for _ in range(12)]
DOCUMENTS = [(f"file{place}", text) for place, text in enumerate(TEXTS)]
TOKENIZER = train_tokenizer(TEXTS, 300)


def _model(max_positions: int = 64) -> Transformer:
    arch = Architecture(
        name="tiny",
        num_layers=2,
        hidden_size=32,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=64,
        vocab_size=300,
        max_positions=max_positions,
    )
    return build(arch, seed=1)


@pytest.fixture
def store(tmp_path: Path) -> PassageStore:
    path = tmp_path / "passages.pack"
    with writing_passages(path) as writer:
        for name, text in DOCUMENTS:
            writer.add(text, name)
    return PassageStore(path)


def test_windows_are_pieces_of_their_documents_and_predict_each_token_once() -> None:
    windows = cut_windows(DOCUMENTS, TOKENIZER, known_tokens=8, wanted_tokens=10)
    for place in (0, len(windows) - 1):
        text = dict(DOCUMENTS)[windows.sources[place]]
        assert windows.queries[place] + windows.answers[place] in text
    of_first = [row for row, name in enumerate(windows.sources) if name == "file0"]
    ids = TOKENIZER.encode(TEXTS[0], add_special_tokens=False).ids
    predicted = np.concatenate([windows.wanted[row] for row in of_first])
    assert predicted.tolist() == ids[8 : 8 + len(predicted)]
    few = cut_windows(DOCUMENTS, TOKENIZER, known_tokens=8, wanted_tokens=10, most=5, seed=1)
    assert len(few) == 5


def test_windows_without_room_are_refused() -> None:
    with pytest.raises(DataError, match="no document of 12 has 9000 tokens"):
        cut_windows(DOCUMENTS, TOKENIZER, known_tokens=8000, wanted_tokens=1000)
    with pytest.raises(ConfigError, match="0 known"):
        cut_windows(DOCUMENTS, TOKENIZER, known_tokens=0)


def test_losses_are_those_of_prompts_one_by_one(store: PassageStore) -> None:
    windows = cut_windows(DOCUMENTS, TOKENIZER, known_tokens=6, wanted_tokens=8, most=7)
    ids = RNG.integers(0, len(store), (len(windows), 2))
    ids[2, 1] = ids[3, 0] = ids[3, 1] = -1
    found = Candidates.of_search(store, ids, np.zeros(ids.shape, np.float32))
    model = _model().eval()
    reader = PassageReader(model, TOKENIZER, batch_size=3)
    losses = reader.losses(windows, found)
    for row in range(len(windows)):
        kept = [store.text(number) for number in ids[row].tolist() if number >= 0]
        share = (65 - 14) // len(kept) if kept else 0
        tokens: list[int] = []
        for text in reversed(kept):
            tokens += TOKENIZER.encode(text, add_special_tokens=False).ids[:share]
        tokens += [*windows.known[row].tolist(), *windows.wanted[row].tolist()]
        with torch.inference_mode():
            logits = model(torch.tensor([tokens[:-1]]))[0]
        wanted = F.cross_entropy(logits[-8:], torch.tensor(tokens[-8:])).item()
        assert losses[row] == pytest.approx(wanted, abs=2e-5)
    plain = reader.losses(windows)
    assert plain[3] == pytest.approx(losses[3], abs=2e-5)
    assert windows.bits_per_byte(plain) == pytest.approx(
        plain.sum() * 8 / np.log(2) / windows.answer_bytes.sum()
    )


def test_the_best_passage_stands_nearest_to_the_window(store: PassageStore) -> None:
    windows = cut_windows(DOCUMENTS, TOKENIZER, known_tokens=6, wanted_tokens=8, most=1)
    texts = [["balan kosod", "turgup mifer"]]
    tokens, begins = prompts(windows, [0], texts, TOKENIZER, 64)
    text = TOKENIZER.decode(tokens[0, : begins[0] - 6].tolist())
    assert text.index("turgup") < text.index("balan")


def test_windows_longer_than_the_reader_are_refused(store: PassageStore) -> None:
    windows = cut_windows(DOCUMENTS, TOKENIZER, known_tokens=20, wanted_tokens=20, most=2)
    with pytest.raises(ConfigError, match="40 tokens for a reader of 32"):
        PassageReader(_model(32), TOKENIZER).losses(windows)


def test_passages_of_the_own_document_are_left_out(store: PassageStore) -> None:
    ids = np.tile(np.arange(12), (3, 1))
    found = Candidates.of_search(store, ids, -ids.astype(np.float32))
    left = found.exclude(["file4", "file0", "elsewhere"])
    assert left.counts().tolist() == [11, 11, 12]
    assert 4 not in left.ids[0]
    assert 0 not in left.ids[1]
    with pytest.raises(ConfigError, match="1 names"):
        found.exclude(["file4"])


def test_a_reader_learns_to_copy_what_was_looked_up(store: PassageStore, tmp_path: Path) -> None:
    windows = cut_windows(DOCUMENTS, TOKENIZER, known_tokens=6, wanted_tokens=8)
    own = np.array([[int(name[4:])] for name in windows.sources])
    found = Candidates.of_search(store, own, np.zeros(own.shape, np.float32))
    reader = PassageReader(_model(128), TOKENIZER)
    config = EstimatorConfig(steps=4, batch_size=8, learning_rate=3e-3, threads=1)
    with pytest.raises(ConfigError, match="own documents"):
        train_reader(reader, windows, found, config, tmp_path / "run")
    # Named after other files: what is copied here is not the window's own document.
    others = found.exclude(["elsewhere"] * len(windows))
    losses = train_reader(reader, windows, others, config, tmp_path / "run")
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def _slow_copy(
    known: list[int], wanted: list[int], passages: list[list[int]]
) -> list[tuple[float, int]]:
    """Look for every run at every place."""
    found = []
    for place, token in enumerate(wanted):
        text = [*known, *wanted[:place]]
        best, followers = 0, []
        for passage in passages:
            for end in range(1, len(passage)):
                run = 0
                while run < min(8, end, len(text)) and passage[end - 1 - run] == text[-1 - run]:
                    run += 1
                if run and run >= best:
                    followers = followers if run == best else []
                    best = run
                    followers.append(passage[end])
        found.append((followers.count(token) / max(len(followers), 1), best))
    return found


def test_copies_are_those_of_the_longest_runs() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        known, wanted = rng.integers(0, 3, 11), rng.integers(0, 3, 6)
        passages = [rng.integers(0, 3, int(n)) for n in rng.integers(0, 14, 3)]
        shares, lengths = copy_probabilities(known, wanted, passages)
        slow = _slow_copy(known.tolist(), wanted.tolist(), [one.tolist() for one in passages])
        assert lengths.tolist() == [length for _, length in slow]
        np.testing.assert_allclose(shares, [share for share, _ in slow])
    assert copy_probabilities(known, wanted, [])[1].tolist() == [0] * 6


def test_a_copier_is_believed_as_far_as_it_helps(store: PassageStore) -> None:
    windows = cut_windows(DOCUMENTS, TOKENIZER, known_tokens=6, wanted_tokens=8, most=8)
    places = {name: place for place, (name, _) in enumerate(DOCUMENTS)}
    own = np.array([[places[name], (places[name] + 1) % 12] for name in windows.sources])
    found = Candidates.of_search(store, own, np.zeros(own.shape, np.float32))
    copier = CopyingReader(PassageReader(_model().eval(), TOKENIZER, batch_size=3))
    alone = copier.losses(windows)
    # Nothing is believed before it was learned.
    np.testing.assert_allclose(copier.losses(windows, found), alone, rtol=1e-6)
    with pytest.raises(ConfigError, match="own documents"):
        copier.fit(windows, found)
    kept = found.exclude([f"file{(places[name] + 1) % 12}" for name in windows.sources])
    copier.fit(windows, kept)
    # These passages are the documents themselves: long runs are always right.
    assert copier.weights[8] > 0.9 and copier.weights[0] == 0.0
    assert (copier.losses(windows, kept) < alone).all()
    with pytest.raises(ConfigError, match="weights"):
        CopyingReader(copier.reader, np.ones(3))
