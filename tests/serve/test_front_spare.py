"""Engines that are killed, with and without a spare; the engines count instead of computing."""

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from steelyard.errors import ConfigError
from steelyard.nn import checkpoint
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.engine import spawn, supervisor
from steelyard.serve.front.engine.wire import Add, Embed, Embedded, Ready, Start
from steelyard.serve.front.gateway import dispatch
from steelyard.serve.front.gateway.calls import Call
from steelyard.serve.front.gateway.dispatch import Dispatcher
from steelyard.serve.front.limits.backlog import Backlog
from steelyard.serve.front.metrics import GatewayMetrics
from steelyard.serve.front.text import TextCodec
from steelyard.serve.options import ServeOptions
from steelyard.serve.running.pool import lazy_zeros
from steelyard.serve.scheduling.params import SamplingParams

ENGINE = """
import os, socket, sys, time
from pathlib import Path
from steelyard.frames import Channel, MessageCodec
from steelyard.serve.front.engine.wire import Add, Drain, GetStats, Ready, Start, Stats
from steelyard.serve.front.engine.wire import Step, ToEngine, Update
Path(f"loading-{os.getpid()}").touch()
while Path("wait").exists():
    time.sleep(0.005)
if Path("broken").exists():
    sys.exit(3)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
channel = Channel(connection, MessageCodec(ToEngine))
assert isinstance(channel.receive(), Start)
channel.send(Ready(97, 128, 4096, 8, False))
while (message := channel.receive()) is not None and not isinstance(message, Drain):
    if isinstance(message, GetStats):
        channel.send(Stats(message.key, {}))
    if isinstance(message, Add):
        Path(f"worked-{os.getpid()}").touch()
        ends = message.params.max_tokens == 1
        update = Update(message.key, 0, [7], "length" if ends else "")
        channel.send(Step([update], time.perf_counter()))
"""
"""Gives one token per request; an answer that should be longer never ends."""

NUM_STREAMS = 8


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one_token_engine.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    return tmp_path


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("spare") / "tiny"
    checkpoint.save(model, path)
    return path


def wait_for(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it took too long"
        time.sleep(0.005)


def engines(word):
    """Processes of engines that have got so far."""
    return {int(path.name.partition("-")[2]) for path in Path().glob(f"{word}-*")}


def open_streams(server, last):
    """Open streams that never end; return their threads once each has its first text."""
    opened = threading.Semaphore(0)

    def read():
        body = {"prompt": [1], "max_tokens": 9, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line:
                    last[threading.get_ident()] = line
                    opened.release()

    threads = [threading.Thread(target=read) for _ in range(NUM_STREAMS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert opened.acquire(timeout=60)
    return threads


def check_errors(threads, last):
    for thread in threads:
        thread.join(60)
    assert len(last) == NUM_STREAMS
    for line in last.values():
        error = json.loads(line.removeprefix("data: "))["error"]
        assert error["code"] == "engine_restarted"
        # Which is known first, the end of the process or that of its connection, is chance.
        assert error["message"].startswith("the engine has ended: ")
        assert error["message"].endswith("; send the request again")


def test_a_spare_takes_over_and_without_one_requests_wait(folder, serving, place):
    with serving(folder, "--spare", engine="one_token_engine") as server:
        wait_for(lambda: server.metric("steelyard_spare_engines") == 1)
        last = {}
        threads = open_streams(server, last)
        (first,) = engines("worked")
        (spare,) = engines("loading") - {first}
        (place / "wait").touch()  # no further engine is ready before this file is gone
        os.kill(first, signal.SIGKILL)
        assert server.post(prompt=[1], max_tokens=1).status_code == 200
        check_errors(threads, last)
        assert engines("worked") == {first, spare}
        assert server.metric("steelyard_spare_engines") == 0
        last = {}
        threads = open_streams(server, last)
        os.kill(spare, signal.SIGKILL)
        check_errors(threads, last)
        answers = []
        late = threading.Thread(
            target=lambda: answers.append(server.post(prompt=[1], max_tokens=1))
        )
        late.start()
        wait_for(lambda: len(engines("loading")) == 3)
        assert server.client.get("/health").json() == {"status": "starting"}
        assert not answers
        (place / "wait").unlink()
        late.join(60)
        assert answers[0].status_code == 200
        # The engines worked for the requests that waited, not for the streams that had failed.
        assert server.metric("steelyard_output_tokens_total") == 2 * NUM_STREAMS + 2
        assert server.metric("steelyard_engine_restarts_total") == 2


class User:
    """Stands for the dispatcher: counts the engines that come and go."""

    has_work = False

    def __init__(self):
        self.num_engines, self.reasons = 0, []

    def connect(self, send, ready):
        self.num_engines += 1

    def disconnect(self, reason, *, retry=True):
        self.reasons.append(reason)

    def receive(self, message):
        raise AssertionError("nothing was asked")


def test_a_spare_that_dies_or_cannot_start_does_no_harm(place, monkeypatch, capsys):
    monkeypatch.setattr(spawn, "ENGINE_MODULE", "one_token_engine")
    monkeypatch.setattr(supervisor, "_SPARE_DELAY_S", 0.01)

    async def check():
        user, spares = User(), []
        guard = supervisor.EngineSupervisor(Start("", {}), user, note_spare=spares.append)

        async def until(condition):
            async with asyncio.timeout(60):
                while not condition():
                    await asyncio.sleep(0.005)

        try:
            await guard.begin()
            await until(lambda: spares[-1:] == [1])
            first = guard.process_id
            (idle,) = engines("loading") - {first}
            (place / "broken").touch()
            os.kill(idle, signal.SIGKILL)
            await until(lambda: spares[-1] == 0 and len(engines("loading")) > 3)
            assert (guard.process_id, user.reasons) == (first, [])
            (place / "broken").unlink()
            await until(lambda: spares[-1] == 1)
            os.kill(first, signal.SIGKILL)
            await until(lambda: user.num_engines == 2)
            assert (guard.num_restarts, len(user.reasons)) == (1, 1)
        finally:
            await guard.end()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in engines("loading")))

    asyncio.run(check())
    told = capsys.readouterr().err
    assert "steelyard serve: the engine has ended: " in told
    assert "; the spare takes over" in told
    assert "there is no spare engine: the engine process ended before it was ready" in told


def make_dispatcher(**options):
    return Dispatcher(Backlog(8, 0), GatewayMetrics(), **options)


def make_call():
    codec = TextCodec()
    return Call("call", [[1]], SamplingParams(max_tokens=2), codec, [], streaming=True)


READY = Ready(97, 128, 4096, 8, True)


def test_a_request_waits_for_an_engine_no_longer_than_the_limit():
    async def check():
        dispatcher = make_dispatcher(engine_wait_s=0.01)
        dispatcher.connect(lambda _: None, READY)
        early = make_call()
        dispatcher.submit(early)
        dispatcher.disconnect("exit code -9")
        late = make_call()
        dispatcher.submit(late)
        assert early.failure is None is late.failure
        async with asyncio.timeout(60):
            for call in (early, late):
                while not call.has_news:
                    await call.wait()
        sent = []
        dispatcher.connect(sent.append, READY)
        assert not sent  # for both clients it is too late
        return early.failure, late.failure

    for failure in asyncio.run(check()):
        assert (failure.status, failure.code) == (503, "engine_restarted")
        assert "exit code -9" in str(failure)


def test_questions_for_vectors_go_to_the_next_engine_and_not_for_ever():
    async def check():
        dispatcher = make_dispatcher()
        sent = []
        dispatcher.connect(sent.append, READY)
        asked = asyncio.create_task(dispatcher.embed([[1]]))
        await asyncio.sleep(0)
        dispatcher.disconnect("exit code -9")
        await asyncio.sleep(0)
        dispatcher.connect(sent.append, READY)
        while len(sent) < 2:
            await asyncio.sleep(0)
        assert all(isinstance(item, Embed) for item in sent)
        dispatcher.receive(Embedded(sent[1].key, 1, b"abcd"))
        assert (await asked).values == b"abcd"
        asked = asyncio.create_task(dispatcher.embed([[1]]))
        for _ in range(dispatch.MAX_ATTEMPTS):
            dispatcher.connect(sent.append, READY)
            count = len(sent)
            while len(sent) == count:
                await asyncio.sleep(0)
            dispatcher.disconnect("exit code -9")
        with pytest.raises(ApiError):
            await asked
        asked = asyncio.create_task(dispatcher.embed([[1]]))
        await asyncio.sleep(0)
        dispatcher.disconnect("no memory", retry=False)
        with pytest.raises(ApiError, match="no memory"):
            await asked

    asyncio.run(check())


def test_a_request_that_kills_engines_is_given_up():
    async def check():
        dispatcher = make_dispatcher()
        call, sent = make_call(), []
        dispatcher.submit(call)
        for _ in range(dispatch.MAX_ATTEMPTS):
            assert call.failure is None
            dispatcher.connect(sent.append, READY)
            dispatcher.disconnect("exit code -11")
        assert call.failure is not None and call.has_news
        assert [type(item) for item in sent] == [Add] * dispatch.MAX_ATTEMPTS

    asyncio.run(check())


def test_a_pool_takes_no_memory_before_it_is_used():
    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident_bytes()
    pool = lazy_zeros((2**28,), torch.float32, torch.device("cpu"))
    assert pool[-1] == 0
    assert resident_bytes() - before < 2**26


def test_times_out_of_range_are_refused():
    for name in ("client_timeout_s", "stall_timeout_s"):
        with pytest.raises(ConfigError, match=name):
            ServeOptions(**{name: 0.0})
    with pytest.raises(ConfigError, match="engine_timeout_s"):
        ServeOptions(engine_timeout_s=-1.0)
