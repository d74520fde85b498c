import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.api_keys import read_keys
from steelyard.config import convert, to_plain
from steelyard.errors import ConfigError, DataError
from steelyard.frames import MessageCodec
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.engine import spawn, supervisor
from steelyard.serve.front.engine.wire import (
    Abort,
    Add,
    Start,
    Step,
    ToEngine,
    ToGateway,
    Update,
)
from steelyard.serve.front.gateway.stages import StageClock
from steelyard.serve.front.limits.backlog import Backlog
from steelyard.serve.front.limits.keys import KeyRing, TokenBucket
from steelyard.serve.options import EngineOptions
from steelyard.serve.scheduling.params import SamplingParams


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), min_size=1, max_size=40))
def test_a_bucket_never_gives_more_than_it_holds_and_what_flows_in(asks):
    bucket, now, taken = TokenBucket(60.0), 1.0, 0.0
    for gap, amount in asks:
        now += gap
        wait = bucket.take(amount, now)
        assert wait >= 0
        if wait == 0:
            taken += amount
        else:
            assert bucket.take(amount, now + wait + 1e-6) == 0.0
            now, taken = now + wait + 1e-6, taken + amount
        assert taken <= 60 + (now - 1.0) + 1e-3  # one per second


def test_a_bucket_may_fall_below_empty_and_no_limit_never_waits():
    bucket = TokenBucket(60.0)
    assert bucket.take(60, 1.0) == 0
    bucket.give(-30)
    assert bucket.take(1, 1.0) == pytest.approx(31)
    free = TokenBucket(0.0)
    assert free.take(10**9, 1.0) == 0
    assert TokenBucket(5.0).take(1000, 1.0) == 0  # what could never fit takes all there is


def test_a_backlog_refuses_beyond_its_bounds_and_takes_a_lone_giant():
    backlog = Backlog(3, 100)
    backlog.enter(500)
    with pytest.raises(ApiError) as caught:
        backlog.enter(1)
    assert caught.value.status == 429 and caught.value.retry_after_s >= 1
    backlog.leave(500, 10, 1.0, is_complete=True)
    for _ in range(3):
        backlog.enter(10)
    with pytest.raises(ApiError):
        backlog.refuse_if_full()
    assert backlog.predict(1000) == 10  # as the one that ended
    assert backlog.predict(1000, is_forced=True) == 1000
    assert backlog.predict(4) == 4
    for _ in range(3):
        backlog.leave(10, 10, 2.0, is_complete=False)
    assert (backlog.num_requests, backlog.num_tokens) == (0, 0)


def test_keys_come_from_a_file_and_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "keys"
    path.write_text("# nobody\none alice\n\ntwo\n")
    monkeypatch.setenv("KEYS_OF_OURS", "three, four")
    assert read_keys("KEYS_OF_OURS", path) == {
        "three": "key-1",
        "four": "key-2",
        "one": "alice",
        "two": "key-4",
    }
    ring = KeyRing({"one": "alice"})
    assert ring.identify(b"Bearer one").name == "alice"
    for wrong in (b"", b"Bearer ", b"Bearer on", b"Bearer onee", "Bearer é".encode()):
        with pytest.raises(ApiError):
            ring.identify(wrong)
    assert KeyRing({}).identify(b"").name == "default"
    path.write_text("# nothing\n")
    for variable, file in (("NOT_SET_ANYWHERE", None), ("", path), ("", tmp_path / "missing")):
        with pytest.raises(ConfigError):
            read_keys(variable, file)


def test_messages_arrive_as_they_were_sent():
    step = Step([Update(1, 0, [5], "stop", [-0.5], [[(5, -0.5)]], (0.1, 0.2, 0.3))], 1.0)
    add = Add(4, [1, 2], SamplingParams(max_tokens=3), 0, "alice", "her", 1, 0.5)
    start = Start("folder", to_plain(EngineOptions(swap_folder=Path("x"), preemption="swap")))
    gateway, engine = MessageCodec(ToGateway), MessageCodec(ToEngine)
    assert gateway.feed(engine.encode(step)) == [step]
    taken, began = engine.feed(gateway.encode(add) + gateway.encode(start))
    assert taken == add
    assert convert(began.options, EngineOptions) == EngineOptions(
        swap_folder=Path("x"), preemption="swap"
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Abort(3))) == ["abort", 3]
    with pytest.raises(DataError, match="not a message"):  # one of the other direction
        engine.feed(gateway.encode(step))


def test_stages_sum_to_the_time_since_arrival():
    clock = StageClock()
    clock.arrived_s, clock.parsed_s, clock.tokenized_s, clock.queued_s = 1.0, 1.1, 1.3, 0.2
    clock.sent_s, clock.received_s, clock.begun_s, clock.first_s, clock.last_s = (
        1.5,
        1.6,
        2.0,
        2.5,
        4.0,
    )
    clock.detokenize_s = 0.01
    times = clock.stages(4.1)
    assert sum(times.values()) == pytest.approx(3.1)
    assert times["relay"] == pytest.approx(0.09)
    early = StageClock()
    assert "parse" not in early.stages(early.arrived_s + 1)  # not reached yet


MUTE = """
import socket, sys, time
from steelyard.frames import MessageCodec
from steelyard.serve.front.engine.wire import Ready, ToEngine
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(sys.argv[1])
connection.sendall(MessageCodec(ToEngine).encode(Ready(9, 8, 64, 4, False)))
time.sleep(60)
"""


class Gateway:
    """Stands for the dispatcher: counts engines; the first owes answers as soon as it is up."""

    def __init__(self):
        self.reasons, self.num_engines, self.has_work = [], 0, False

    def connect(self, send, ready):
        self.num_engines += 1
        self.has_work = self.num_engines == 1

    def disconnect(self, reason, *, retry=True):
        self.reasons.append(reason)
        self.has_work = False

    def receive(self, message):
        raise AssertionError("the engine says nothing")


def test_an_engine_that_says_nothing_is_replaced(tmp_path, monkeypatch):
    (tmp_path / "mute_engine.py").write_text(MUTE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(spawn, "ENGINE_MODULE", "mute_engine")
    monkeypatch.setattr(supervisor, "_STOP_TIMEOUT_S", 0.1)

    async def watch():
        gateway = Gateway()
        start = Start("", {})
        guard = supervisor.EngineSupervisor(start, gateway, stall_timeout_s=0.4)
        try:
            await guard.begin()
            first = guard.process_id
            async with asyncio.timeout(120):
                while gateway.num_engines < 2:
                    await asyncio.sleep(0.02)
            assert guard.process_id not in (0, first) and guard.num_restarts == 1
        finally:
            await guard.end()
        return gateway.reasons

    assert asyncio.run(watch()) == ["it said nothing for 0.4 s"]
