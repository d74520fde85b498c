"""Plans of re-ranking beyond memory, from a profile that is made by hand."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from steelyard.catalog import storage_tier
from steelyard.catalog.storage import StorageTier
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.retrieve import rerank_check
from steelyard.plan.retrieve.rerank import plan_rerank, predict_rerank
from steelyard.plan.retrieve.rerank_errors import RerankErrors
from steelyard.plan.retrieve.rerank_forecasts import rerank_forecasts
from steelyard.quantity import Check, Measurement
from steelyard.retrieve.multivector.profile import RerankProfile

SHARES, RERANKS = (0.1, 0.3, 1.0), (16, 64)


def profile(search_s=4e-3, noise=0.01):
    """A search of some seconds; 60 % and 90 % of its end are there after its two shares."""
    early = np.repeat([[0.1], [0.3], [1.0]], 20, axis=1) * search_s
    guessed = np.array([0.6, 0.9, 0.0])
    # The best are guessed: the first of the guess stay, the others fall out.
    places = np.full((3, 20, 64), -1)
    for row, share in enumerate(guessed):
        for place in range(64):
            kept = int((place + 1) * share + 0.5) > int(place * share + 0.5)
            places[row, :, place] = place if kept else -1
    return RerankProfile(
        documents=10**6,
        index_bytes=5 * 10**8,
        table_bytes=9 * 10**6,
        store_bytes=4096 * 10**6,
        document_bytes=4096.0,
        probes=128,
        k=10,
        shares=SHARES,
        reranks=RERANKS,
        early_s=early,
        beside_s=search_s - early,
        places=places,
        kept=np.array([0.97, 1.0]),
        document_s=4e-6,
        job_s=5e-5,
        start_s=3e-5,
        merge_s=1e-4,
        noise=noise,
    )


DRIVE = StorageTier(name="d", vendor="x", bytes_per_s=2**30, reads_per_s=262_144, first_byte_s=8e-5)


def test_a_latency_is_what_the_formula_says():
    found = predict_rerank(profile(), DRIVE, 0.3, 64, depth=64)
    missed = 8e-5 + 6 * 4096 / 2**30 + 4e-6
    expected = 4e-3 + 5e-5 + missed + 1e-4
    assert found.p50_s.value == pytest.approx(expected, rel=0.01)
    assert found.hit_rate == pytest.approx(58 / 64)
    assert found.reads == 64 + 6
    late = predict_rerank(profile(), DRIVE, 1.0, 64, depth=64)
    assert late.p50_s.value == pytest.approx(
        4e-3 + 5e-5 + 8e-5 + 64 * 4096 / 2**30 + 4e-6 + 1e-4, rel=0.01
    )
    assert late.reads == 64


def test_the_plan_keeps_both_limits_and_says_why_others_lost():
    found = plan_rerank(profile(), DRIVE, p95_s=0.01, recall_loss=0.005)
    assert (found.best.prefetch_step, found.best.rerank) == (0.3, 64)
    assert found.memory_bytes < found.in_memory_bytes / 5
    reasons = {(item.prefetch_step, item.rerank): why for item, why in found.others}
    assert len(reasons) == 5
    assert "loses 3.0%" in reasons[0.3, 16] and "p50 is" in reasons[1.0, 64]
    assert plan_rerank(profile(), DRIVE, p95_s=0.01, recall_loss=0.05).best.rerank == 16


def test_what_cannot_be_kept_is_refused_with_the_best_there_is():
    with pytest.raises(InfeasibleError, match="no design") as told:
        plan_rerank(profile(), DRIVE, p95_s=1e-3)
    assert "the least p95" in str(told.value.hint)
    lossy = profile()
    lossy.kept[:] = 0.9
    with pytest.raises(InfeasibleError) as told:
        plan_rerank(lossy, DRIVE, p95_s=1.0)
    assert "the least loss is 10.0%" in str(told.value.hint)
    for words in ({"p95_s": 0}, {"p95_s": 1, "recall_loss": 1}, {"p95_s": 1, "processors": 0}):
        with pytest.raises(ConfigError):
            plan_rerank(profile(), DRIVE, **words)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="unknown"):
        predict_rerank(
            profile(), storage_tier("azure-hot").__class__(name="x", vendor="y"), 0.1, 16
        )
    with pytest.raises(ConfigError, match="was not profiled"):
        predict_rerank(profile(), DRIVE, 0.2, 16)


def test_a_slow_drive_bounds_the_rate_and_a_fast_one_does_not():
    slow = predict_rerank(profile(), storage_tier("ebs-gp3"), 0.3, 64)
    assert slow.bound_by == "drive"
    # Of 64 guessed 6 are wrong, and 2 of those are not under way yet when that is known.
    assert slow.queries_per_s.value == pytest.approx(3000 / 68, rel=0.01)
    fast = predict_rerank(profile(), storage_tier("p5800x"), 0.3, 64)
    assert fast.bound_by == "processor" and fast.p50_s.value < slow.p50_s.value


def test_measured_errors_shift_forecasts_and_set_their_intervals():
    plain = predict_rerank(profile(), DRIVE, 0.3, 64).p50_s
    ranked, late = (16, 64, 256) * 2, (False,) * 3 + (True,) * 3
    close, wild = (
        RerankErrors(ranked=ranked, is_late=late, p50=ratios, p95=(1.0,) * 6)
        for ratios in ((1.00, 1.10, 1.21, 1.31, 1.43, 1.57), (0.7, 1.6, 1.1, 1.0, 0.8, 1.3))
    )
    near, far = (
        predict_rerank(profile(), DRIVE, 0.3, 64, errors=item).p50_s for item in (close, wild)
    )
    assert near.value == pytest.approx(1.10 * plain.value, rel=0.01)
    assert near.high - near.low < plain.high - plain.low < far.high - far.low
    assert close.half_width(50, 0, 0.2) > close.half_width(50, 0, 0.01)
    # Late reads have a level of their own, and a line says nothing beyond what was tried.
    assert close.scale(50, 1.0, 64) == pytest.approx(1.43, rel=0.01)
    assert close.scale(50, 0.1, 1000) == close.scale(50, 0.1, 256) == pytest.approx(1.21, rel=0.01)
    # Three designs say nothing of a spread around a line: what is assumed stays.
    few = RerankErrors(ranked=(1, 2, 3), p50=(1.1,) * 3, p95=(1.1,) * 3)
    assert few.half_width(50, 0, 0) == RerankErrors().half_width(50, 0, 0)
    assert few.scale(50, 0.1, 9) == 1


def test_drift_between_rounds_widens_intervals_as_much_as_it_should():
    ranked, level = (16, 64, 256) * 3, 1.0
    late = (False,) * 6 + (True,) * 3
    rng = np.random.default_rng(3)
    inside, count, rounds = 0, 4000, 5
    for _ in range(count):
        drifts = rng.normal(0, 0.05, rounds)
        model = rng.normal(0, 0.02, 10)
        errors = RerankErrors(
            ranked=ranked,
            is_late=late,
            p50=tuple((level * np.exp(drifts.mean() + model[:9])).tolist()),
            p95=(1.0,) * 9,
            drift=float(np.std(drifts, ddof=1)),
            rounds=rounds,
        )
        # Another round of another design.
        came = rng.normal(0, 0.05) + model[9] - np.log(errors.scale(50, 0.1, 64))
        inside += abs(came) <= errors.half_width(50, 0.0, 0.0)
    assert inside / count == pytest.approx(0.8, abs=0.03)


def test_tries_give_each_design_each_query_and_never_the_same_one_in_a_row(monkeypatch):
    asked: list[tuple[int, int]] = []

    class Reranker:
        def __init__(self, *_, rerank, **__):
            self.rerank = rerank

        def search(self, texts, *_):
            asked.append((self.rerank, int(texts[0, 0])))
            return SimpleNamespace(trace=SimpleNamespace(total_s=0.01 * (1 + self.rerank)))

    monkeypatch.setattr(rerank_check, "PrefetchedReranker", Reranker)
    monkeypatch.setattr(rerank_check, "ThrottledReader", lambda *_, **__: None)
    queries = np.arange(9, dtype=np.float32)[:, None]
    tries = rerank_check.RerankTries(
        *(profile(), None, None, queries, [queries] * 9, DRIVE),  # pyright: ignore[reportArgumentType]
        designs=[(0.1, 16), (0.3, 64), (1.0, 16), (1.0, 64)],
    )
    assert tries.errors() == RerankErrors()
    tries.round(8)
    tries.round(8)
    errors = tries.errors()
    assert errors.rounds == 2 and errors.drift == 0.0 and errors.is_late == (0, 0, 1, 1)
    assert errors.p50 == pytest.approx(0.01 * np.array([17, 65, 17, 65]) / tries.told_s)
    measured = asked[4:]
    for rank in (16, 64):
        own = [query for found, query in measured if found == rank]
        assert sorted(own) == sorted(list(range(8)) * 4)
    assert all(left[1] != right[1] for left, right in pairwise(measured))


def test_one_slow_round_of_many_is_no_drift(monkeypatch):
    slower = [1.0]

    class Reranker:
        def __init__(self, *_, **__):
            pass

        def search(self, *_):
            return SimpleNamespace(trace=SimpleNamespace(total_s=0.01 * slower[0]))

    monkeypatch.setattr(rerank_check, "PrefetchedReranker", Reranker)
    monkeypatch.setattr(rerank_check, "ThrottledReader", lambda *_, **__: None)
    queries = np.zeros((9, 1), np.float32)
    tries = rerank_check.RerankTries(
        *(profile(), None, None, queries, [queries] * 9, DRIVE),  # pyright: ignore[reportArgumentType]
        designs=[(0.1, 16), (0.3, 64)],
    )
    factors = (0.98, 1.0, 1.02, 0.99, 1.5, 1.01, 1.0, 0.97)
    for slower[0] in factors:
        tries.round()
    errors = tries.errors()
    assert 0.01 < errors.drift < 0.03 < np.std(np.log(factors)) / 3
    assert errors.p50 == pytest.approx(0.01 / tries.told_s, rel=0.01)


def test_forecasts_of_a_plan_follow_past_errors():
    about = profile()
    plan = plan_rerank(about, DRIVE, p95_s=0.01, recall_loss=0.005)
    said = {item.quantity: item for item in rerank_forecasts(plan, about, 20)}
    assert said["retrieve.rerank_p50"] == plan.best.p50_s
    memory, hits = said["retrieve.rerank_memory"], said["retrieve.rerank_hits"]
    assert memory.low < plan.memory_bytes == memory.value < memory.high
    assert hits.value == pytest.approx(58 / 64) and hits.low < hits.value < hits.high
    median = plan.best.p50_s
    past = [Check(median, Measurement(quantity=median.quantity, value=1.5 * median.value))] * 8
    wide = {item.quantity: item for item in rerank_forecasts(plan, about, 20, past)}
    assert wide[median.quantity].high == pytest.approx(1.5 * median.value)
    assert wide["retrieve.rerank_p95"] == said["retrieve.rerank_p95"]
