import socket
import threading
from contextlib import closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError
from steelyard.frames import Channel, FrameCodec, MessageCodec, session_keys

BODIES = st.lists(st.binary(max_size=60), min_size=1, max_size=8)
KEYS = (b"a" * 32, b"b" * 32)


def pair(keyed, **more):
    """Two ends of one connection."""
    keys = KEYS if keyed else (b"", b"")
    return FrameCodec(keys=keys, **more), FrameCodec(keys=keys[::-1], **more)


@given(BODIES, st.booleans(), st.data())
def test_frames_survive_any_cut(bodies, keyed, data):
    sender, receiver = pair(keyed)
    stream = b"".join(map(sender.encode, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += receiver.feed(stream[start:stop])
    assert found == bodies
    receiver.finish()


@given(BODIES, st.booleans(), st.data())
def test_no_damaged_frame_is_taken(bodies, keyed, data):
    sender, receiver = pair(keyed, limit_bytes=100)
    frames = list(map(sender.encode, bodies))
    damaged = bytearray(b"".join(frames))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    whole, end = 0, 0
    for frame in frames:  # those before the damage
        end += len(frame)
        whole += end <= place
    found = []
    with pytest.raises(DataError):
        for byte in damaged:
            found += receiver.feed(bytes([byte]))
        receiver.finish()
    assert found == bodies[:whole]


def test_long_frames_are_refused_by_both_ends():
    sender, receiver = FrameCodec(limit_bytes=9), FrameCodec(limit_bytes=8)
    assert receiver.feed(FrameCodec().encode(b"x" * 8)) == [b"x" * 8]
    with pytest.raises(DataError, match="longer than 9"):
        sender.encode(b"x" * 10)
    with pytest.raises(DataError, match="announced, more than 8"):
        receiver.feed(sender.encode(b"x" * 9)[:8])  # from the length alone
    with pytest.raises(DataError, match="announced"):
        FrameCodec().feed(b"\xff" * 8)
    with pytest.raises(DataError, match="damaged"):
        FrameCodec().feed(bytes(8))


def test_a_keyed_stream_takes_each_frame_once_in_order_from_the_other_end():
    sender, receiver = pair(keyed=True)
    first, second = sender.encode(b"one"), sender.encode(b"two")
    assert receiver.feed(first) == [b"one"]
    for wrong in (first, sender.encode(b"three"), receiver.encode(b"back")):
        fresh = FrameCodec(keys=KEYS[::-1])
        fresh.feed(first)
        with pytest.raises(DataError, match="wrong key"):
            fresh.feed(wrong)
    assert receiver.feed(second) == [b"two"]
    with pytest.raises(DataError, match="wrong key"):
        FrameCodec(keys=(b"", b"c" * 32)).feed(first)


class Point(msgspec.Struct, tag=True):
    x: int


def test_messages_are_checked_by_their_kind():
    codec = MessageCodec(Point)
    assert codec.feed(codec.encode(Point(3)) * 2) == [Point(3), Point(3)]
    for body in (b"\xc1", msgspec.msgpack.encode({"type": "Line"})):
        with pytest.raises(DataError, match="not a message"):
            codec.feed(FrameCodec().encode(body))


def connect(family):
    """Two connected sockets."""
    if family == "pair":
        return socket.socketpair()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


def unix(folder):
    """Two connected Unix sockets; the path is relative, whatever the length of the folder's."""
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("s")
        server.listen()
        one = socket.socket(socket.AF_UNIX)
        one.connect("s")
        return one, server.accept()[0]


@pytest.mark.parametrize("family", ["pair", "unix", "tcp"])
def test_channels_over_every_kind_of_socket(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sockets = unix(tmp_path) if family == "unix" else connect(family)
    body = bytes(range(256)) * 8000  # more than the buffers of the system hold

    def open_channel(place):
        keys = session_keys(sockets[place], b"k" * 16) if family == "tcp" else (b"", b"")
        return closing(Channel(sockets[place], FrameCodec(keys=keys)))

    def answer():
        with open_channel(1) as channel:
            channel.send(channel.receive()[::-1])
            channel.send(b"")

    thread = threading.Thread(target=answer)
    thread.start()
    with open_channel(0) as channel:
        channel.send(body)
        assert [channel.receive() for _ in range(3)] == [body[::-1], b"", None]
    thread.join()


def test_a_channel_tells_an_end_from_a_cut():
    one, other = socket.socketpair()
    with closing(one), closing(Channel(other, FrameCodec())) as channel:
        frame = FrameCodec().encode(b"half")
        one.sendall(frame + frame[:-1])
        one.shutdown(socket.SHUT_WR)
        assert channel.receive() == b"half"
        with pytest.raises(DataError, match="inside a frame"):
            channel.receive()
        channel.send(b"answer")  # the other direction is still open
        assert FrameCodec().feed(one.recv(100)) == [b"answer"]


def test_tcp_needs_a_key_that_both_ends_have():
    one, other = connect("tcp")
    with closing(one), closing(other):
        with pytest.raises(ConfigError, match="need a key"):
            Channel(one, FrameCodec())
        with pytest.raises(ConfigError, match="too short"):
            session_keys(one, b"short")
        keys = []
        thread = threading.Thread(target=lambda: keys.append(session_keys(other, b"w" * 16)))
        thread.start()
        channel = Channel(one, FrameCodec(keys=session_keys(one, b"k" * 16)))
        thread.join()
        Channel(other, FrameCodec(keys=keys[0])).send(b"let me in")
        with pytest.raises(DataError, match="wrong key"):
            channel.receive()


def test_keys_are_not_agreed_on_with_nobody():
    one, other = socket.socketpair()
    other.close()
    with closing(one), pytest.raises((DataError, OSError)):
        session_keys(one, b"k" * 16)
