import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data import encoding
from steelyard.data.encoding import CachedEncoder
from steelyard.data.manifest import Manifest, ShardFile
from steelyard.data.shards import TokenShards
from steelyard.data.token_packing import pack, split_heldout
from steelyard.data.tokenizer import END_OF_TEXT, train_tokenizer
from steelyard.errors import ConfigError, DataError
from steelyard.files import sha256_file, write_json

TOKENIZER = train_tokenizer(
    [
        "the rain in spain falls mainly on the plain, über den Bergen\n" * 3,
        "def f(x):\n    return x\n",
    ],
    300,
)


def make_shards(
    out: Path,
    train: list[np.ndarray],
    heldout: np.ndarray,
    vocab_size: int = 1000,
    order: str = "keyed",
) -> TokenShards:
    out.mkdir(exist_ok=True)
    (out / "tokenizer.json").write_text(TOKENIZER.to_str())
    files = []
    for name, tokens in (
        *((f"train-{i}.bin", tokens) for i, tokens in enumerate(train)),
        ("heldout-0.bin", heldout),
    ):
        (out / name).write_bytes(tokens.astype("<u2").tobytes())
        files.append(ShardFile(name=name, tokens=len(tokens), sha256=sha256_file(out / name)))
    manifest = Manifest(
        key="",
        sources=[],
        files_read=1,
        files_skipped={},
        documents=2,
        documents_dropped={},
        text_bytes=100,
        heldout_documents=1,
        heldout_bytes=50,
        vocab_size=vocab_size,
        end_token=0,
        dtype="uint16",
        seed=0,
        tokenizer_sha256=sha256_file(out / "tokenizer.json"),
        train=files[:-1],
        heldout=files[-1:],
        order=order,
    )
    write_json(out / "manifest.json", manifest)
    return TokenShards(out)


def two_shards(out: Path, order: str) -> TokenShards:
    return make_shards(out, [np.arange(100), np.arange(200, 243)], np.arange(25), order=order)


@pytest.fixture(params=["keyed", "stored"])
def shards(tmp_path, request) -> TokenShards:
    return two_shards(tmp_path / "out", request.param)


def test_a_pass_visits_every_window_once_and_windows_keep_to_their_shard(shards):

    rows = np.concatenate([shards.batch(index, 4, 7, seed=3) for index in range(5)])
    assert rows.dtype == np.int64
    assert (np.diff(rows, axis=1) == 1).all()
    assert sorted(rows[:, 0].tolist()) == [*range(0, 98, 7), *range(200, 242, 7)]


def test_batches_depend_on_nothing_but_their_arguments(shards):
    forward = [shards.batch(index, 3, 7, seed=5) for index in range(30)]
    again = TokenShards(shards.directory)
    for index in random.Random(0).sample(range(30), 30):
        assert np.array_equal(again.batch(index, 3, 7, seed=5), forward[index])
    assert not np.array_equal(
        np.concatenate(forward[:6]),
        np.concatenate([shards.batch(i, 3, 7, seed=6) for i in range(6)]),
    )
    first, second = (
        [shards.batch(i, 5, 7, seed=5)[:, 0] for i in range(4 * e, 4 * e + 4)] for e in (0, 1)
    )
    assert not np.array_equal(first, second)
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second))


def test_a_batch_of_another_split_holds_the_same_windows(shards):
    whole = shards.batch(0, 12, 7, seed=1)
    assert np.array_equal(whole, np.concatenate([shards.batch(i, 4, 7, seed=1) for i in range(3)]))


def test_a_folder_that_names_no_order_keeps_the_stored_one(tmp_path):
    shards = two_shards(tmp_path / "out", "stored")
    path = tmp_path / "out" / "manifest.json"
    plain = json.loads(path.read_text())
    del plain["order"]
    path.write_text(json.dumps(plain))
    old = TokenShards(tmp_path / "out")
    windows = np.random.default_rng((5, 1)).permutation(20)
    starts = np.concatenate([np.arange(0, 98, 7), np.arange(200, 242, 7)])[windows[:4]]
    assert old.order == "stored"
    assert old.batch(5, 4, 7, seed=5)[:, 0].tolist() == starts.tolist()
    assert np.array_equal(old.batch(9, 4, 7, seed=5), shards.batch(9, 4, 7, seed=5))


def test_figures(shards):
    assert (shards.num_tokens, shards.vocab_size, shards.bytes_per_token) == (143, 1000, 2.0)
    assert np.array_equal(shards.heldout_tokens, np.arange(25))


@pytest.mark.parametrize("name", ["train-1.bin", "heldout-0.bin", "tokenizer.json"])
def test_a_corrupted_or_missing_file_is_named(shards, name):
    path = shards.directory / name
    raw = bytearray(path.read_bytes())
    raw[10] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=f"{name} is corrupted") as caught:
        TokenShards(shards.directory)
    assert "delete it" in caught.value.hint
    path.unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        TokenShards(shards.directory)


def test_a_truncated_file_is_found_without_hashing(shards):
    path = shards.directory / "train-0.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train-0\.bin is missing or has another size"):
        TokenShards(shards.directory, check=False)


def test_wrong_folders_and_batches_are_refused(shards, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        TokenShards(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no finished token shards"):
        TokenShards(tmp_path / "empty")
    with pytest.raises(DataError, match="no window of 501"):
        shards.batch(0, 1, 500, seed=0)
    with pytest.raises(ConfigError, match="batch -1"):
        shards.batch(-1, 1, 7, seed=0)
    (shards.directory / "manifest.json").write_text(json.dumps({"key": 1}))
    with pytest.raises(DataError, match=r"manifest\.json"):
        TokenShards(shards.directory)


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_every_text_survives_cutting_and_joining(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    assert TOKENIZER.token_to_id(END_OF_TEXT) not in ids


PIECES = st.sampled_from(
    [
        "the",
        " rain",
        "'s",
        "'ll",
        "'x",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "42",
        " 7",
        "_",
        "...",
        " (",
        "é",
        "世",
        "\u2003",
        "\x0b",
        END_OF_TEXT,
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
def test_the_fast_way_cuts_exactly_as_the_tokenizer(text):
    encoder = CachedEncoder(TOKENIZER)
    expected = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert encoder.encode([text], 0).tolist() == [*expected, 0]
    assert encoder.encode([text, "", text], 0).tolist() == [*expected, 0, 0, *expected, 0]


def test_the_table_of_words_stays_small(monkeypatch):
    monkeypatch.setattr(encoding, "_MOST_CACHED", 3)
    encoder = CachedEncoder(TOKENIZER)
    for text in ("the rain in spain", "falls mainly", "on the plain in spain", "the rain"):
        assert encoder.encode([text], 0).tolist() == [
            *TOKENIZER.encode(text, add_special_tokens=False).ids,
            0,
        ]


def test_a_text_cannot_end_itself():
    ids = TOKENIZER.encode(f"a{END_OF_TEXT}b", add_special_tokens=False).ids
    assert 0 not in ids
    assert TOKENIZER.decode(ids) == f"a{END_OF_TEXT}b"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=12), st.integers(1, 40))
def test_packing_loses_nothing_at_any_shard_size(tmp_path_factory, texts, shard_tokens):
    out = tmp_path_factory.mktemp("pack")
    sizes = []
    files = pack(
        [text.encode() for text in texts],
        TOKENIZER,
        out,
        "train",
        end_token=0,
        progress=sizes.append,
        shard_tokens=shard_tokens,
    )
    tokens = np.concatenate([np.fromfile(out / file.name, dtype="<u2") for file in files])
    assert [file.tokens for file in files] == [
        (out / file.name).stat().st_size // 2 for file in files
    ]
    assert all(file.sha256 == sha256_file(out / file.name) for file in files)
    assert TOKENIZER.decode(tokens.tolist(), skip_special_tokens=False) == "".join(
        text + END_OF_TEXT for text in texts
    )
    assert sum(sizes) == sum(len(text.encode()) for text in texts)


def test_held_out_documents_follow_their_content_not_their_place():
    documents = [f"document {number} ".encode() * 20 for number in range(200)]
    chosen = {documents[i] for i in np.flatnonzero(split_heldout(documents, 0.1, seed=0))}
    shuffled = random.Random(1).sample(documents, 200)
    assert chosen == {shuffled[i] for i in np.flatnonzero(split_heldout(shuffled, 0.1, seed=0))}
    assert chosen != {documents[i] for i in np.flatnonzero(split_heldout(documents, 0.1, seed=1))}
    assert sum(map(len, chosen)) / sum(map(len, documents)) == pytest.approx(0.1, abs=0.01)
    assert split_heldout(documents[:2], 0.4, seed=0).sum() == 1
