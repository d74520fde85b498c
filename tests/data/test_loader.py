import functools
import signal

import numpy as np
import pytest

from steelyard.data.convert import LanguageModel, PrefixLanguageModel, SequenceToSequence, batch
from steelyard.data.loader import Loader, TensorBatches
from steelyard.data.rows import PackedRows
from steelyard.data.tasks import (
    ByteVocabulary,
    CachedTask,
    Feature,
    Generated,
    Records,
    Task,
    TaskMixture,
    TextLines,
    read_info,
    write_cache,
)
from steelyard.data.tasks.steps import corrupt_spans, rename
from steelyard.errors import ConfigError, DataError

BYTES = ByteVocabulary(sentinels=100)
TARGETS = {"targets": Feature(vocabulary=BYTES)}
PAIR = {"inputs": Feature(vocabulary=BYTES), "targets": Feature(vocabulary=BYTES)}


def text_of(rng):
    return {"text": "".join(map(chr, rng.integers(97, 123, int(rng.integers(1, 90)))))}


NAMED = (functools.partial(rename, fields={"targets": "text"}),)


def texts(name="texts", size=700, **fields):
    source = Generated(make=text_of, size=size)
    return Task(
        **({"name": name, "source": source, "features": TARGETS, "prepare": NAMED} | fields)
    )


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches") / "texts"
    write_cache(texts(), folder, shards=7)
    return CachedTask(texts(), folder)


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def test_a_cache_reads_as_its_task(cached):
    task = texts()
    assert len(cached) == len(task) == 700 and len(cached.info.shards) == 7
    for index in (0, 99, 100, 101, 350, 699):
        assert equal(cached.read(index), task.read(index))
    sizes = cached.sizes("targets")
    assert [sizes[i] + 1 for i in (0, 20, 699)] == [
        len(task.read(i)["targets"]) for i in (0, 20, 699)
    ]
    assert cached.info.statistics["targets"].total == sizes.sum()
    for index in (-1, 700):
        with pytest.raises(IndexError):
            cached.read(index)


def test_workers_and_a_second_call_change_nothing(cached, tmp_path):
    info = write_cache(texts(), tmp_path / "again", workers=2, shards=7)
    assert info == cached.info
    stamp = (tmp_path / "again" / "shard-00000.safetensors").stat().st_mtime_ns
    assert write_cache(texts(), tmp_path / "again") == info
    assert (tmp_path / "again" / "shard-00000.safetensors").stat().st_mtime_ns == stamp


def test_all_kinds_of_fields_come_back(tmp_path):
    record = {"targets": "ü", "note": "plain", "raw": b"\0\xff", "scores": np.array([0.5, 2.0])}
    task = Task(name="kinds", source=Records([record] * 3), features=TARGETS)
    write_cache(task, tmp_path)
    found = CachedTask(task, tmp_path).read(2)
    assert (found["note"], found["raw"]) == ("plain", b"\0\xff")
    assert found["scores"].tolist() == [0.5, 2.0] and BYTES.decode(found["targets"]) == "ü"


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"targets": "a", "more": 3}], "'more' of task 't' is int"),
        (
            [{"targets": "a"}] * 30 + [{"targets": "a", "b": "c"}] + [{"targets": "a"}] * 9,
            "different",
        ),
        (
            [{"targets": "a"}] * 3 + [{"targets": np.array([999])}] + [{"targets": "a"}] * 9,
            "id 999",
        ),
        ([{"targets": np.array([5, 1])}], "end twice"),
    ],
)
def test_records_that_cannot_be_cached_are_named(tmp_path, records, message):
    task = Task(name="t", source=Records(records), features=TARGETS)
    with pytest.raises(DataError, match=message):
        write_cache(task, tmp_path / "out")
    assert not (tmp_path / "out" / "cache.json").exists()


def test_other_preprocessing_and_other_shards_are_refused(cached, tmp_path):
    other = texts(prepare=(*NAMED, functools.partial(dict, note="more")))
    for call in (
        lambda: CachedTask(other, cached.folder),
        lambda: write_cache(other, cached.folder),
    ):
        with pytest.raises(DataError, match="of another preprocessing") as caught:
            call()
        assert "delete the folder" in caught.value.hint
    with pytest.raises(DataError, match="7 shards, 5 were asked"):
        write_cache(texts(), cached.folder, shards=5)
    with pytest.raises(DataError, match="holds no finished cache"):
        CachedTask(texts(), tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        read_info(tmp_path / "none")
    with pytest.raises(ConfigError, match="0 shards"):
        write_cache(texts(), tmp_path, shards=0)
    dropping = texts(prepare=(lambda record: None,))
    with pytest.raises(DataError, match="no example of task 'texts' is left of 700"):
        write_cache(dropping, tmp_path / "none")


def test_a_cache_can_be_read_where_its_source_is_not(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    task = Task(name="t", source=TextLines(path), features=TARGETS, prepare=NAMED)
    write_cache(task, tmp_path / "out")
    path.unlink()
    moved = Task(name="t", source=TextLines(path), features=TARGETS, prepare=NAMED)
    with pytest.raises(DataError, match="no such file"):
        CachedTask(moved, tmp_path / "out")
    found = CachedTask(moved, tmp_path / "out", check_source=False)
    assert BYTES.decode(found.read(1)["targets"]) == "two"
    other = Task(name="t", source=TextLines(path), features=TARGETS)
    with pytest.raises(DataError, match="of another preprocessing"):
        CachedTask(other, tmp_path / "out", check_source=False)


def test_a_flipped_byte_is_named_and_its_shard_can_be_skipped(tmp_path):
    task = texts(size=64)
    write_cache(task, tmp_path, shards=4)
    path = tmp_path / "shard-00002.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"shard-00002\.safetensors missing or corrupted"):
        CachedTask(task, tmp_path)
    rest = CachedTask(task, tmp_path, skip=["shard-00002.safetensors"])
    assert len(rest) == 48 and equal(rest.read(32), task.read(48))
    with pytest.raises(ConfigError, match="there is no shard shard-9"):
        CachedTask(task, tmp_path, skip=["shard-9"])
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(DataError, match="cannot be read"):
        CachedTask(task, tmp_path, check=False)


CHILD = """
import sys
from steelyard.data.tasks import ByteVocabulary, Feature, Generated, Task, write_cache

def number(rng):
    return {"targets": str(rng.integers(10**9))}

task = Task(name="many", source=Generated(make=number, size=60),
    features={"targets": Feature(vocabulary=ByteVocabulary())})
write_cache(task, sys.argv[1], shards=6)
"""


def number(rng):
    return {"targets": str(rng.integers(10**9))}


def test_a_killed_cache_goes_on_with_the_first_unfinished_shard(tmp_path, lines):
    def words(out):
        return ["-c", CHILD, str(out)]

    whole = lines.run(words(tmp_path / "whole"), tmp_path)
    out = tmp_path / "out"
    assert lines.run(words(out), tmp_path, step=whole.steps // 2).code == -signal.SIGKILL
    assert not (out / "cache.json").exists()
    kept = [path.with_suffix(".safetensors") for path in out.glob("shard-*.json")]
    assert 1 < len(kept) < 6
    stamps = [path.stat().st_mtime_ns for path in kept]
    assert lines.run(words(out), tmp_path).code == 0
    assert [path.stat().st_mtime_ns for path in kept] == stamps
    quick = Task(name="quick", source=Generated(make=number, size=60), features=TARGETS)
    here = write_cache(quick, tmp_path / "here", shards=6)
    assert [s.sha256 for s in read_info(out).shards] == [s.sha256 for s in here.shards]
    assert not list(out.glob(".*.part"))


def test_rows_hold_every_example_once_and_little_room_is_left(cached):
    rows = PackedRows(cached, LanguageModel(length=256), window=128)
    held = [rows.examples(row) for row in range(len(rows))]
    assert sorted(np.concatenate(held).tolist()) == list(range(700))
    sizes = cached.sizes("targets") + 1
    filled = np.array([sizes[row].sum() for row in held])
    assert filled.max() <= 256 and rows.cut_tokens == 0
    assert (
        rows.efficiency == pytest.approx(sizes.sum() / (len(rows) * 256)) and rows.efficiency > 0.9
    )
    again = PackedRows(cached, LanguageModel(length=256), window=128)
    for row in (len(rows) - 1, 0, 7):
        assert np.array_equal(again.examples(row), held[row])
    short = PackedRows(cached, LanguageModel(length=40))
    assert short.cut_tokens == np.maximum(sizes - 40, 0).sum()
    with pytest.raises(DataError, match="no row"):
        rows.examples(len(rows))


def plain_best_fit(sizes, limit):
    """The slow obvious version: the longest first, into the fullest row that still takes it."""
    rows = []
    for place in np.argsort(-sizes, kind="stable"):
        fitting = [row for row in rows if sum(sizes[row]) + sizes[place] <= limit]
        if fitting:
            min(fitting, key=lambda row: limit - sum(sizes[row])).append(place)
        else:
            rows.append([place])
    return sorted(sorted(row) for row in rows)


def test_rows_equal_the_plain_best_fit(cached):
    rows = PackedRows(cached, LanguageModel(length=200), window=1000)
    order = rows._order(np.arange(700))
    place = np.argsort(order)
    found = sorted(sorted(place[rows.examples(row)].tolist()) for row in range(len(rows)))
    assert found == plain_best_fit((cached.sizes("targets") + 1)[order], 200)


@pytest.mark.parametrize("pack", [False, True])
def test_the_stream_is_the_same_for_every_number_of_readers_and_resumes_anywhere(cached, pack):
    loader = Loader(cached, LanguageModel(length=128), 8, seed=4, pack=pack)
    whole = [loader.batch(step) for step in range(6)]
    fresh = Loader(cached, LanguageModel(length=128), 8, seed=4, pack=pack)
    for step, world in ((5, 8), (2, 4), (3, 2), (0, 1)):
        shares = [fresh.batch(step, rank, world) for rank in range(world)]
        assert equal(
            {key: np.concatenate([s[key] for s in shares]) for key in shares[0]}, whole[step]
        )
    assert equal(fresh.batch(10**6), loader.batch(10**6))
    assert not equal(
        loader.batch(0), Loader(cached, LanguageModel(length=128), 8, pack=pack).batch(0)
    )
    units = len(loader.packed["texts"]) if pack else 700
    traced = [row for step in range(2 * units // 8 + 1) for row in loader.rows(step)]
    passes = [[i for row in traced if row.epoch == n for i in row.examples] for n in (0, 1)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(700))
    assert passes[0] != passes[1]


def test_worker_processes_change_nothing(cached):
    loader = Loader(cached, LanguageModel(length=128), 4, pack=True)
    stream = loader.batches(5, rank=1, world=2, workers=1)
    for step in range(5, 9):
        assert equal(next(stream), loader.batch(step, 1, 2))
    stream.close()
    with pytest.raises(ConfigError, match="cannot be sent"):
        local = texts(steps=(lambda record: record,))
        next(Loader(local, LanguageModel(length=9), 1).batches(workers=1))


def test_a_trainer_gets_tensors_of_the_same_batch(cached):
    loader = Loader(cached, LanguageModel(length=128), 4, pack=True)
    tensors = TensorBatches(loader).batch(3)
    assert equal({name: tensor.numpy() for name, tensor in tensors.items()}, loader.batch(3))
    assert {str(tensors[name].dtype) for name in ("inputs", "targets")} == {"torch.int64"}


def test_a_mixture_keeps_its_rates_of_examples_when_rows_hold_several(cached, tmp_path):
    short = texts("short", size=400, prepare=(*NAMED, shorten))
    write_cache(short, tmp_path, shards=1)
    mixture = TaskMixture("m", ((cached, 1.0), (CachedTask(short, tmp_path), 3.0)))
    for pack in (False, True):
        loader = Loader(mixture, LanguageModel(length=256), 16, pack=pack)
        rows = [row for step in range(60) for row in loader.rows(step)]
        counts = {
            name: sum(len(r.examples) for r in rows if r.task == name) for name in loader.rates
        }
        assert counts["short"] / counts["texts"] == pytest.approx(3, rel=0.02)


def shorten(record):
    return {"targets": record["targets"][:10]}


def test_wrong_loaders_are_refused(cached):
    model = LanguageModel(length=64)
    with pytest.raises(ConfigError, match="not cached"):
        Loader(texts(), model, 4, pack=True)
    with pytest.raises(ConfigError, match="'texts' lacks 'inputs'"):
        Loader(texts(), SequenceToSequence(inputs=5, targets=5), 4)
    with pytest.raises(ConfigError, match="batch of 0"):
        Loader(texts(), model, 0)
    loader = Loader(texts(), model, 4)
    for step, rank, world in ((-1, 0, 1), (0, 2, 2), (0, 0, 3)):
        with pytest.raises(ConfigError, match=r"for reader \d of \d with a batch of 4"):
            loader.batch(step, rank, world)
    with pytest.raises(ConfigError, match="length is 0"):
        LanguageModel(length=0)
    growing = CachedTask(texts(steps=(double,)), cached.folder)
    with pytest.raises(DataError, match="changed their length"):
        [Loader(growing, model, 4, pack=True).batch(step) for step in range(20)]


def double(record):
    return {"targets": np.tile(record["targets"], 2)}


def record(**fields):
    return {name: np.array(value, dtype=np.int32) for name, value in fields.items()}


def test_a_language_model_row_has_segments_positions_and_weights():
    made = batch(
        LanguageModel(length=6, start=9), [[record(targets=[5, 6]), record(targets=[7])], []]
    )
    assert made["inputs"].tolist() == [[9, 5, 9, 0, 0, 0], [0] * 6]
    assert made["targets"].tolist() == [[5, 6, 7, 0, 0, 0], [0] * 6]
    assert made["weights"].tolist() == [[1, 1, 1, 0, 0, 0], [0] * 6]
    assert made["segments"].tolist() == [[1, 1, 2, 0, 0, 0], [0] * 6]
    assert made["positions"].tolist() == [[0, 1, 0, 0, 0, 0], [0] * 6]
    assert batch(LanguageModel(length=2), [[record(targets=[5, 6, 7])]])["targets"].tolist() == [
        [5, 6]
    ]


def test_a_prefix_is_seen_both_ways_and_only_targets_count():
    made = batch(PrefixLanguageModel(length=6), [[record(inputs=[5, 6], targets=[7, 8])]])
    assert made["inputs"].tolist() == [[0, 5, 6, 7, 0, 0]]
    assert made["targets"].tolist() == [[5, 6, 7, 8, 0, 0]]
    assert made["weights"].tolist() == [[0, 0, 1, 1, 0, 0]]
    assert made["prefix"].tolist() == [[True, True, True, False, False, False]]


def test_encoder_and_decoder_number_segments_alike():
    rows = [[record(inputs=[5, 6, 7], targets=[8]), record(inputs=[2], targets=[3, 4])]]
    made = batch(SequenceToSequence(inputs=4, targets=3), rows)
    assert made["encoder_inputs"].tolist() == [[5, 6, 7, 2]]
    assert made["encoder_segments"].tolist() == [[1, 1, 1, 2]]
    assert made["decoder_inputs"].tolist() == [[0, 0, 3]]
    assert made["decoder_targets"].tolist() == [[8, 3, 4]]
    assert made["decoder_segments"].tolist() == [[1, 2, 2]]
    assert made["decoder_positions"].tolist() == [[0, 0, 1]]


def test_two_streams_are_packed_together(tmp_path):
    def pair(rng):
        return {
            "inputs": np.arange(3, 3 + rng.integers(1, 30)),
            "targets": np.arange(3, 3 + rng.integers(1, 12)),
        }

    task = Task(name="pairs", source=Generated(make=pair, size=300), features=PAIR)
    write_cache(task, tmp_path, shards=2)
    loader = Loader(
        CachedTask(task, tmp_path), SequenceToSequence(inputs=64, targets=32), 5, pack=True
    )
    rows = loader.packed["pairs"]
    assert sorted(np.concatenate([rows.examples(r) for r in range(len(rows))])) == list(range(300))
    made = loader.batch(0)
    assert (made["encoder_segments"].max(axis=1) == made["decoder_segments"].max(axis=1)).all()


def test_spans_are_cut_anew_at_every_pass_and_equally_by_all_readers(cached):
    steps = (functools.partial(corrupt_spans, size=BYTES.size),)
    task = texts("spans", features=PAIR, steps=steps)
    loader = Loader(task, SequenceToSequence(inputs=100, targets=60), 10)
    whole = loader.batch(3)
    halves = [loader.batch(3, rank, 2) for rank in (0, 1)]
    assert equal({key: np.concatenate([h[key] for h in halves]) for key in whole}, whole)
    assert (whole["encoder_inputs"] >= 259).any()
    long = int(np.argmax(cached.sizes("targets")))
    assert not equal(task.read(long, epoch=0), task.read(long, epoch=1))
