import gzip
import os
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, TraceError
from steelyard.serve.traces import (
    ClientStatistics,
    LengthStatistics,
    PromptMaker,
    TraceRow,
    client_mix,
    draw_arrivals,
    load_rows,
    load_trace,
    make_sessions,
    rate_of,
    read_clients,
    read_rows,
    rescale_rate,
    scale_lengths,
    with_prompts,
)

SHARED = (
    Path(os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
    / "data"
)
needs_traces = pytest.mark.skipif(
    not (SHARED / "llm-traces").is_dir(), reason="needs shared/data/llm-traces"
)
needs_clients = pytest.mark.skipif(
    not (SHARED / "llm-clients").is_dir(), reason="needs shared/data/llm-clients"
)


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def row(arrival_s=0.0, inputs=8, outputs=4, **more):
    return TraceRow(arrival_s=arrival_s, input_tokens=inputs, output_tokens=outputs, **more)


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
FORMATS = {
    "ours.csv": "arrival_s,prompt_tokens,output_tokens,client\n0.25,3,2,a\n0.5,4,1,\n",
    "azure.csv.gz": "arrival_s,input_tokens,output_tokens\n0.25,3,2\n0.5,4,1\n",
    "raw.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 "
    "18:15:46.6805900,3,2\n2023-11-16 18:15:47.1805900,4,1\n",
    "lengths.csv": "input_tokens,output_tokens\n3,2\n4,1\n",
    "burst.csv": BURST + "0.25,ChatGPT,3,2,5,Conversation log\n0.5,GPT-4,4,1,5,API log\n",
    "mooncake.jsonl": '{"timestamp":250,"input_length":3,"output_length":2,"hash_ids":[7]}\n'
    '{"timestamp":500,"input_length":4,"output_length":1,"hash_ids":[8]}\n\n',
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_told_by_content(name, tmp_path):
    # a name without an ending must do as well
    path = write(tmp_path / name, FORMATS[name]).rename(tmp_path / "trace")
    rows = list(read_rows(path))
    assert [(item.input_tokens, item.output_tokens) for item in rows] == [(3, 2), (4, 1)]
    expected = {"raw.csv": [0.0, 0.5], "lengths.csv": [0.0, 0.0]}.get(name, [0.25, 0.5])
    assert [item.arrival_s for item in rows] == pytest.approx(expected, abs=1e-4)
    if name == "burst.csv":
        assert [item.client for item in rows] == ["ChatGPT, Conversation log", "GPT-4, API log"]
    if name == "ours.csv":
        assert [item.client for item in rows] == ["a", "default"]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "no column"),
        ("arrival_s,input_tokens,output_tokens\n", "no rows"),
        ("arrival_s,input_tokens\n1,2\n", "no column 'output_tokens'"),
        ("arrival_s,input_tokens,output_tokens\n0,1,1\nx,1,1\n", "line 3: arrival_s is 'x'"),
        ("arrival_s,input_tokens,output_tokens\nnan,1,1\n", "line 2: arrival_s is nan"),
        ("arrival_s,input_tokens,output_tokens\n-1,1,1\n", "line 2: arrival_s is -1.0"),
        ("arrival_s,input_tokens,output_tokens\n0,0,1\n", "line 2: input_tokens is 0"),
        ("arrival_s,input_tokens,output_tokens\n0,1,1.5\n", "line 2: output_tokens is '1.5'"),
        ("arrival_s,input_tokens,output_tokens\n0,1\n", "line 2: output_tokens is None"),
        ("input_lo,input_hi,output_lo,output_hi,count\n1,2,1,2,5\n", "statistics, not requests"),
        ('{"timestamp":0,"input_length":5}\n', "line 1: .*output_length"),
        ('{"timestamp":0,"input_length":5,"output_length":1}\n{"timestamp":', "line 2"),
        (
            '{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1]}\n',
            "line 1: hash_ids is 1",
        ),
        (
            '{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[-1]}\n',
            "line 1: hash_ids is -1",
        ),
        ('{"timestamp":-1,"input_length":5,"output_length":1}\n', "line 1: timestamp is -1"),
        (
            "arrival_s,input_tokens,output_tokens\n2,1,1\n1,1,1\n",
            "line 3: arrival_s is 1 s, before",
        ),
        ("arrival_ms,input_tokens,output_tokens\n2,1,1\n", "line 1: .* arrival_ms"),
        ("arrival_s,TIMESTAMP,input_tokens,output_tokens\n2,1,1,1\n", "line 1: .* TIMESTAMP"),
        ("arrival_s,input_tokens,output_tokens\n1.7e12,1,1\n", "line 2: arrival_s is 1.7e.12 s"),
        ("TIMESTAMP,input_tokens,output_tokens\n12.5,1,1\n", "line 2: TIMESTAMP is '12.5'"),
        ("id,input_tokens,output_tokens\na,1,1\na,1,1\n", "line 3: id 'a' was there before"),
        (
            '{"timestamp":9,"input_length":5,"output_length":1}\n'
            '{"timestamp":8,"input_length":5,"output_length":1}\n',
            "line 2: timestamp is 0.008 s, before",
        ),
        (
            '{"timestamp":1,"input_length":5,"output_length":1,"id":7}\n'
            '{"timestamp":1,"input_length":5,"output_length":1,"id":7}\n',
            "line 2: id '7'",
        ),
        (
            BURST + "5,ChatGPT,9,0,9,API log\n",
            "line 2: Response tokens is 0: a request that failed",
        ),
        (BURST + "5,ChatGPT,9,1,11,API log\n", "line 2: Total tokens is 11, but .* make 10"),
        (BURST + "5,ChatGPT,9,1,ten,API log\n", "line 2: Total tokens is 'ten'"),
    ],
)
def test_errors_name_file_row_and_field(text, where, tmp_path):
    with pytest.raises(TraceError, match=where) as caught:
        list(read_rows(write(tmp_path / "bad", text)))
    assert str(tmp_path / "bad") in str(caught.value)


def times_as_text(times):
    return "arrival_s,input_tokens,output_tokens\n" + "".join(f"{at:.6g},1,1\n" for at in times)


@pytest.mark.parametrize("seed", range(6))
def test_a_change_from_seconds_to_milliseconds_is_found_at_its_row(seed, tmp_path):
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.gamma(0.5, 2.0, 60))
    place = int(rng.integers(10, 55))
    mixed = np.where(np.arange(60) < place, times, times * 1000)
    with pytest.raises(TraceError, match=f"line {place + 2}: .*milliseconds|times as long"):
        list(read_rows(write(tmp_path / "mixed.csv", times_as_text(mixed))))
    # one row alone among the others comes before its neighbour
    single = times.copy()
    single[place] *= 1000
    with pytest.raises(TraceError, match=f"line {place + 3}: .* before") as caught:
        list(read_rows(write(tmp_path / "single.csv", times_as_text(single))))
    assert "milliseconds" in caught.value.hint


@pytest.mark.parametrize("pause_s", [2000.0, 90_000.0, 500_000.0])
def test_long_pauses_are_no_change_of_unit(pause_s):
    from steelyard.serve.traces.order import RowOrder

    order = RowOrder("arrival_s")
    # gaps after the pause are as they were before it
    for at_s in np.cumsum([1.0] * 12 + [pause_s] + [1.0] * 12):
        order.see(float(at_s), "row")
    order.end()


def test_burst_conversations_know_how_long_their_sender_thought(tmp_path):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n10,7,4,GPT-4,5,2,7,Conversation log\n11,,,GPT-4,5,2,7,API log\n"
        "20,7,3,GPT-4,9,2,11,Conversation log\n"
    )
    rows = list(read_rows(write(tmp_path / "v12.csv", text)))
    assert [(item.session, item.think_s) for item in rows] == [("7", 0.0), ("", 0.0), ("7", 6.0)]


def test_unreadable_files_are_refused(tmp_path):
    (tmp_path / "cut.gz").write_bytes(
        gzip.compress(b"input_tokens,output_tokens\n" + b"1,2\n" * 9999)[:40]
    )
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("absent", "cut.gz", "binary", "."):
        with pytest.raises(TraceError, match=r"cannot read|no column"):
            list(read_rows(tmp_path / name))


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "long.csv", "input_tokens,output_tokens\n1,1\n2,2\nbad,1\n")
    assert [item.input_tokens for item in islice(read_rows(path), 2)] == [1, 2]
    assert len(load_rows(path, np.random.default_rng(0), limit=2)) == 2


def test_load_rows_scales_and_sets_the_rate(tmp_path):
    azure = write(
        tmp_path / "azure.csv", "arrival_s,input_tokens,output_tokens\n1,16,8\n5,8,8\n9,80,1\n"
    )
    rows = load_rows(azure, np.random.default_rng(0), scale=1 / 8, rate_per_s=1.0)
    assert [(item.arrival_s, item.input_tokens, item.output_tokens) for item in rows] == [
        (0.0, 2, 1),
        (1.0, 1, 1),
        (2.0, 10, 1),
    ]
    lengths = write(tmp_path / "lengths.csv", "input_tokens,output_tokens\n" + "1,1\n" * 4000)
    drawn = load_rows(lengths, np.random.default_rng(0), rate_per_s=4.0)
    gaps = np.diff([item.arrival_s for item in drawn])
    assert rate_of(drawn) == pytest.approx(4.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)
    assert {item.arrival_s for item in load_rows(lengths, np.random.default_rng(0))} == {0.0}


def test_bursts_and_metronome():
    rows = [row() for _ in range(4000)]
    for burstiness, cv in ((0.25, 2.0), (4.0, 0.5), (float("inf"), 0.0)):
        gaps = np.diff(
            [
                item.arrival_s
                for item in draw_arrivals(
                    rows, np.random.default_rng(1), rate_per_s=10.0, burstiness=burstiness
                )
            ]
        )
        assert gaps.mean() == pytest.approx(0.1, rel=0.1)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-9)
    for bad in (
        {"rate_per_s": 0.0},
        {"rate_per_s": 1.0, "burstiness": 0.0},
        {"rate_per_s": float("nan")},
    ):
        with pytest.raises(ConfigError):
            draw_arrivals(rows, np.random.default_rng(1), **bad)
    assert draw_arrivals([], np.random.default_rng(1), rate_per_s=1.0) == []


def test_rescaling_refuses_what_has_no_rate():
    with pytest.raises(TraceError, match="all requests of the trace arrive at once"):
        rescale_rate([row(), row()], 1.0)
    with pytest.raises(ConfigError):
        rescale_rate([row(), row(1.0)], 0.0)
    with pytest.raises(ConfigError):
        list(scale_lengths([row()], 0.0))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2000), st.sampled_from([1.0, 0.5, 1 / 8, 1 / 600, 3.0]), st.integers(0, 3))
def test_scaled_prompts_share_what_they_shared(size, factor, common):
    blocks = -(-size // 512)
    one = row(inputs=size, hash_ids=tuple(range(blocks)))
    two = row(
        inputs=size,
        hash_ids=tuple(index if index < common else 100 + index for index in range(blocks)),
    )
    maker = PromptMaker(3, 50_000)
    small, other = (
        maker.tokens(item, index) for index, item in enumerate(scale_lengths([one, two], factor))
    )
    assert (
        len(small)
        == len(other)
        == max(1, min(round(size * factor), blocks * max(1, round(512 * factor))))
    )
    shared = min(common * max(1, round(512 * factor)), len(small))
    assert small[:shared] == other[:shared]
    if shared + 4 < len(small):
        assert small[shared:] != other[shared:]


def test_prompts_depend_on_seed_and_row_only():
    rows = [
        row(),
        row(inputs=5, session="a"),
        row(inputs=9, session="a"),
        row(inputs=600, hash_ids=(4, 5)),
        row(),
    ]
    first = [item.prompt for item in with_prompts(rows, np.random.default_rng(1), vocab_size=1000)]
    again = [item.prompt for item in with_prompts(rows, np.random.default_rng(1), vocab_size=1000)]
    other = [item.prompt for item in with_prompts(rows, np.random.default_rng(2), vocab_size=1000)]
    assert first == again != other
    assert first[2][:5] == first[1] and first[0] != first[4]
    assert [len(prompt) for prompt in first] == [8, 5, 9, 600, 8]
    assert min(map(min, first)) >= 0 and max(map(max, first)) < 1000
    maker = PromptMaker(7, 50)
    assert maker.tokens(rows[3], 99) == maker.tokens(rows[3], 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 400), st.integers(1, 400))
def test_session_streams_grow_by_prefix(seed, short, extra):
    maker = PromptMaker(seed, 97)
    assert maker.tokens(row(inputs=short + extra, session="s"), 0)[:short] == maker.tokens(
        row(inputs=short, session="s"), 1
    )


def test_sessions_grow_and_keep_their_limits():
    lengths = [row(inputs=size, outputs=answer) for size, answer in ((20, 30), (5, 60), (700, 900))]
    rows = make_sessions(
        lengths[:2],
        np.random.default_rng(0),
        num_sessions=800,
        rate_per_s=2.0,
        mean_think_s=3.0,
        max_tokens=10**6,
    )
    turns = {}
    for item in rows:
        turns.setdefault(item.session, []).append(item)
    assert len(turns) == 800
    assert np.mean([len(items) for items in turns.values()]) == pytest.approx(5.5, rel=0.08)
    assert np.mean([item.think_s for item in rows if item.think_s]) == pytest.approx(3.0, rel=0.05)
    for items in turns.values():
        assert items[0].think_s == 0.0
        for before, after in pairwise(items):
            assert after.input_tokens > before.input_tokens + before.output_tokens
            assert after.arrival_s == pytest.approx(before.arrival_s + after.think_s)
    assert [item.arrival_s for item in rows] == sorted(item.arrival_s for item in rows)
    short = make_sessions(
        lengths, np.random.default_rng(0), num_sessions=200, rate_per_s=2.0, max_tokens=256
    )
    assert max(item.input_tokens + item.output_tokens for item in short) <= 256
    with pytest.raises(ConfigError):
        make_sessions([], np.random.default_rng(0), num_sessions=1, rate_per_s=1.0)


def test_lengths_follow_their_statistics():
    for mean, quantiles in (
        (227.6, (57, 996, 1261, 2023)),
        (373.5, (416, 584, 767, 899)),
        (6.66, (3, 11, 21, 95)),
        (19.0, (19, 20, 20, 21)),
    ):
        drawn = LengthStatistics(mean, quantiles).draw(np.random.default_rng(0), 40_000)
        assert drawn.min() >= 1
        assert np.quantile(drawn, [0.5, 0.9, 0.95, 0.99]) == pytest.approx(
            quantiles, rel=0.08, abs=1.0
        )
        assert drawn.mean() == pytest.approx(mean, rel=0.1, abs=0.6)


@pytest.mark.parametrize("family", ["Gamma", "Weibull"])
@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_renewal_processes_have_rate_and_variation(family, cv):
    client = ClientStatistics(client="a", rate_per_s=50.0, cv=cv, family=family)
    times = client.arrivals(np.random.default_rng(0), 1000.0)
    gaps = np.diff(times)
    assert len(times) == pytest.approx(50_000, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    counts = [len(client.arrivals(np.random.default_rng(seed), 0.1)) for seed in range(2000)]
    assert np.mean(counts) == pytest.approx(5.0, rel=0.1)  # no start-up bias, however bursty


CLIENTS = (
    "client,mean_rate_rps,mean_cv,arrival_family,input_tokens_mean,input_tokens_p50,input_tokens_p90,input_tokens_p95,input_tokens_p99,"
    "output_tokens_mean,output_tokens_p50,output_tokens_p90,output_tokens_p95,output_tokens_p99\n"
)


def test_client_mix_borrows_lengths_and_scales_rates(tmp_path):
    text = (
        CLIENTS + "big,30,2,Gamma,,,,,,,,,,\nmid,9,1,Weibull,10,10,10,10,10,5,5,5,5,5\n"
        "low,1,1,Gamma,900,900,900,900,900,1,1,1,1,1\noff,0,1,Gamma,,,,,,,,,,\n"
    )
    clients = read_clients(write(tmp_path / "clients.csv", text))
    assert [item.client for item in clients] == ["big", "mid", "low"]
    rows = client_mix(clients, np.random.default_rng(0), duration_s=2000.0, rate_per_s=4.0)
    assert len(rows) / 2000 == pytest.approx(4.0, rel=0.1)
    share = {
        name: np.mean([item.client == name for item in rows]) for name in ("big", "mid", "low")
    }
    assert share["big"] == pytest.approx(0.75, abs=0.05)
    assert {item.input_tokens for item in rows if item.client == "big"} == {10}
    assert [item.arrival_s for item in rows] == sorted(item.arrival_s for item in rows)
    with pytest.raises(ConfigError):
        client_mix(clients, np.random.default_rng(0), duration_s=0.0)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("client\na\n", "no column 'mean_rate_rps'"),
        (CLIENTS + "a,x,1,Gamma,,,,,,,,,,\n", "line 2: mean_rate_rps is 'x'"),
        (CLIENTS + "a,1,1,Pareto,,,,,,,,,,\n", "line 2: arrival_family is 'Pareto'"),
        (CLIENTS + "a,1,1,Gamma,,,,,,,,,,\n", "no client with known lengths"),
        (CLIENTS + "a,1,1,Gamma,-4,1,1,1,1,,,,,\n", "line 2: input_tokens_mean is -4"),
    ],
)
def test_client_tables_are_checked(text, where, tmp_path):
    with pytest.raises(TraceError, match=where):
        read_clients(write(tmp_path / "clients.csv", text))


# Figures of the data sets' own tables (README of llm-traces): mean, p50, p95, max of inputs, then
# of outputs.
GOLDEN = {
    "azure2023_conv.csv.gz": (19_366, 5.53, (1154.7, 1020, 4083, 14050), (211.1, 129, 451, 1000)),
    "mooncake_conversation.jsonl.gz": (
        12_031,
        3.40,
        (12035, 6909, 39549, 126_195),
        (342.6, 350, 698, 2000),
    ),
    "mooncake_synthetic.jsonl.gz": (
        3_993,
        3.91,
        (15325, 11587, 48835, 191_000),
        (149.1, 69, 519, 893),
    ),
}


@needs_traces
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_traces(name):
    count, rate, inputs, outputs = GOLDEN[name]
    rows = list(read_rows(SHARED / "llm-traces" / name))
    assert len(rows) == count
    assert rate_of(rows) == pytest.approx(rate, abs=0.006)
    for values, golden in (
        ([item.input_tokens for item in rows], inputs),
        ([item.output_tokens for item in rows], outputs),
    ):
        found = (np.mean(values), np.median(values), np.quantile(values, 0.95), max(values))
        assert found == pytest.approx(golden, rel=3e-3)


@needs_traces
@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "count"),
    [("sharegpt", 298.8, 323.7, 58_787), ("arxiv_summarization", 2588, 291, 28_257)],
)
def test_golden_lengths(name, inputs, outputs, count):
    rows = list(read_rows(SHARED / "llm-traces" / f"{name}_lengths.csv.gz"))
    assert len(rows) == count
    assert np.mean([item.input_tokens for item in rows]) == pytest.approx(inputs, rel=2e-3)
    assert np.mean([item.output_tokens for item in rows]) == pytest.approx(outputs, rel=2e-3)


@needs_traces
@pytest.mark.parametrize(
    ("name", "distinct", "hit_rate"),
    [("conversation", 182_790, 0.366), ("synthetic", 43_924, 0.640)],
)
def test_golden_prefix_hits(name, distinct, hit_rate):
    blocks = [
        block
        for item in read_rows(SHARED / "llm-traces" / f"mooncake_{name}.jsonl.gz")
        for block in item.hash_ids
    ]
    assert len(set(blocks)) == distinct
    assert 1 - distinct / len(blocks) == pytest.approx(hit_rate, abs=1e-3)


@needs_traces
def test_a_real_trace_becomes_requests():
    trace = load_trace(
        SHARED / "llm-traces/mooncake_conversation.jsonl.gz",
        np.random.default_rng(0),
        vocab_size=97,
        limit=40,
        scale=1 / 8,
    )
    assert [item.arrival_s for item in trace] == sorted(item.arrival_s for item in trace)
    assert trace[0].prompt[:64] == trace[1].prompt[:64] and len(trace[0].prompt) == round(6758 / 8)


# Facts of the README of llm-clients: the biggest tenth of clients and the share of requests it
# sends.
@needs_clients
@pytest.mark.parametrize(
    ("name", "share"),
    [("language_m_small", 0.71), ("language_m_large", 0.74), ("reason_deepseek_r1", 0.60)],
)
def test_golden_client_mix(name, share):
    clients = read_clients(SHARED / "llm-clients" / f"servegen_{name}_clients.csv.gz")
    biggest = sorted(clients, key=lambda item: -item.rate_per_s)[: round(len(clients) / 10)]
    assert sum(item.rate_per_s for item in biggest) / sum(
        item.rate_per_s for item in clients
    ) == pytest.approx(share, abs=0.01)
    rows = client_mix(clients, np.random.default_rng(0), duration_s=1200.0, rate_per_s=10.0)
    names = {item.client for item in biggest}
    assert np.mean([item.client in names for item in rows]) == pytest.approx(share, abs=0.04)
    assert len(rows) == pytest.approx(12_000, rel=0.15)
