"""What gateway and engine tell each other.

Length-prefixed MessagePack frames over a Unix socket.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec

from steelyard.errors import DataError
from steelyard.serve.scheduling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Abort",
    "Add",
    "Drain",
    "Embed",
    "Embedded",
    "Failed",
    "FrameReader",
    "GetStats",
    "Ready",
    "Start",
    "Stats",
    "Step",
    "ToEngine",
    "ToGateway",
    "Update",
    "encode_frame",
]

MAX_FRAME_BYTES = 64 * 2**20
"""Longest frame either side takes; a longer one means that the stream is broken."""

_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, tag="start", array_like=True, frozen=True):
    """How to make the engine; the first frame.

    Attributes:
        model: folder of the model.
        pool_bytes: bytes of the key/value pool.
        max_model_len: longest prompt and output together, 0 for what model and pool allow.
        token_budget: most tokens per step.
        policy: order in which requests are served.
        asynchronous: plan one step ahead.
        threads: of the tensor library, 0 for its own choice.
        cores: processor cores the process may use, all when empty.
    """

    model: str
    pool_bytes: int
    max_model_len: int
    token_budget: int
    policy: str
    asynchronous: bool
    threads: int
    cores: tuple[int, ...]


class Add(msgspec.Struct, tag="add", array_like=True, frozen=True):
    """Run a prompt.

    Attributes:
        key: names it in both directions; never used twice on one connection.
        prompt: token ids.
        params: sampling parameters.
        priority: smaller runs first under the priority policy.
        client: who pays for it.
        expected_output: output tokens the gateway expects.
        sent_s: when the gateway sent it, on the machine's monotonic clock.
    """

    key: int
    prompt: list[int]
    params: SamplingParams
    priority: int
    client: str
    expected_output: int
    sent_s: float


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """Drop a prompt's sequences; nothing happens when they have ended."""

    key: int


class Embed(msgspec.Struct, tag="embed", array_like=True, frozen=True):
    """Give one vector for each prompt."""

    key: int
    prompts: list[list[int]]


class GetStats(msgspec.Struct, tag="get-stats", array_like=True, frozen=True):
    """Ask for the counters."""

    key: int


class Drain(msgspec.Struct, tag="drain", array_like=True, frozen=True):
    """Finish what is in flight, then end the process."""


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The engine takes requests.

    Attributes:
        vocab_size: token ids lie below it.
        max_model_len: longest prompt and output together.
        slots: tokens the key/value pool holds.
        max_num_seqs: most sequences that run at once.
        embeds: whether `Embed` is answered.
    """

    vocab_size: int
    max_model_len: int
    slots: int
    max_num_seqs: int
    embeds: bool


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The engine could not be made, or a step failed; the process ends.

    Attributes:
        message: what went wrong.
        hint: what to do about it.
        exit_code: what the command line should exit with.
    """

    message: str
    hint: str
    exit_code: int


class Update(msgspec.Struct, array_like=True, frozen=True):
    """What one sequence got in a step.

    Attributes:
        key: of the prompt.
        index: of the sequence among those of the prompt.
        tokens: new token ids; the stop token that ended it is not among them.
        finish_reason: "stop", "length", "abort" or "refused" when it ended, else empty.
        logprobs: one natural logarithm per token, or None.
        tops: (token, natural logarithm) pairs, most likely first, for each token, or None.
        stamps: when the frame was received, when the first step began and when its first token
            came; with the first token only.
        message: why it was refused.
    """

    key: int
    index: int
    tokens: list[int]
    finish_reason: str = ""
    logprobs: list[float] | None = None
    tops: list[list[tuple[int, float]]] | None = None
    stamps: tuple[float, float, float] | None = None
    message: str = ""


class Step(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """All tokens of all sequences of one step.

    Attributes:
        updates: one per sequence with news.
        ended_s: when the step's tokens were known, on the machine's monotonic clock.
    """

    updates: list[Update]
    ended_s: float


class Embedded(msgspec.Struct, tag="embedded", array_like=True, frozen=True):
    """Answer to `Embed`.

    Attributes:
        key: as asked.
        width: of one vector.
        values: float32 little-endian, [prompts, width] in row order; empty when refused.
        message: why it was refused.
    """

    key: int
    width: int
    values: bytes
    message: str = ""


class Stats(msgspec.Struct, tag="stats", array_like=True, frozen=True):
    """Answer to `GetStats`: the engine's counters by name."""

    key: int
    values: dict[str, float]


ToEngine = Start | Add | Abort | Embed | GetStats | Drain
ToGateway = Ready | Failed | Step | Embedded | Stats


def encode_frame(message: ToEngine | ToGateway) -> bytes:
    """Return a message as bytes with its length in front.

    Args:
        message: of either direction.

    Returns:
        Four bytes of length, little-endian, and the MessagePack body.

    Raises:
        DataError: the body is longer than `MAX_FRAME_BYTES`.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise DataError(
            f"a frame of {len(body)} bytes is longer than {MAX_FRAME_BYTES}",
            hint="send fewer tokens in one request",
        )
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self, kind: Any) -> None:
        """Start with no bytes.

        Args:
            kind: union of the messages to expect.
        """
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[ToEngine | ToGateway]:
        """Take bytes and give the messages they complete.

        Args:
            data: of any length, cut anywhere.

        Yields:
            Messages in order.

        Raises:
            DataError: a length is beyond `MAX_FRAME_BYTES` or a body is none of the expected
                messages.
        """
        self._buffer += data
        start, buffer = 0, self._buffer
        try:
            while len(buffer) - start >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(buffer, start)
                if size > MAX_FRAME_BYTES:
                    raise DataError(
                        f"a frame of {size} bytes was announced, more than {MAX_FRAME_BYTES}",
                        hint="restart the server",
                    )
                stop = start + _LENGTH.size + size
                if len(buffer) < stop:
                    break
                body = bytes(memoryview(buffer)[start + _LENGTH.size : stop])
                start = stop
                yield self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise DataError(
                f"a frame is not a message: {error}", hint="restart the server"
            ) from error
        finally:
            del buffer[:start]


_encoder = msgspec.msgpack.Encoder()
