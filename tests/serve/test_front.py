import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from steelyard.cli.main import main
from steelyard.nn import checkpoint


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("front") / "tiny"
    checkpoint.save(model, path)
    return path


@pytest.fixture(scope="module")
def server(folder, serving, tmp_path_factory):
    """One warm server, whose pool is so small that concurrent requests are swapped to a file."""
    words = ("--max-requests", 24, "--pool", "192KiB", "--preemption", "swap")
    tier = ("--host-tier", "2MiB", "--swap-folder", tmp_path_factory.mktemp("tier"))
    with serving(folder, *words, *tier) as started:
        yield started


def text_of(tokens):
    return " ".join(map(str, tokens))


def test_completions_equal_the_plain_forward_and_tell_where_time_went(server, greedy):
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    begin = time.perf_counter()
    response = server.post(
        model="tiny", prompt=prompts, max_tokens=6, temperature=0, headers={"x-request-id": "mine"}
    )
    seconds = time.perf_counter() - begin
    answer = response.json()
    assert [item["text"] for item in answer["choices"]] == [
        text_of(greedy(prompt, 6)) for prompt in prompts
    ]
    counts = answer["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == (
        7,
        12,
        19,
    )
    assert response.headers["x-request-id"] == "mine"
    names = [item.partition("=")[0] for item in response.headers["x-stage-times"].split(",")]
    assert names == list(counts["stage_times"])
    assert names == [
        "parse",
        "tokenize",
        "queue",
        "send",
        "engine_queue",
        "prefill",
        "decode",
        "detokenize",
        "relay",
    ]
    assert 0 < sum(counts["stage_times"].values()) <= seconds


def test_streams_give_the_same_text_as_whole_answers(server):
    body = {"prompt": [5, 6], "max_tokens": 12, "temperature": 0.8, "seed": 5}
    whole = server.post(**body).json()
    events = server.events(**body, stream_options={"include_usage": True})
    assert (
        "".join(item["choices"][0]["text"] for item in events[:-1]) == whole["choices"][0]["text"]
    )
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 12
    chat = {"messages": [{"role": "user", "content": "1 2"}], "max_tokens": 5, "temperature": 0}
    chunks = server.events("/v1/chat/completions", **chat)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    message = server.post("/v1/chat/completions", **chat).json()["choices"][0]["message"]
    assert (
        "".join(item["choices"][0]["delta"].get("content", "") for item in chunks)
        == message["content"]
    )


def test_stop_strings_end_requests_and_free_their_blocks(server, greedy):
    expected = greedy([1, 2, 3], 12)
    stop = f" {expected[5]}"
    whole = text_of(expected)
    choice = server.post(prompt=[1, 2, 3], max_tokens=100, temperature=0, stop=stop).json()[
        "choices"
    ][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    server.assert_idle()


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": [1] * 200}, 400, "prompt"),
        ({"prompt": [1], "max_tokens": 500}, 400, "max_tokens"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [500]}, 400, "prompt"),
        ({"prompt": [10**30]}, 400, "prompt"),
        ({"prompt": "words"}, 400, "prompt"),
        ({"prompt": [1], "temperature": -1}, 400, "temperature"),
        ({"prompt": [1], "top_p": 0}, 400, "top_p"),
        ({"prompt": [1], "n": 0}, 400, "n"),
        ({"prompt": [1], "n": 3, "best_of": 2}, 400, "best_of"),
        ({"prompt": [1], "suffix": "x"}, 400, "suffix"),
        ({"prompt": [1], "logit_bias": {"a": 1}}, 400, "logit_bias"),
        ({"prompt": [1], "model": "other"}, 404, "model"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({}, 400, "prompt"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_requests_are_refused_with_the_field_at_fault(server, body, status, param):
    response = server.post(**body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


def test_malformed_oversized_and_unknown_requests_are_refused(server):
    client = server.client
    assert client.post("/v1/completions", content=b"{no json").status_code == 400
    assert client.post("/v1/completions", content=b"[" * 10**5).status_code == 400
    assert (
        client.post("/v1/completions", content=b"x" * (5 * 2**20)).json()["error"]["code"]
        == "body_too_large"
    )
    assert client.get("/nowhere").json()["error"]["code"] == "not_found"
    wrong = client.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert client.get("/v1/models/tiny").json()["id"] == "tiny"
    assert client.get("/v1/models/other").status_code == 404
    assert "/v1/completions" in client.get("/openapi.json").json()["paths"]


def test_a_closed_stream_frees_its_blocks(server):
    with server.client.stream(
        "POST",
        "/v1/completions",
        json={"prompt": [1, 2], "max_tokens": 120, "ignore_eos": True, "stream": True},
    ) as reply:
        next(reply.iter_lines())
    server.assert_idle()


def test_a_client_that_does_not_read_is_no_burden(server):
    body = json.dumps(
        {"prompt": [1, 2], "max_tokens": 100, "ignore_eos": True, "stream": True}
    ).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        assert server.post(prompt=[1], max_tokens=4).status_code == 200
        server.assert_idle()  # the engine is done with it although nothing was read


def test_overload_is_answered_at_once_with_the_time_to_wait(server):
    long = {"prompt": [1, 2], "max_tokens": 110, "ignore_eos": True}
    results = []

    def ask():
        results.append(
            httpx.post(f"{server.url}/v1/completions", json=long, timeout=120, verify=False)
        )

    threads = [threading.Thread(target=ask) for _ in range(40)]
    pid = server.engine_pid()
    os.kill(pid, signal.SIGSTOP)  # none of the 24 that are let in ends before the others come
    try:
        for thread in threads:
            thread.start()
        while len(results) < 16:
            time.sleep(0.01)
        refused = list(results)
    finally:
        os.kill(pid, signal.SIGCONT)
    for thread in threads:
        thread.join()
    assert [item.status_code for item in results] == [429] * 16 + [200] * 24
    for item in refused:
        assert int(item.headers["retry-after"]) >= 1
        assert item.json()["error"]["type"] == "rate_limit_error"
    server.assert_idle()


def test_a_killed_engine_is_replaced_and_unanswered_requests_are_sent_again(server, greedy):
    pid = server.engine_pid()
    # No step runs, so the requests below are surely in flight when it dies.
    os.kill(pid, signal.SIGSTOP)
    results = {}

    def ask(index):
        results[index] = httpx.post(
            f"{server.url}/v1/completions",
            json={"prompt": [index, 1], "max_tokens": 5, "temperature": 0},
            timeout=60,
            verify=False,
        )

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert [results[index].json()["choices"][0]["text"] for index in range(4)] == [
        text_of(greedy([index, 1], 5)) for index in range(4)
    ]
    assert server.engine_pid() != pid
    assert server.metric("steelyard_engine_restarts_total") == 1


ENGINE = """
import sys, time
from pathlib import Path
import socket
from steelyard.frames import Channel, MessageCodec
from steelyard.serve.front.engine.wire import Add, Drain, Ready, Start, Step, ToEngine, Update
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
channel = Channel(connection, MessageCodec(ToEngine))
assert isinstance(channel.receive(), Start)
channel.send(Ready(97, 128, 4096, 8, False))
while (message := channel.receive()) is not None and not isinstance(message, Drain):
    if isinstance(message, Add):
        with Path("payers").open("a") as payers:
            print(message.client, message.user, file=payers)
        for place in range(message.params.max_tokens):
            while place == 1 and message.params.max_tokens > 100 and not Path("release").exists():
                time.sleep(0.005)
            reason = "length" if place == message.params.max_tokens - 1 else ""
            channel.send(Step([Update(message.key, 0, [place % 97], reason)], time.perf_counter()))
"""
"""Counts; after the first token of a long answer it waits for a file."""


def test_keys_rates_and_a_drain(folder, serving, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting_engine.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "keys").write_text("# ours\nsecret alice\nother bob\n")
    words = ("--api-key-file", "keys", "--requests-per-min", 3, "--tokens-per-min", 400)
    with serving(folder, *words, engine="counting_engine") as server:
        check_keys_and_rates(server)
        check_drain(server, tmp_path / "release")


def check_keys_and_rates(server):
    alice, wrong = {"Authorization": "Bearer secret"}, {"Authorization": "Bearer wrong"}
    assert server.client.get("/v1/models").status_code == 401
    assert server.client.get("/v1/models", headers=wrong).status_code == 401
    assert server.client.get("/v1/models", headers=alice).status_code == 200
    assert server.client.get("/health").json() == {"status": "ok"}
    long = server.post(prompt=[1], user="x" * 257, headers={"Authorization": "Bearer other"})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "user")
    answers = [server.post(prompt=[1], max_tokens=2, user="bob", headers=alice) for _ in range(4)]
    assert [item.status_code for item in answers] == [200, 200, 200, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
    # The key pays, whatever name the body holds.
    assert Path("payers").read_text().splitlines() == ["alice bob"] * 3


def check_drain(server, release):
    bob = {"Authorization": "Bearer other"}
    body = {"prompt": [1, 2], "max_tokens": 120, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body, headers=bob) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.process.terminate()
        while server.client.get("/health").json() != {"status": "draining"}:
            time.sleep(0.01)
        late = server.post(prompt=[1], headers=bob)
        release.touch()
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"length"' in rest[-2]
    assert late.status_code == 503
    assert late.json()["error"]["code"] == "shutting_down"
    assert server.process.wait(30) == 0


@pytest.mark.slow  # another start of the engine process
def test_an_engine_that_cannot_start_is_told_plainly(folder):
    command = [sys.executable, "-m", "steelyard", "serve", str(folder), "--port", "0"]
    more = ["--max-model-len", "1000000"]
    run = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    assert "the engine cannot start: " in run.stderr


def test_a_swapping_server_is_measured_by_the_load_client(server, capsys):
    before = server.metric("steelyard_swaps")
    words = ["--concurrency", "16", "--num-requests", "16", "--output-tokens", "90", "--sigma", "0"]
    words += ["--input-tokens", "30", "--vocab-size", "97", "--no-record", "--json"]
    # On a busy machine requests may come so slowly that all fit at once: then nothing is swapped.
    for _ in range(8):
        with pytest.raises(SystemExit) as ended:
            main(["serve", "bench", server.url, *words])
        assert ended.value.code == 0
        level = json.loads(capsys.readouterr().out)["levels"][0]
        assert (level["requests"], level["output_tokens"]) == (16, 16 * 90)
        if server.metric("steelyard_swaps") > before:
            break
    assert server.metric("steelyard_swaps") > before
    server.assert_idle()


def test_several_choices(server):
    body = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0.9, "seed": 11}
    several = server.post(**body, n=3).json()["choices"]
    alone = [
        server.post(**{**body, "seed": 11 + index}).json()["choices"][0]["text"]
        for index in range(3)
    ]
    assert [item["index"] for item in several] == [0, 1, 2]
    assert [item["text"] for item in several] == alone
    streamed = ["", "", ""]
    for event in server.events(**body, n=3):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == alone
    beams = server.post(prompt=[1, 2, 3], max_tokens=4, beam_width=3, n=2).json()["choices"]
    assert len({item["text"] for item in beams}) == 2
    assert server.post(prompt=[1], beam_width=2, stream=True).status_code == 400
    echoed = server.post(prompt=[1, 2], max_tokens=2, temperature=0, echo=True).json()["choices"][
        0
    ]["text"]
    assert echoed.startswith("1 2")
    server.assert_idle()


def test_log_probabilities(server, greedy):
    body = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0.9, "seed": 11}
    alone = [
        server.post(**{**body, "seed": 11 + index}).json()["choices"][0]["text"]
        for index in range(3)
    ]
    likely = server.post(**body, best_of=3, logprobs=1).json()["choices"]
    assert len(likely) == 1
    report = likely[0]["logprobs"]
    assert likely[0]["text"] == " ".join(report["tokens"]) in alone
    assert report["text_offset"][0] == 0
    assert all(len(top) <= 2 for top in report["top_logprobs"])
    first = server.post(prompt=[1, 2, 3], max_tokens=5, temperature=0, logprobs=2).json()[
        "choices"
    ][0]["logprobs"]
    assert first["tokens"] == text_of(greedy([1, 2, 3], 5)).split()
    assert all(
        max(top, key=top.get) == token
        for top, token in zip(first["top_logprobs"], first["tokens"], strict=True)
    )
    chat = {
        "messages": [{"role": "user", "content": "1 2"}],
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 2,
    }
    content = server.post("/v1/chat/completions", **chat).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert len(content) == 3
    assert all(len(item["top_logprobs"]) == 2 and item["logprob"] <= 0 for item in content)
    server.assert_idle()
