"""Models of traces against processes whose law is known, and traces brought to a rate."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from steelyard.errors import ConfigError, TraceError
from steelyard.serve.traces import TraceRow, make_sessions, read_rows
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.models import ArrivalModel, TraceModel, fit_arrivals, fit_trace
from steelyard.serve.traces.models.bodies import fit_lengths
from steelyard.serve.traces.models.model import is_model
from steelyard.serve.traces.resample import conversation_of, resample_rate
from steelyard.serve.traces.statistics import burstiness, prefix_sharing
from steelyard.serve.traces.statistics.sharing import prefix_hits

SHARED = (
    Path(os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
    / "data"
)
DAY_S = 86_400.0


def drawn(model, duration_s, seed=0):
    times = model.draw(np.random.default_rng(seed), duration_s)
    return times - times[0]


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_are_found_again(shape):
    model = ArrivalModel(rate_per_s=8.0, shape=shape, step_s=5.0)
    times = drawn(model, 800.0)
    assert len(times) / 800 == pytest.approx(8.0, rel=0.1)
    made, tried = fit_arrivals(times, 0.0)
    assert made.shape == pytest.approx(shape, rel=0.1)
    assert not made.daily and made.follow == pytest.approx(0.0, abs=0.12)
    assert min(item["distance"] for item in tried) < 0.03


def test_likelihood_is_that_of_the_gaps():
    from scipy.stats import gamma

    times = np.cumsum(np.random.default_rng(3).gamma(0.5, 0.4, 300))
    times -= times[0]
    model = ArrivalModel(rate_per_s=4.0, shape=0.5, step_s=7.0)
    slow = gamma(0.5, scale=1 / (0.5 * 4.0)).logpdf(np.diff(times))
    assert model.log_likelihoods(times, 0.0) == pytest.approx(slow, rel=1e-6)


def test_a_rate_by_time_of_day_and_one_that_follows_itself_are_told_apart():
    hours = np.arange(48)
    daily = tuple((1 + 0.9 * np.sin(2 * np.pi * hours / 48)).tolist())
    day = ArrivalModel(rate_per_s=0.05, daily=daily, step_s=600.0)
    made, _ = fit_arrivals(drawn(day, 6 * DAY_S), 0.0)
    assert np.corrcoef(made.daily, daily)[0, 1] > 0.97
    loose = ArrivalModel(rate_per_s=6.0, step_s=5.0, follow=0.3, keep=0.65)
    again, tried = fit_arrivals(drawn(loose, 4000.0), 0.0)
    assert again.follow > 0.15 and again.follow + again.keep > 0.8
    best = max(tried, key=lambda item: item["gain"])
    assert "follows itself" in best["model"] and best["gain"] > 2 * best["error"]
    windows = burstiness(drawn(loose, 4000.0)).windows
    assert windows[2].dispersion > 3


def test_rounded_arrivals_are_not_taken_for_bursts():
    times = drawn(ArrivalModel(rate_per_s=4.0, step_s=8.0), 3000.0)
    rounded = np.floor(times / 3.0) * 3.0
    assert burstiness(rounded).cv > 2
    made, _ = fit_arrivals(rounded, 0.0)
    assert made.shape == pytest.approx(1.0, abs=0.12)


def test_pairs_of_lengths_are_kept_where_they_go_together():
    rng = np.random.default_rng(0)
    inputs = np.exp(rng.normal(6, 1, 6000)).astype(int) + 1
    for outputs, is_paired in ((inputs // 3 + 1, True), (rng.permutation(inputs) // 3 + 1, False)):
        model, tried = fit_lengths(inputs, outputs, 4000)
        assert (model.alone < 0.5) == is_paired
        one, other = model.draw(rng, 20_000)
        for made, real in ((one, inputs), (other, outputs)):
            assert np.quantile(made, [0.5, 0.95]) == pytest.approx(
                np.quantile(real, [0.5, 0.95]), rel=0.06
            )
        assert np.corrcoef(one, other)[0, 1] > 0.8 or not is_paired
        assert max(item["log_likelihood"] for item in tried) > -10


def test_conversations_are_drawn_whole(tmp_path):
    base = [TraceRow(arrival_s=0.0, input_tokens=20, output_tokens=30)]
    rows = make_sessions(base, np.random.default_rng(0), num_sessions=600, rate_per_s=0.5)
    model = fit_trace(TraceColumns.of(rows), source="made")
    model.save(tmp_path / "m.json")
    assert is_model(tmp_path / "m.json")
    again = TraceModel.load(tmp_path / "m.json")
    made = again.draw(np.random.default_rng(1), duration_s=2000.0)
    assert made == model.draw(np.random.default_rng(1), duration_s=2000.0)
    assert len(made) / 2000 == pytest.approx(model.rate_per_s, rel=0.2)
    turns = {}
    for row in made:
        turns.setdefault(row.session, []).append(row)
    for name, items in turns.items():
        assert not name or all(b.input_tokens > a.input_tokens for a, b in pairwise(items))


def test_clients_keep_their_shares_and_habits():
    rng = np.random.default_rng(0)
    rows = [
        TraceRow(arrival_s=float(at_s), input_tokens=size, output_tokens=5, client=name)
        for name, rate, shape, size in (("even", 3.0, 4.0, 100), ("wild", 1.0, 0.1, 900))
        for at_s in drawn(ArrivalModel(rate_per_s=rate, shape=shape, step_s=10.0), 1500.0, size)
    ]
    rows.sort(key=lambda row: row.arrival_s)
    made = fit_trace(TraceColumns.of(rows)).draw(rng, duration_s=3000.0, rate_per_s=8.0)
    assert len(made) / 3000 == pytest.approx(8.0, rel=0.15)
    wild = [row for row in made if row.client == "wild"]
    assert len(wild) / len(made) == pytest.approx(0.25, abs=0.06)
    assert {row.input_tokens for row in wild} == {900}
    gaps = np.diff([row.arrival_s for row in wild])
    assert gaps.std() / gaps.mean() > 2


@pytest.mark.skipif(not (SHARED / "llm-traces").is_dir(), reason="needs shared/data/llm-traces")
def test_a_model_of_real_conversations_shares_as_much():
    path = SHARED / "llm-traces/mooncake_conversation.jsonl.gz"
    columns = TraceColumns.of(read_rows(path)).part(0, 3000)
    made = fit_trace(columns).draw(np.random.default_rng(0), duration_s=columns.span_s)
    # the model is of a warm cache, so the beginning of both is left out
    shares = []
    for item in (columns, TraceColumns.of(made)):
        late = slice(len(item.client) // 3, None)
        hits, total = prefix_hits(item), item.input_tokens[late].sum()
        shares.append([hits.hit_tokens(size, late) / total for size in (3e6, 1e7, np.inf)])
    assert shares[0] == pytest.approx(shares[1], abs=0.06)


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5])
def test_conversations_stay_whole_at_any_rate(factor):
    base = [TraceRow(arrival_s=0.0, input_tokens=20, output_tokens=30)]
    rows = make_sessions(base, np.random.default_rng(0), num_sessions=900, rate_per_s=1.0)
    columns = TraceColumns.of(rows)
    rate = factor * (len(rows) - 1) / columns.span_s
    made = resample_rate(columns, np.random.default_rng(1), rate_per_s=rate)
    assert len(made) == pytest.approx(factor * len(rows), rel=0.1)
    whole = {}
    for row in rows:
        whole.setdefault(row.session, []).append(row.input_tokens)
    found = {}
    for row in made:
        found.setdefault(row.session, []).append(row.input_tokens)
    for name, sizes in found.items():
        # a copy's conversation may reach past the end of the trace
        assert whole[name.partition("+")[0]][: len(sizes)] == sizes
    assert [row.arrival_s for row in made] == sorted(row.arrival_s for row in made)


def test_prompts_of_copies_share_only_what_belongs_to_the_service():
    # block 0 begins all prompts; conversations of three turns go on from there
    rows = [
        TraceRow(
            arrival_s=float(3 * talk + turn),
            input_tokens=16 * (turn + 2),
            output_tokens=4,
            hash_ids=(0, *(1 + 3 * talk + place for place in range(turn + 1))),
            block_tokens=16,
        )
        for talk in range(300)
        for turn in range(3)
    ]
    columns = TraceColumns.of(rows)
    assert np.array_equal(conversation_of(columns), np.repeat(np.arange(300), 3))
    half = TraceColumns.of(resample_rate(columns, np.random.default_rng(0), rate_per_s=0.5))
    double = TraceColumns.of(resample_rate(columns, np.random.default_rng(0), rate_per_s=2.0))
    shares = [prefix_sharing(item, ()).unbounded for item in (columns, half, double)]
    assert shares == pytest.approx([shares[0]] * 3, abs=0.01)
    assert np.all(prefix_hits(double).depth[1:] >= 1)


def test_a_week_keeps_its_days_at_any_rate():
    daily = tuple(np.where(np.arange(48) // 16 == 1, 2.5, 0.25).tolist())
    times = drawn(ArrivalModel(rate_per_s=0.02, daily=daily, step_s=900.0), 4 * DAY_S)
    rows = [TraceRow(arrival_s=float(at), input_tokens=5, output_tokens=5) for at in times]
    columns = TraceColumns.of(rows)
    for rate in (0.008, 0.05):
        made = TraceColumns.of(resample_rate(columns, np.random.default_rng(0), rate_per_s=rate))
        assert len(made.client) / columns.span_s == pytest.approx(rate, rel=0.1)
        shapes = [burstiness(item.arrival_s, 0.0).day.hourly for item in (columns, made)]
        assert np.corrcoef(*shapes)[0, 1] > 0.95


def test_what_cannot_be_fitted_or_scaled_is_refused():
    rows = [TraceRow(arrival_s=0.0, input_tokens=5, output_tokens=5)] * 3
    columns = TraceColumns.of(rows)
    with pytest.raises(TraceError, match="all requests arrive at once"):
        fit_trace(columns)
    with pytest.raises(ConfigError, match="cannot bring a trace of 0 s"):
        resample_rate(columns, np.random.default_rng(0), rate_per_s=1.0)
    two = TraceColumns.of([rows[0], TraceRow(arrival_s=1.0, input_tokens=5, output_tokens=5)])
    for rate, duration_s in ((0.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)):
        with pytest.raises(ConfigError, match="cannot generate"):
            fit_trace(two).draw(np.random.default_rng(0), duration_s=duration_s, rate_per_s=rate)
