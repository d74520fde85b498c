import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.engine import supervisor
from steelyard.serve.front.engine.wire import (
    Abort,
    Add,
    FrameReader,
    Start,
    Step,
    ToEngine,
    ToGateway,
    Update,
    encode_frame,
)
from steelyard.serve.front.gateway.stages import StageClock
from steelyard.serve.front.limits.backlog import Backlog
from steelyard.serve.front.limits.keys import KeyRing, TokenBucket, read_keys
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


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2**31), max_size=20), min_size=1, max_size=8), st.data())
def test_frames_survive_any_cut(prompts, data):
    frames = [
        Add(key, prompt, SamplingParams(max_tokens=3), 0, "a", 1, 0.5)
        for key, prompt in enumerate(prompts)
    ]
    stream = b"".join(encode_frame(item) for item in [*frames, Abort(7)])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, found = FrameReader(ToEngine), []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:stop])
    assert found == [*frames, Abort(7)]


def test_broken_frames_are_refused():
    with pytest.raises(DataError, match="announced"):
        list(FrameReader(ToEngine).feed(b"\xff\xff\xff\xff"))
    with pytest.raises(DataError, match="not a message"):
        list(FrameReader(ToEngine).feed(b"\x02\x00\x00\x00\xc1\xc1"))
    step = Step([Update(1, 0, [5], "stop", [-0.5], [[(5, -0.5)]], (0.1, 0.2, 0.3))], 1.0)
    assert list(FrameReader(ToGateway).feed(encode_frame(step))) == [step]
    with pytest.raises(DataError, match="not a message"):  # a frame of the other direction
        list(FrameReader(ToEngine).feed(encode_frame(step)))
    assert msgspec.msgpack.decode(encode_frame(Abort(3))[4:]) == ["abort", 3]


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
from steelyard.serve.front.engine.wire import Ready, encode_frame
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(sys.argv[1])
connection.sendall(encode_frame(Ready(9, 8, 64, 4, False)))
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
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(supervisor, "_MODULE", "mute_engine")
    monkeypatch.setattr(supervisor, "_STOP_TIMEOUT_S", 0.1)

    async def watch():
        gateway = Gateway()
        start = Start("", 1, 0, 1, "fcfs", False, 1, ())
        guard = supervisor.EngineSupervisor(start, gateway, stall_timeout_s=0.4)
        await guard.begin()
        first = guard.process_id
        async with asyncio.timeout(30):
            while gateway.num_engines < 2:
                await asyncio.sleep(0.02)
        assert guard.process_id not in (0, first) and guard.num_restarts == 1
        await guard.end()
        return gateway.reasons

    assert asyncio.run(watch()) == ["it said nothing for 0.4 s"]
