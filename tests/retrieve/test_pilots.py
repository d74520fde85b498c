"""Pilots of builds: what they stand for, work without other programs' time, samples of tables."""

import json
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from steelyard.cost.vector_search import IndexShape, adding_work, build_work, training_work
from steelyard.data.sources import TextFile
from steelyard.quantity import Check, Measurement
from steelyard.retrieve import IVFPQ, IVFFlat, work_clock
from steelyard.retrieve.build_picture import probes_around, settings_chart, ways_chart
from steelyard.retrieve.corpus.files import count_rows
from steelyard.retrieve.corpus.pilot import forecast_corpus
from steelyard.retrieve.corpus.sampling import sample_passages
from steelyard.retrieve.corpus.trial import CorpusTrial
from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.retrieve.forecasts import BuildFigures, angle_of, forecast_of, share_at
from steelyard.retrieve.text.encoder import LatentEncoder
from steelyard.retrieve.text.fusion import Fusion
from steelyard.retrieve.text.lexical import BM25Index
from steelyard.retrieve.vector_pilot import (
    SearchSetting,
    VectorPilot,
    measure_vectors,
    try_settings,
)
from steelyard.retrieve.work_clock import WorkClock, fastest, free_threads

RNG = np.random.default_rng(5)
WORDS = [f"word{number}" for number in range(300)]
TEXTS = [
    ". ".join(" ".join(RNG.choice(WORDS, 8)).capitalize() for _ in range(4)) for _ in range(120)
]


def _vectors(count: int) -> np.ndarray:
    middles = RNG.normal(size=(30, 16)) * 2
    return (middles[RNG.integers(0, 30, count)] + RNG.normal(size=(count, 16))).astype(np.float32)


def test_waiting_is_no_work() -> None:
    clock = WorkClock()
    time.sleep(0.1)
    assert clock.read_s() < 0.1
    took_s, found = fastest(lambda: sum(range(1000)))
    assert took_s >= 0 and found == 499_500


def test_short_work_is_repeated_and_long_work_is_done_twice(monkeypatch) -> None:
    done: list[float] = []
    monkeypatch.setattr(work_clock.time, "perf_counter", lambda: 0.04 * len(done))
    fastest(lambda: done.append(0.0))
    assert len(done) == 3
    done.clear()
    monkeypatch.setattr(work_clock.time, "perf_counter", lambda: 10.0 * len(done))
    fastest(lambda: done.append(0.0))
    assert len(done) == 2


@pytest.mark.parametrize(("share", "threads"), [(2.0, 2), (1.8, 2), (1.3, 1), (1.0, 1), (0.2, 1)])
def test_threads_that_wait_for_a_processor_are_not_used(monkeypatch, share, threads) -> None:
    clocks = iter(range(1000))

    def now() -> float:
        # Every look at a clock takes a second: one between those at this one, three at the other.
        return float(next(clocks))

    monkeypatch.setattr(work_clock, "_spin", lambda _: None)
    monkeypatch.setattr(work_clock.time, "perf_counter", now)
    monkeypatch.setattr(work_clock.time, "process_time", lambda: share * next(clocks) / 3)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with free_threads() as found:
            assert found == threads == torch.get_num_threads()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_pilot_is_searched_as_the_index_will_be() -> None:
    rows = _vectors(4000)
    index = IVFFlat(16, nlist=120, nprobe=4)
    pilot = VectorPilot(index, rows, seed=3)
    assert not len(index)
    index.train(rows)
    index.add(rows)
    came = measure_vectors(index, rows, 1.0, seed=3)
    assert pilot.figures.memory_bytes == pytest.approx(came.memory_bytes, rel=0.01)
    assert pilot.figures.recall == pytest.approx(came.recall, abs=0.1)
    assert pilot.figures.forecaster == "retrieve.build"
    settings = try_settings(index, rows, [1, 120], seed=3)
    assert settings[0].recall < settings[1].recall == 1.0
    said = pilot.settings([1, 120])
    assert [item.nprobe for item in said] == [1, 120]
    assert said[0].recall == pytest.approx(settings[0].recall, abs=0.2)


@pytest.mark.parametrize("count", [40, 300, 900])
def test_small_sets_are_forecast_too(count: int) -> None:
    rows = _vectors(count)
    index = IVFFlat(16, nlist=min(round(4 * count**0.5), count))
    assert VectorPilot(index, rows).figures.build_s > 0
    exact = VectorPilot(IVFFlat(16), rows).figures
    assert exact.is_exact and "retrieve.recall" not in exact.values()
    assert exact.forecaster == "retrieve.build.exact"
    if count >= 300:
        assert VectorPilot(IVFPQ(16, nlist=8, parts=4), rows).figures.recall > 0


def test_training_and_adding_are_the_build() -> None:
    shape = IndexShape(kind="ivfpq", num_vectors=9000, dim=32, nlist=100, parts=8, rotate=True)
    parts = [training_work(shape, 9000), adding_work(shape)]
    whole = build_work(shape)
    assert {name: parts[0][name] + parts[1][name] for name in whole} == whole
    # 12 passes over at most 64 vectors a cell, one to add all, and one for residuals.
    assert whole["assign"] == (12 * 6400 + 9000 + 9000) * 100 * 32
    assert whole["rows"] == 9000 * 32


def test_intervals_of_recalls_stay_shares_and_follow_the_past() -> None:
    assert share_at(angle_of(0.3)) == pytest.approx(0.3)
    for value in (0.0, 0.02, 0.5, 0.999, 1.0):
        said = forecast_of("retrieve.recall", value, [])
        assert 0 <= said.low <= said.value <= said.high <= 1
    said = forecast_of("retrieve.recall", 0.5, [])
    past = [Check(said, Measurement(quantity="retrieve.recall", value=0.9))] * 10
    wide = forecast_of("retrieve.recall", 0.5, past)
    assert wide.high == pytest.approx(0.9) and wide.low == pytest.approx(0.1)
    figures = BuildFigures(build_s=1, memory_bytes=2, p50_s=3, p95_s=4, rate_per_s=5)
    assert {item.quantity for item in figures.forecasts()} == set(figures.values())


@pytest.mark.parametrize("times", [1, 3, 2.4])
def test_lists_laid_side_by_side_are_those_of_repeated_passages(times: float) -> None:
    raw = [text.encode() for text in TEXTS[:50]]
    size = round(50 * times)
    tiled = BM25Index.build(raw).tiled(size)
    slow = BM25Index.build([raw[number % 50] for number in range(size)])
    assert len(tiled) == size
    assert tiled.memory_bytes() == slow.memory_bytes()
    query = " ".join(TEXTS[7].split()[:5])
    found, expected = (item.search([query], size).ids[0] for item in (tiled, slow))
    assert set(found.tolist()) == set(expected.tolist())
    assert {7, 7 + 50} & set(found[: 2 * round(times)].tolist())


@pytest.mark.parametrize("kind", ["hybrid", "flat", "bm25", "ivf"])
def test_a_trial_grows_to_the_size_of_the_index(kind: str) -> None:
    shape = StoreShape.named(kind)
    encoder = LatentEncoder.fit(TEXTS, 8) if shape.vectors else None
    trial = CorpusTrial(TEXTS, shape, encoder)
    search = trial.grown(500)
    assert {len(part) for part in (*search.shards, search.words) if part is not None} == {500}
    hits = search.hits([TEXTS[3]], 5)
    assert hits.ids[0, 0] % len(TEXTS) == 3
    assert set(search.ways()) == ({"words", "vectors"} if kind == "hybrid" else set())
    same = trial.grown(len(TEXTS))
    own = trial.memory_bytes(same, len(TEXTS), 0.6)
    assert trial.memory_bytes(search, 500, 0.6) > 3 * own


def _file(path: Path) -> TextFile:
    return TextFile(path=path, size_bytes=path.stat().st_size, modified_ns=0)


def _rows(path: Path, count: int) -> None:
    texts = [TEXTS[number % len(TEXTS)] for number in range(count)]
    if path.suffix == ".parquet":
        pl.DataFrame({"text": texts}).write_parquet(path)
    else:
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_a_long_table_is_read_in_part_and_counted_whole(tmp_path: Path, name: str) -> None:
    _rows(tmp_path / name, 9000)
    sample = sample_passages([_file(tmp_path / name)], 64, "")
    assert sample is not None
    assert len(sample.texts) < 4000
    assert sample.passages == pytest.approx(9000, rel=0.01)


def test_rows_are_counted_without_reading_them(tmp_path: Path) -> None:
    for name, text in (("a.jsonl", "{}\n{}\n"), ("b.txt", "one\ntwo\n"), ("c.parquet", "broken")):
        (tmp_path / name).write_text(text)
    assert [count_rows(_file(path)) for path in sorted(tmp_path.iterdir())] == [2, 0, 0]


def test_a_forecast_tells_its_stages() -> None:
    class Sample:
        texts, read_s, passages, scale = TEXTS, 0.01, 240.0, 2.0

    told = forecast_corpus(Sample(), StoreShape.named("hybrid"), 8, 10_000)  # pyright: ignore[reportArgumentType]
    assert set(told.stage_s) == {"read", "fit", "index", "weigh"}
    assert told.figures.build_s == pytest.approx(sum(told.stage_s.values()))
    assert set(told.figures.ways_s) == {"words", "vectors", "words + vectors"}
    assert told.figures.forecaster == "retrieve.build.texts"


def test_pictures_show_each_setting_as_forecast_and_as_measured() -> None:
    said = [SearchSetting(nprobe=n, recall=n / 9, query_s=1e-3 * n) for n in (1, 8)]
    came = [SearchSetting(nprobe=n, recall=n / 10, query_s=2e-3 * n) for n in (1, 8)]
    assert probes_around(2, 9) == [1, 2, 4, 8, 9] and probes_around(1, 1) == [1]
    (rows,) = settings_chart("ivf", said, came, 8)["datasets"].values()
    assert len(rows) == 4
    assert [(row["found"], row["rate"]) for row in rows if row["is_chosen"] and row["is_measured"]]
    assert {row["setting"] for row in rows} == {"1 cell", "8 cells"}
    chosen = Fusion("weighted", 0.3)
    found = [(Fusion("weighted", 0.0), 0.5), (chosen, 0.7), (Fusion("ranks"), 0.6)]
    seconds = {"words": 1e-3, "vectors": 2e-3, "words + vectors": 3e-3}
    (rows,) = ways_chart(found, chosen, seconds, seconds)["datasets"].values()
    assert len(rows) == 6
    assert {row["index"] for row in rows} == {"words", "words + vectors"}
    assert [row["found"] for row in rows if row["is_chosen"]] == [0.7, 0.7]
