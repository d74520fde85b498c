"""Server-sent events of a streamed answer: payloads, and their text, counts and stage times."""

from typing import Any

import msgspec

__all__ = ["Chunk", "EventSplitter", "decode_chunk", "parse_stages"]


class EventSplitter:
    """Cuts a stream of bytes into the payloads of its events, wherever the network cut it."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        """Start with nothing."""
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the payloads of the events they end.

        Args:
            data: any piece of the stream.

        Returns:
            Payloads, "data:" taken off; comments and other fields are dropped.

        Source: WHATWG HTML, section 9.2.6, "Interpreting an event stream".
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        payloads: list[bytes] = []
        for line in lines:
            if line in (b"", b"\r"):
                if self._data:
                    payloads.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").removesuffix(b"\r"))
        return payloads


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    stage_times: dict[str, float] | None = None


class Chunk(msgspec.Struct):
    """One event of a completion or chat stream, as far as it matters here.

    Attributes:
        choices: pieces of text.
        usage: token counts, in the last event where they were asked for, and seconds by stage where
            a server reports them.
        error: when the server gave up in the middle.
    """

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None

    @property
    def text(self) -> str | None:
        """Text of all choices, thoughts included; None when the event carries no choice's text."""
        pieces = [piece for choice in self.choices if (piece := _text(choice)) is not None]
        return "".join(pieces) if pieces else None


def _text(choice: _Choice) -> str | None:
    """Return a choice's text; None for an empty delta of a chat, such as that with the role."""
    if choice.delta is None:
        return choice.text
    return choice.delta.content or choice.delta.reasoning_content or None


_DECODER = msgspec.json.Decoder(Chunk)


def decode_chunk(payload: bytes) -> Chunk:
    """Read an event's payload.

    Args:
        payload: JSON.

    Returns:
        The chunk.

    Raises:
        ValueError: the payload is not the JSON of a chunk.
    """
    try:
        return _DECODER.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(f"an event is not a completion chunk: {error}") from error


def parse_stages(text: str) -> dict[str, float]:
    """Read `name=seconds` pairs separated by commas or semicolons; others are left out."""
    stages: dict[str, float] = {}
    for part in text.replace(";", ",").split(","):
        name, _, value = part.partition("=")
        try:
            stages[name.strip()] = float(value)
        except ValueError:
            continue
    return stages
