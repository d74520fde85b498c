import asyncio
import json
import math
import socket
import time

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cli import bench as bench_command
from steelyard.cli.main import main
from steelyard.config import to_plain
from steelyard.errors import BackendError, ConfigError, StoreError
from steelyard.runs.store import RunStore
from steelyard.serve.client import charts
from steelyard.serve.client.bodies import BodyMaker
from steelyard.serve.client.load import LoadOptions, LoadResult, run_load
from steelyard.serve.client.models import list_models
from steelyard.serve.client.record import RequestRecord
from steelyard.serve.client.report import ramp_report
from steelyard.serve.client.results import record_frame, to_json
from steelyard.serve.client.summary import Distribution, Slo, summarize
from steelyard.serve.client.wire.address import Endpoint, read_key
from steelyard.serve.client.wire.connection import ConnectionPool
from steelyard.serve.client.wire.events import EventSplitter, parse_stages
from steelyard.serve.client.wire.stream import StreamReader, fill_record
from steelyard.serve.traces import TraceRow, draw_arrivals

FIRST_S, GAP_S = 0.06, 0.01
STAGES = {"engine_queue": 0.01, "prefill": 0.05, "decode": 0.1}


def event(fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


class FakeServer:
    """Streams tokens with known delays; the model's name says what goes wrong."""

    def __init__(self, listen):
        self.bodies, self.heads, self.times, self.busy = [], [], [], {}
        self.url = listen(self.serve)

    async def serve(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(size)
                self.heads.append(head)
                if head.startswith(b"GET"):
                    self.plain(writer, 200, {"data": [{"id": "m"}, {"id": "busy"}]})
                elif not await self.answer(writer, json.loads(body)):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def plain(self, writer, status, fields, *lines):
        data = json.dumps(fields).encode()
        head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", *lines]
        writer.write("\r\n".join([*head, "", ""]).encode() + data)

    async def answer(self, writer, body):
        self.bodies.append(body)
        self.times.append(time.perf_counter())
        kind = body.get("model", "m")
        if kind == "http500":
            self.plain(writer, 500, {"error": {"message": "it broke"}})
            return True
        if kind == "busy":
            key = json.dumps(body.get("prompt") or body["messages"])
            self.busy[key] = self.busy.get(key, 0) + 1
            if self.busy[key] <= 2:
                self.plain(writer, 429, {"error": {"message": "later"}}, "Retry-After: 0.05")
                return True
        if kind == "garbage":
            writer.write(b"SSH-2.0-hello\r\n")
            return False
        if kind == "reset":
            writer.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"5\r\ndata:\r\n"
            )
            await writer.drain()
            writer.transport.abort()
            return False
        await self.stream(writer, body, kind)
        return kind != "close"

    async def stream(self, writer, body, kind):
        closes = kind == "close"
        writer.write(
            b"HTTP/1.1 200 OK\r\n"
            + (b"Connection: close\r\n\r\n" if closes else b"Transfer-Encoding: chunked\r\n\r\n")
        )

        def send(data):
            writer.write(data if closes else b"%x\r\n%s\r\n" % (len(data), data))

        is_chat, count = "messages" in body, body.get("max_tokens") or 6
        if is_chat:
            send(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        begin = time.perf_counter()
        for place in range(count):
            await asyncio.sleep(max(begin + FIRST_S + GAP_S * place - time.perf_counter(), 0))
            text = f"w{place} "
            send(
                event(
                    {
                        "choices": [
                            {
                                "index": 0,
                                **({"delta": {"content": text}} if is_chat else {"text": text}),
                                "finish_reason": None,
                            }
                        ]
                    }
                )
            )
            if kind == "slow":
                await asyncio.sleep(5)
            if kind == "stream":
                send(event({"error": {"message": "out of memory"}}))
                break
            if kind == "chunk":
                send(b"data: {nonsense\n\n")
                break
        if kind not in ("truncated", "stream", "chunk"):
            send(event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}))
            if body.get("stream_options"):
                counts = {
                    "prompt_tokens": len(body.get("prompt", "x")),
                    "completion_tokens": count,
                    "stage_times": STAGES,
                }
                send(event({"choices": [], "usage": counts}))
            send(b"data: [DONE]\n\n")
        if not closes:
            writer.write(b"0\r\n\r\n")


@pytest.fixture(scope="module")
def server(listen):
    return FakeServer(listen)


def options(server, **more):
    return LoadOptions(endpoint=Endpoint.parse(server.url), **{"warm_up": 0, **more})


def send(server, count=2, model="m", timeout_s=60.0, retries=0, seed=0):
    """Sends rows from this process, without workers."""
    maker = BodyMaker(form="tokens", model=model, seed=seed, vocab_size=50, extra={})
    made = [RequestRecord(index=index, scheduled_s=0.0) for index in range(count)]

    async def go():
        pool = ConnectionPool(Endpoint.parse(server.url))
        start = time.perf_counter()
        more = {"start_s": start, "timeout_s": timeout_s, "retries": retries}
        bodies = [maker.body(row, index) for index, row in enumerate(rows(count))]
        await asyncio.gather(
            *(
                fill_record(pool, maker.path, body, record, **more)
                for body, record in zip(bodies, made, strict=True)
            )
        )
        pool.close()

    asyncio.run(go())
    return made


def rows(count, outputs=6, **more):
    return [
        TraceRow(arrival_s=0.0, input_tokens=5 + index, output_tokens=outputs, **more)
        for index in range(count)
    ]


# addresses, events, bodies


def test_addresses():
    assert Endpoint.parse("localhost:8000").url == "http://localhost:8000/v1"
    assert (
        Endpoint.parse("https://api.example.com/openai/v1/").url
        == "https://api.example.com:443/openai/v1"
    )
    assert Endpoint.parse("http://[::1]:9").url == "http://[::1]:9/v1"
    assert "secret" not in repr(Endpoint.parse("http://a", api_key="secret"))
    assert b"Authorization: Bearer secret\r\n" in Endpoint.parse(
        "http://a", api_key="secret"
    ).request("GET", "/models")
    for bad in ("", "ftp://a", "http://", "http://a:99999", "http://a b"):
        with pytest.raises(ConfigError):
            Endpoint.parse(bad)
    with pytest.raises(ConfigError, match="API key"):
        Endpoint.parse("http://a", api_key="a\nb")
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        read_key("NO_SUCH_KEY")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(
            st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), min_size=1
        ).filter(lambda text: text[0] != " ")
    ),
    st.lists(st.integers(1, 9), min_size=1),
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_survive_any_cut(payloads, cuts, end):
    stream = "".join(
        f": comment{end}event: x{end}data: {payload}{end}{end}" for payload in payloads
    ).encode()
    splitter, found, at, turn = EventSplitter(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += splitter.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert [payload.decode() for payload in found] == payloads


def test_events_of_several_lines_and_stage_headers():
    assert EventSplitter().feed(b"data: a\ndata:b\n\ndata: half") == [b"a\nb"]
    assert parse_stages("parse=0.5;queue=1e-3, bad, x=y") == {"parse": 0.5, "queue": 0.001}


def test_readers_count_text_not_roles_or_ends():
    reader = StreamReader()
    pieces = [
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"content": "a"}},
        {"delta": {"reasoning_content": "b"}},
    ]
    for at, piece in enumerate([*pieces, {"delta": {}, "finish_reason": "stop"}]):
        reader.take(event({"choices": [piece]}), float(at))
    reader.take(
        event({"choices": [{"text": ""}]})
        + event({"choices": [{"text": "", "finish_reason": "length"}]}),
        9.0,
    )
    reader.take(
        event({"choices": [], "usage": {"completion_tokens": 3}, "error": None})
        + b"data: [DONE]\n\n",
        10.0,
    )
    assert (reader.chunk_s, reader.output_tokens, reader.finish_reason) == (
        [1.0, 2.0, 9.0],
        3,
        "length",
    )
    assert reader.is_ended and not reader.error


def test_bodies():
    row = TraceRow(arrival_s=0.0, input_tokens=7, output_tokens=3)
    tokens, text, chat = (
        BodyMaker(
            form=form, model="m", seed=1, vocab_size=50, extra={"ignore_eos": None, "top_p": 0.5}
        )
        for form in ("tokens", "text", "chat")
    )
    body = json.loads(tokens.body(row, 0))
    assert body == json.loads(tokens.body(row, 0)) != json.loads(tokens.body(row, 1))
    assert len(body["prompt"]) == 7 and max(body["prompt"]) < 50
    assert (
        body["max_tokens"] == 3
        and body["top_p"] == 0.5
        and "ignore_eos" not in body
        and body["stream"] is True
    )
    assert len(json.loads(text.body(row, 0))["prompt"].split()) == 7
    assert len(json.loads(chat.body(row, 0))["messages"][0]["content"].split()) == 7
    assert (tokens.path, chat.path) == ("/completions", "/chat/completions")


# summaries


def records(generator, count=300):
    made = []
    for index in range(count):
        sent, tokens = float(generator.random() * 10), int(generator.integers(1, 40))
        chunks = sent + 0.05 + np.cumsum(generator.exponential(0.02, tokens))
        made.append(
            RequestRecord(
                index=index,
                scheduled_s=sent,
                sent_s=sent,
                chunk_s=chunks.tolist(),
                output_tokens=tokens,
                prompt_tokens=10,
            )
        )
    return made


def test_summary_against_numpy():
    made = records(np.random.default_rng(0))
    made[0].error, made[1].error, made[1].retries = "timeout", "http 429", 2
    result = LoadResult(records=made, cpu_shares=[0.1, 0.7], is_open=True, started_at_s=5.0)
    slo = Slo(ttft_s=0.08, tpot_s=0.03)
    summary, whole = summarize(result, slo), made[2:]
    ttft = np.array([item.chunk_s[0] - item.sent_s for item in whole])
    tpot = np.array(
        [
            (item.chunk_s[-1] - item.chunk_s[0]) / (item.output_tokens - 1)
            for item in whole
            if item.output_tokens > 1
        ]
    )
    gaps = np.concatenate([np.diff(item.chunk_s) for item in whole])
    span = max(item.chunk_s[-1] for item in whole) - min(item.sent_s for item in made)
    for found, values in ((summary.ttft, ttft), (summary.tpot, tpot), (summary.itl, gaps)):
        assert (found.count, found.mean, found.spread) == pytest.approx(
            (len(values), values.mean(), values.std())
        )
        points = [found.p50, found.p90, found.p95, found.p99, found.p99_9]
        assert points == pytest.approx(np.percentile(values, [50, 90, 95, 99, 99.9]).tolist())
    tokens = sum(item.output_tokens for item in whole)
    assert summary.duration_s == pytest.approx(span)
    assert summary.output_tokens_per_s == pytest.approx(tokens / span)
    assert summary.total_tokens_per_s == pytest.approx((tokens + 10 * len(whole)) / span)
    assert summary.requests_per_s == pytest.approx(298 / span)
    good = sum(
        first <= 0.08 and not (item.output_tokens > 1 and item.tpot_s > 0.03)
        for first, item in zip(ttft, whole, strict=True)
    )
    assert summary.goodput_per_s == pytest.approx(
        good / span
    ) and summary.good_fraction == pytest.approx(good / 300)
    assert (summary.requests, summary.errors, summary.failed, summary.retries) == (
        298,
        {"timeout": 1, "http 429": 1},
        2,
        2,
    )
    assert len(summary.warnings()) == 2 and "70%" in summary.warnings()[0]
    assert {item.quantity for item in summary.measurements()} >= {
        "serve.ttft",
        "serve.ttft_p95",
        "serve.throughput",
    }
    kept = {item.quantity: item.value for item in summary.measurements()}
    # Of a load without limits nobody says what share kept them.
    assert kept["serve.slo_attainment"] == summary.good_fraction
    without = summarize(result)
    assert "serve.slo_attainment" not in {item.quantity for item in without.measurements()}


def test_nothing_came_back():
    result = LoadResult(
        records=[RequestRecord(index=0, scheduled_s=0.0, sent_s=0.0, error="refused")],
        cpu_shares=[0.0],
        is_open=False,
        started_at_s=0.0,
    )
    summary = summarize(result)
    assert (
        summary.requests == 0
        and summary.output_tokens_per_s == 0.0
        and math.isnan(summary.ttft.p50)
    )
    assert [item.quantity for item in summary.measurements()] == [
        "serve.throughput",
        "serve.request_rate",
        "serve.makespan",
    ]
    assert "NaN" not in to_json({1: summary}, {})
    ramp_report({1: (summary, result)}, title="t", subtitle="s").to_json()
    assert Distribution.of([]).count == 0


def test_objectives_are_read_and_checked():
    assert Slo.parse("ttft=0.5, tpot=50ms") == Slo(ttft_s=0.5, tpot_s=0.05)
    assert Slo.parse("") == Slo()
    for bad in ("ttft", "itl=1", "ttft=x", "ttft=0", "tptot=1"):
        with pytest.raises(ConfigError, match=r"--slo"):
            Slo.parse(bad)


def test_late_sending_is_told():
    made = records(np.random.default_rng(1))
    for item in made:
        item.scheduled_s -= 0.5
    for is_open, words in ((True, "late"), (False, "")):
        warnings = summarize(
            LoadResult(records=made, cpu_shares=[0.1], is_open=is_open, started_at_s=0.0)
        ).warnings()
        assert bool(warnings) == is_open and words in "".join(warnings)


def test_tables_and_charts_hold_the_records(tmp_path):
    made = records(np.random.default_rng(0), 40)
    for item in made:
        item.stages = dict(STAGES)
    made[3].error, made[3].chunk_s = "timeout", []
    frame = record_frame(made)
    assert (
        frame.height == 40 and frame["ttft_s"].null_count() == 1 and frame["stage_decode"][0] == 0.1
    )
    assert frame["chunk_s"].dtype == pl.List(pl.Float64)
    result = LoadResult(records=made, cpu_shares=[0.1], is_open=False, started_at_s=0.0)
    levels = {level: (summarize(result), result) for level in (1, 4)}
    report = ramp_report(levels, title="t", subtitle="s")
    assert {section.title for section in report.sections} >= {
        "Ramp",
        "Over concurrency",
        "Stages, 4 concurrent",
        "Errors, 4 concurrent",
    }
    for spec in (
        charts.latency_shares(made),
        charts.token_rate(made),
        charts.ramp_latency({1: levels[1][0]}),
        charts.stage_bars(levels[1][0]),
    ):
        assert "NaN" not in json.dumps(spec)


# loads


def test_closed_loops_measure_the_servers_delays(server):
    seen = []
    result = run_load(
        options(server, concurrency=4, processes=2), rows(12), on_progress=seen.append
    )
    summary = summarize(result)
    assert [record.index for record in result.records] == list(range(12)) and summary.failed == 0
    # The server's delays are bounds from below; how near the client comes is for a benchmark.
    assert summary.ttft.p50 >= FIRST_S and summary.e2e.p50 >= FIRST_S + 5 * GAP_S - 1e-3
    assert summary.tpot.mean == pytest.approx((summary.e2e.mean - summary.ttft.mean) / 5)
    assert {record.output_tokens for record in result.records} == {6}
    assert [record.prompt_tokens for record in result.records] == [5 + index for index in range(12)]
    assert summary.stages["prefill"].mean == pytest.approx(0.05)
    assert summary.mean_in_flight <= 4.0 and seen[-1] == 12
    assert len(result.cpu_shares) == 2


def test_open_loops_send_at_their_times(server):
    planned = draw_arrivals(rows(20), np.random.default_rng(0), rate_per_s=100.0)
    result = run_load(options(server, processes=2), planned)
    assert [record.scheduled_s for record in result.records] == pytest.approx(
        [row.arrival_s for row in planned]
    )
    assert min(record.late_s for record in result.records) >= -0.002
    assert summarize(result).failed == 0 and result.is_open


def test_turns_wait_for_answers_and_warm_up_is_not_recorded(server):
    server.bodies.clear()
    turns = [
        TraceRow(arrival_s=0.0, input_tokens=4 * turn, output_tokens=3, session="s", think_s=0.05)
        for turn in (1, 2, 3)
    ]
    result = run_load(options(server, warm_up=2), [*turns, *rows(1)])
    assert len(server.bodies) == 6 and len(result.records) == 4
    first, second, third = result.records[:3]
    assert second.sent_s >= first.finished_s + 0.045 and third.sent_s >= second.finished_s + 0.045
    prompts = sorted((body["prompt"] for body in server.bodies[2:]), key=len)
    assert prompts[2][:8] == prompts[1 if len(prompts[1]) == 8 else 2][:8]


def test_no_request_starts_after_the_duration(server):
    result = run_load(
        options(server, duration_s=0.2),
        draw_arrivals(rows(50), np.random.default_rng(0), rate_per_s=50.0),
    )
    assert (
        3 <= len(result.records) < 25 and max(record.scheduled_s for record in result.records) < 0.2
    )


KINDS = {
    "http500": "http 500",
    "garbage": "protocol",
    "reset": "reset",
    "truncated": "truncated",
    "stream": "stream",
    "chunk": "protocol",
    "busy": "http 429",
}


@pytest.mark.parametrize("model", KINDS)
def test_errors_are_told_apart(server, model):
    made = send(server, model=model)
    assert {record.error for record in made} == {KINDS[model]}
    words = {"http500": "it broke", "stream": "out of memory", "busy": "later"}.get(model, "")
    assert all(words in record.message and record.message for record in made)


def test_slow_answers_time_out_and_silent_ports_are_refused(server):
    assert {record.error for record in send(server, model="slow", timeout_s=0.2)} == {"timeout"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = Endpoint.parse(f"http://127.0.0.1:{probe.getsockname()[1]}")
    with pytest.raises(BackendError, match="no server answers"):
        list_models(dead)
    with pytest.raises(BackendError, match="warm-up"):
        run_load(LoadOptions(endpoint=dead, concurrency=1, warm_up=1), rows(1))


def test_busy_servers_are_asked_again_after_the_time_they_say(server):
    made = send(server, 3, model="busy", retries=2, seed=9)
    assert {(record.error, record.retries) for record in made} == {("", 2)}
    assert min(record.ttft_s for record in made) >= FIRST_S + 0.1  # both waits count


def test_answers_that_end_with_their_connection(server):
    made = send(server, model="close")
    assert {record.error for record in made} == {""} and made[1].output_tokens == 6


def test_options_are_checked(server):
    for bad in ({"concurrency": -1}, {"timeout_s": 0.0}, {"form": "x"}, {"vocab_size": 0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            options(server, **bad)
    with pytest.raises(ConfigError, match="nothing to send"):
        run_load(options(server), [])


# the command line


def run(*words):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return caught.value.code


def test_bench_writes_and_keeps_what_it_measured(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "steelyard.runs.html.render_html", lambda report: report.to_json()
    )  # drawing is tested where it lives
    trace = tmp_path / "trace.csv"
    trace.write_text("input_tokens,output_tokens\n" + "16,8\n" * 8)
    command = (
        "serve",
        "bench",
        server.url,
        "--trace",
        trace,
        "--scale",
        "1/8",
        "--concurrency",
        "1,4",
        "--warm-up",
        0,
    )
    assert (
        run(
            *command,
            "--out",
            tmp_path / "out",
            "--store",
            tmp_path / "store",
            "--slo",
            "ttft=1",
            "--json",
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert [level["concurrency"] for level in told["levels"]] == [1, 4] and told["load"][
        "model"
    ] == "m"
    assert {level["output_tokens"] for level in told["levels"]} == {
        8
    } and "api_key_env" not in told["load"]
    assert json.loads((tmp_path / "out/load.json").read_text()) == told
    assert pl.read_parquet(tmp_path / "out/requests.parquet").height == 16
    assert "Latency over concurrency" in (tmp_path / "out/report.html").read_text()
    runs = RunStore(tmp_path / "store").list(kind="load")
    assert len(runs) == 2 and {item.quantity for item in runs[0].measurements} >= {
        "serve.ttft",
        "serve.throughput",
    }
    assert len(runs[0].artifacts) == 3


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("1,2,4,...,64", [1, 2, 4, 8, 16, 32, 64]),
        ("2,4,...,7", [2, 4, 7]),
        ("10,15,...,30", [10, 15, 20, 25, 30]),
        ("8, 4", [4, 8]),
        ("", [1, 4, 16]),
    ],
)
def test_lists_of_concurrencies(text, levels):
    assert bench_command._levels(bench_command.BenchOptions(concurrency=text), None) == levels
    assert bench_command._levels(bench_command.BenchOptions(), 3.0) == [0]


@pytest.mark.slow
def test_bench_with_a_rate_prints_a_report(server, capsys):
    assert (
        run(
            "serve",
            "bench",
            server.url,
            "--rate",
            "50",
            "--num-requests",
            5,
            "--output-tokens",
            4,
            "--no-record",
            "--send",
            "chat",
        )
        == 0
    )
    told = capsys.readouterr().out
    assert "TTFT" in told and "p99.9" in told and "Stages" in told
    assert (
        run(
            "serve",
            "bench",
            server.url,
            "--concurrency",
            1,
            "--num-requests",
            1,
            "--no-record",
            "--model",
            "http500",
            "--warm-up",
            0,
        )
        == 1
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rate", "1", "--concurrency", "1"), "exclude each other"),
        (("--rate", "0"), "--rate is 0"),
        (("--rate", "fast"), "--rate"),
        (("--concurrency", "0"), "--concurrency"),
        (("--concurrency", "1,...,8"), "cannot fill the dots"),
        (("--concurrency", "2,x"), "'x' is not a whole number"),
        (("--slo", "itl=1"), "--slo"),
        (("--trace", "/no/such.csv"), "cannot read /no/such.csv"),
        (("--scale", "1/0", "--trace", __file__, "--rate", "1"), "--scale"),
        (("--extra", "[1]"), "--extra"),
        (("--timeout", "soon"), "--timeout"),
        (("--api-key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY"),
        (("--num-requests", "-1"), "-1 requests"),
        (("--bogus", "1"), "bogus"),
        (("--send", "smoke"), "smoke"),
    ],
)
def test_wrong_bench_options_are_refused_in_one_line(server, words, message, capsys):
    assert run("serve", "bench", server.url, *words) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert told[0].startswith("error: ") and message in told[0] and len(told) <= 2


def test_wrong_models_and_addresses_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    for words, message in (
        (("serve", "bench", "ftp://x"), "not the address"),
        (("serve", "bench", "http://127.0.0.1:1"), "no server answers"),
        (("serve", tmp_path), "no config.json"),
        (("serve", tmp_path / "absent"), "there is no such folder"),
        (("serve", "abcdef012345"), "neither a model folder nor a run"),
        (("serve", "replay", tmp_path, tmp_path / "trace.csv"), "no config.json"),
        (("serve", "profile", tmp_path), "no config.json"),
        (("serve", "profile", tmp_path, "--seconds", 0), "--seconds is 0"),
        (("chat", tmp_path), "no config.json"),
        (("chat", "http://127.0.0.1:1"), "no server answers"),
    ):
        assert run(*words) == 2
        told = capsys.readouterr().err.strip().splitlines()
        assert told[0].startswith("error: ") and message in told[0] and len(told) <= 2


def test_a_run_names_its_checkpoint(tmp_path, monkeypatch):
    from steelyard.cli.chat import _address_or_model
    from steelyard.cli.models import find_model, model_folder

    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    store, folder = RunStore(), tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    with store.create("train", {}, seed=0, name="small") as made:
        made.artifact("model", folder)
    with store.create("train", {}, seed=0) as empty:
        pass
    assert model_folder(made.id[:8]) == folder
    assert find_model("small").names == find_model(made.id).names == ("small", made.id)
    assert _address_or_model(made.id) == (str(folder), "small")
    for address in ("127.0.0.1:80", "localhost", "models.example.org/v1", "http://box"):
        assert _address_or_model(address) == (address, "")
    with pytest.raises(StoreError, match=r"looked for a folder \./smaller ") as caught:
        _address_or_model("smaller")
    assert "did you mean 'small'?" in caught.value.hint and "http://" in caught.value.hint
    with pytest.raises(ConfigError, match="no checkpoint"):
        model_folder(empty.id)


def test_a_quickstarts_folder_names_its_model(tmp_path):
    from steelyard.cli.models import find_model

    out = tmp_path / "weighed"
    (out / "stages").mkdir(parents=True)
    with pytest.raises(ConfigError, match="has not trained its larger model yet") as caught:
        find_model(str(out))
    assert f"steelyard quickstart --out {out}" in caught.value.hint
    folder = out / "target" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert find_model(str(out)).names == ("weighed",)
    (out / "stages" / "keep.json").write_text('{"result": "0123456789ab"}')
    # A training's own folder has a config.json that is not the model's.
    (out / "target" / "config.json").write_text("{}")
    found = find_model(str(out))
    assert (found.folder, found.names) == (folder, ("weighed", "0123456789ab"))
    assert find_model(str(out / "target")).folder == folder


def test_the_server_starts_with_the_options_given(tmp_path, monkeypatch):
    from steelyard.serve.front import launch
    from steelyard.serve.options import EngineOptions

    (tmp_path / "config.json").write_text("{}")
    seen = []
    monkeypatch.setattr(
        launch, "serve", lambda model, options, names: seen.append((model, options))
    )
    words = "--pool 1MiB --policy vtc --asynchronous --client-weights.alice 2 --no-native"
    auto = ("--preemption", "auto")
    words += " --preemption swap --host-tier 3MiB --keep-turns --cores 0 --cores 1 --port 0"
    assert run("serve", tmp_path, *words.split(), "--drain-timeout", "2 min") == 0
    assert run("serve", "run", "--model", tmp_path, "--swap-folder", tmp_path, *auto) == 0
    model, chosen = seen[0]
    assert model == tmp_path and chosen.port == 0
    assert (chosen.drain_timeout_s, chosen.body_limit_bytes) == (120.0, 4 * 2**20)
    wanted = EngineOptions(
        pool_bytes=2**20,
        policy="vtc",
        client_weights={"alice": 2.0},
        native=False,
        asynchronous=True,
        preemption="swap",
        host_tier_bytes=3 * 2**20,
        keep_turns=True,
        cores=(0, 1),
    )
    assert to_plain(chosen.engine) == to_plain(wanted)
    assert seen[1][1].engine.swap_folder == tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--swap-folder x", "--swap-folder needs --preemption swap or auto"),
        ("--host-tier 1GiB", "--host-tier needs --preemption swap or auto"),
        ("--group-blocks 4", "--group-blocks needs --allocator block-group"),
        ("--client-weights.a 2", "--client-weights needs --policy vtc"),
        ("--cache-tokens 64", "--cache-tokens needs --cache other than full"),
        ("--cache adaptive --cache-tokens 64", "--cache adaptive needs --cache-controller"),
        ("--cache h2o --cache-tokens 64 --preemption swap", "--preemption needs --cache full"),
        ("--pool soon", "--pool: cannot read 'soon'"),
        ("--max-num-seqs 0", "--max-num-seqs is 0"),
        ("--preemption swp", "Did you mean"),
    ],
)
def test_options_that_need_others_are_refused(tmp_path, capsys, words, message):
    assert run("serve", tmp_path, *words.split()) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert told[0].startswith("error: ") and message in told[0] and len(told) <= 2


def test_help_of_every_verb_is_quick_and_told(capsys):
    for words in (
        ("serve", "--help"),
        ("serve", "bench", "--help"),
        ("serve", "replay", "--help"),
        ("serve", "profile", "--help"),
        ("chat", "--help"),
    ):
        assert run(*words) == 0
        assert "Usage: steelyard" in capsys.readouterr().out


@pytest.mark.peers
def test_other_load_generators_agree():
    from benchmarks.serve import load_agreement

    assert {
        check.name: check.value for check in load_agreement.run(quick=True) if not check.ok
    } == {}
