"""Frames: messages of known length over a stream of bytes, checked and, on TCP, authenticated.

A codec is one end of a connection without the connection: bytes in, bytes out, so that threads,
event loops and tests share it. A `Channel` is a codec on a blocking socket. On the wire a frame is

    length    4 bytes, little-endian   bytes of the body
    checksum  4 bytes, little-endian   CRC-32 of the body, begun with length + 1
    tag       32 bytes, with a key     HMAC-SHA-256 of number and body, number as 8 bytes
    body      `length` bytes

The number counts the frames of one direction, and each direction of each connection has a key of
its own, so that a frame can neither be repeated, left out, nor sent back to its sender.
"""

import hashlib
import hmac
import os
import socket
import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from steelyard.errors import ConfigError, DataError

__all__ = [
    "HEAD_BYTES",
    "MAX_FRAME_BYTES",
    "Channel",
    "FrameCodec",
    "MessageCodec",
    "body_bytes",
    "session_keys",
]

MAX_FRAME_BYTES = 64 * 2**20
"""Longest body by default. A longer one is announced when a stream is out of step or its sender is
hostile; the limit keeps either from taking the memory of the machine."""

_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
"""Length and checksum, which stand before every body."""
_NUMBER = struct.Struct("<Q")
_TAG_BYTES = 32
_NONCE_BYTES = 16
_READ_BYTES = 256 * 1024


class FrameCodec:
    """Frames of bytes."""

    def __init__(
        self, *, keys: tuple[bytes, bytes] = (b"", b""), limit_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        """Start with no bytes.

        Args:
            keys: keys of what is sent and of what comes, from `session_keys`; frames have no tag
                where they are empty.
            limit_bytes: longest body in either direction.
        """
        self._send_key, self._receive_key = keys
        self._limit_bytes = limit_bytes
        self._num_sent = self._num_received = 0
        self._head_bytes = _HEAD.size + (_TAG_BYTES if self._receive_key else 0)
        self._rest = bytearray()

    def encode(self, body: bytes) -> bytes:
        """Return a body as a frame.

        Args:
            body: any bytes, none included.

        Returns:
            The bytes to send.

        Raises:
            DataError: the body is longer than the limit.
        """
        size = len(body)
        if size > self._limit_bytes:
            raise DataError(
                f"a frame of {size} bytes is longer than {self._limit_bytes}",
                hint="send less at once",
            )
        # The checksum starts from the length: a damaged length is noticed even where the bytes
        # that follow happen to fit, and eight zero bytes are no frame.
        head = _HEAD.pack(size, zlib.crc32(body, size + 1))
        if self._send_key:
            head += _tag(self._send_key, self._num_sent, body)
            self._num_sent += 1
        return head + body

    def feed(self, data: bytes) -> list[Any]:
        """Take bytes and return what they complete.

        Args:
            data: bytes of any number, cut anywhere.

        Returns:
            Bodies in order.

        Raises:
            DataError: a length is beyond the limit, a checksum or tag is wrong; the stream cannot
                be used any more.
        """
        # Most reads hold whole frames: those are cut from `data` itself, without a copy into the
        # buffer. The buffer grows in place, so that a long frame is not copied once per read.
        held = self._rest
        if held:
            held += data
        source = held or data
        start, end, found = 0, len(source), []
        while end - start >= _HEAD.size:
            size, checksum = _HEAD.unpack_from(source, start)
            if size > self._limit_bytes:
                raise DataError(
                    f"a frame of {size} bytes was announced, more than {self._limit_bytes}",
                    hint="connect again",
                )
            begin = start + self._head_bytes
            stop = begin + size
            if end < stop:
                break
            body = bytes(source[begin:stop])
            if zlib.crc32(body, size + 1) != checksum:
                raise DataError("a frame was damaged on its way", hint="connect again")
            if self._receive_key:
                self._check_tag(source[start + _HEAD.size : begin], body)
            found.append(self._decode(body))
            start = stop
        if held:
            del held[:start]
        elif start < end:
            held += data[start:]
        return found

    def finish(self) -> None:
        """Accept the end of the stream.

        Raises:
            DataError: it ended inside a frame.
        """
        if self._rest:
            raise DataError("the connection was closed inside a frame", hint="connect again")

    def _check_tag(self, tag: bytes | bytearray, body: bytes) -> None:
        """Refuse a frame that the holder of the key did not send at this place of the stream."""
        # Comparing in constant time: how long it takes tells an attacker nothing about the tag.
        if not hmac.compare_digest(tag, _tag(self._receive_key, self._num_received, body)):
            raise DataError("a frame has a wrong key", hint="give both ends the same key")
        self._num_received += 1

    def _decode(self, body: bytes) -> Any:
        """Return what `feed` gives for a body."""
        return body


class MessageCodec(FrameCodec):
    """Frames of msgspec messages as MessagePack."""

    def __init__(
        self,
        kind: Any,
        *,
        keys: tuple[bytes, bytes] = (b"", b""),
        limit_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        """Start with no bytes.

        Args:
            kind: union of the messages that come.
            keys: keys that `FrameCodec` takes.
            limit_bytes: longest body in either direction.
        """
        super().__init__(keys=keys, limit_bytes=limit_bytes)
        self._pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self._unpack: Callable[[bytes], Any] = msgspec.msgpack.Decoder(kind).decode

    def encode(self, body: Any) -> bytes:
        """Return a message as a frame; errors as of `FrameCodec.encode`."""
        return FrameCodec.encode(self, self._pack(body))

    def _decode(self, body: bytes) -> Any:
        """Return the message of a body."""
        try:
            return self._unpack(body)
        except msgspec.MsgspecError as error:
            raise DataError(f"a frame is not a message: {error}", hint="connect again") from error


class Channel:
    """Whole frames over a connected socket.

    One thread may send while another receives.
    """

    def __init__(self, connection: socket.socket, codec: FrameCodec) -> None:
        """Take a connection.

        Args:
            connection: one of a socket pair, a Unix or a TCP socket; blocking.
            codec: keyed by `session_keys` on TCP.

        Raises:
            ConfigError: a TCP connection without a key: anyone on the machine or its network could
                send what this end believes.
        """
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            if not codec._receive_key:
                raise ConfigError("frames over TCP need a key", hint="use session_keys")
            # A frame is written at once, so waiting for more bytes only adds latency.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._codec = connection, codec
        self._found: list[Any] = []

    def send(self, item: Any) -> None:
        """Send a body or message; waits while the other end does not read.

        Args:
            item: what the codec encodes.

        Raises:
            OSError: the connection is closed.
            DataError: it is too long; nothing was sent.
        """
        self._connection.sendall(self._codec.encode(item))

    def receive(self) -> Any:
        """Wait for the next body or message.

        Returns:
            It, or None when the other end has closed the connection.

        Raises:
            OSError: the connection broke.
            DataError: what came is no frame, or ended inside one.
        """
        while not self._found:
            data = self._connection.recv(_READ_BYTES)
            if not data:
                self._codec.finish()
                return None
            self._found = self._codec.feed(data)
        return self._found.pop(0)

    def set_timeout(self, timeout_s: float | None) -> None:
        """Bound the wait of each later read and write; it then ends as an OSError.

        Args:
            timeout_s: seconds, above 0; None to wait as long as it takes.
        """
        self._connection.settimeout(timeout_s)

    def close(self) -> None:
        """Close the connection; the other end sees its end."""
        self._connection.close()


def body_bytes(head: bytes) -> int:
    """Return the length of the body that a head announces, `HEAD_BYTES` long."""
    return int(_HEAD.unpack(head)[0])


def session_keys(connection: socket.socket, key: bytes) -> tuple[bytes, bytes]:
    """Agree on the keys of a connection, before its first frame; both ends call it.

    Each end draws a number and tells it. Of the shared key and both numbers comes one key per
    direction, so that frames of an earlier connection, or of the other direction, are refused.

    Args:
        connection: blocking.
        key: secret of both ends, 16 bytes or more.

    Returns:
        The keys of what is sent and of what comes.

    Raises:
        ConfigError: the key is too short.
        DataError: the other end closed the connection.
    """
    if len(key) < _NONCE_BYTES:
        raise ConfigError(
            f"a key of {len(key)} bytes is too short", hint="give secrets.token_bytes(32)"
        )
    own, other = os.urandom(_NONCE_BYTES), b""
    connection.sendall(own)
    while len(other) < _NONCE_BYTES:
        data = connection.recv(_NONCE_BYTES - len(other))
        if not data:
            raise DataError("the connection was closed before it began", hint="connect again")
        other += data
    return hmac.digest(key, own + other, "sha256"), hmac.digest(key, other + own, "sha256")


def _tag(key: bytes, number: int, body: bytes) -> bytes:
    """Return the tag of a frame."""
    state = hmac.new(key, _NUMBER.pack(number), hashlib.sha256)
    state.update(body)
    return state.digest()
