import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from steelyard.nn import checkpoint

PROGRAM = """
import json, sys
from pathlib import Path
from steelyard.serve.front.launch import ServeOptions, serve
options = json.loads(sys.argv[2])
options = {name: Path(value) if name == "api_key_file" else value for name, value in options.items()}
serve(sys.argv[1], ServeOptions(port=0, pool_bytes=2**21, threads=1, **options))
"""


class Server:
    """A gateway in a process of its own."""

    def __init__(self, folder, **options):
        command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("serving on "):
            self.process.kill()
            self.process.communicate()
            pytest.fail(f"the server did not start: {line}")
        self.url = line.split()[-1]
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def post(self, path="/v1/completions", headers=None, **body):
        return self.client.post(path, json=body, headers=headers)

    def events(self, path="/v1/completions", **body):
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def metric(self, name):
        found = re.search(
            rf"^{re.escape(name)} (\S+)$", self.client.get("/metrics").text, re.MULTILINE
        )
        return float(found[1]) if found else 0.0

    def engine_pid(self):
        children = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
        )
        return next(
            int(line.split()[0])
            for line in children.stdout.splitlines()
            if "engine.process" in line
        )

    def assert_idle(self, seconds=10):
        """Wait until no block is held."""
        limit = time.monotonic() + seconds
        while self.metric("steelyard_blocks_in_use") or self.metric("steelyard_requests_in_flight"):
            assert time.monotonic() < limit, "blocks are still held"
            time.sleep(0.02)

    def stop(self):
        self.client.close()
        self.process.terminate()
        code = self.process.wait(15)
        self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("front") / "tiny"
    checkpoint.save(model, path)
    return path


@pytest.fixture(scope="module")
def server(folder):
    started = Server(folder, max_requests=24)
    yield started
    assert started.stop() == 0


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
    threads = [
        threading.Thread(
            target=lambda: results.append(
                httpx.post(f"{server.url}/v1/completions", json=long, timeout=60)
            )
        )
        for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [item for item in results if item.status_code == 429]
    assert {item.status_code for item in results} == {200, 429}
    assert all(
        int(item.headers["retry-after"]) >= 1 and item.json()["error"]["type"] == "rate_limit_error"
        for item in refused
    )
    server.assert_idle()


def test_a_killed_engine_is_replaced_and_unanswered_requests_are_sent_again(server, greedy):
    pid = server.engine_pid()
    os.kill(
        pid, signal.SIGSTOP
    )  # no step runs, so the requests below are surely in flight when it dies
    results = {}

    def ask(index):
        results[index] = httpx.post(
            f"{server.url}/v1/completions",
            json={"prompt": [index, 1], "max_tokens": 5, "temperature": 0},
            timeout=60,
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


def test_keys_rates_and_a_drain(folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsecret alice\nother bob\n")
    server = Server(folder, api_key_file=str(keys), requests_per_min=3, tokens_per_min=400)
    alice, bob = {"Authorization": "Bearer secret"}, {"Authorization": "Bearer other"}
    assert server.client.get("/v1/models").status_code == 401
    assert (
        server.client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code
        == 401
    )
    assert server.client.get("/v1/models", headers=alice).status_code == 200
    assert server.client.get("/health").json() == {"status": "ok"}
    answers = [server.post(prompt=[1], max_tokens=2, headers=alice) for _ in range(4)]
    assert [item.status_code for item in answers] == [200, 200, 200, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
    body = {"prompt": [1, 2], "max_tokens": 120, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body, headers=bob) as reply:
        lines = reply.iter_lines()
        next(lines)
        pid = server.engine_pid()
        os.kill(
            pid, signal.SIGSTOP
        )  # what is in flight surely still is when the next request comes
        server.process.terminate()
        time.sleep(0.2)
        late = httpx.post(f"{server.url}/v1/completions", json={"prompt": [1]}, headers=bob)
        os.kill(pid, signal.SIGCONT)
        rest = list(lines)
    assert rest[-2] == "data: [DONE]" or rest[-1] == "data: [DONE]"
    assert late.status_code == 503
    assert late.json()["error"]["code"] == "shutting_down"
    assert server.stop() == 0


@pytest.mark.slow  # another start of the engine process
def test_an_engine_that_cannot_start_is_told_plainly(folder):
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps({"max_model_len": 10**6})]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert "the engine cannot start: " in run.stderr


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
