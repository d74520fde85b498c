"""One streamed request: what comes back, retries after 429, kinds of errors."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from steelyard.serve.client.record import RequestRecord
from steelyard.serve.client.wire.connection import Answer, ConnectionPool, ProtocolError
from steelyard.serve.client.wire.events import EventSplitter, decode_chunk, parse_stages

__all__ = ["StreamReader", "fill_record", "stream_once"]

_MAX_WAIT_S = 60.0
_DEFAULT_WAIT_S = 1.0


class StreamReader:
    """Turns the bytes of a streamed answer into times, text and counts.

    Attributes:
        chunk_s: when each piece of text came.
        prompt_tokens: length of the prompt as the server counts it, None if it does not.
        output_tokens: length of the output, likewise.
        finish_reason: that of the last choice that had one.
        stages: seconds by stage, where the server reports them.
        error: words of an error event, or of a payload that could not be read.
        error_kind: "stream" or "protocol" with `error`.
        is_ended: whether the end mark came.
    """

    def __init__(self, on_text: Callable[[str], None] | None = None) -> None:
        """Wait for bytes.

        Args:
            on_text: function that takes pieces of text as they come.
        """
        self.chunk_s: list[float] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finish_reason = self.error = self.error_kind = ""
        self.stages: dict[str, float] = {}
        self.is_ended = False
        self._splitter = EventSplitter()
        self._on_text = on_text

    def take(self, data: bytes, now_s: float) -> None:
        """Take bytes that came at `now_s`."""
        for payload in self._splitter.feed(data):
            if payload == b"[DONE]":
                self.is_ended = True
                continue
            try:
                self._take_chunk(payload, now_s)
            except ValueError as error:
                self.error, self.error_kind = str(error), "protocol"

    def _take_chunk(self, payload: bytes, now_s: float) -> None:
        """Take one event."""
        chunk = decode_chunk(payload)
        text = chunk.text
        if text is not None:
            # The last event of a choice may carry an empty text: that is its end, not a token.
            if not (text == "" and chunk.choices[0].finish_reason):
                self.chunk_s.append(now_s)
            if self._on_text is not None:
                self._on_text(text)
        for choice in chunk.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
        if chunk.usage is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
            self.output_tokens = chunk.usage.completion_tokens
            self.stages = chunk.usage.stage_times or {}
        if chunk.error is not None:
            self.error, self.error_kind = _words(chunk.error), "stream"


async def stream_once(
    pool: ConnectionPool,
    path: str,
    body: bytes,
    reader: StreamReader,
    *,
    timeout_s: float,
    request_id: str = "",
) -> tuple[Answer, str, str]:
    """Send one streamed request and read its answer to the end.

    Args:
        pool: connections to the server.
        path: "/completions" or "/chat/completions".
        body: JSON that asks for a stream.
        reader: takes the answer.
        timeout_s: longest wait for the whole answer.
        request_id: id sent along when not empty.

    Returns:
        The answer, the kind of error and its words; both empty when all went well.
    """
    answer = Answer(reader.take)
    try:
        async with asyncio.timeout(timeout_s):
            await pool.exchange(
                pool.endpoint.request("POST", path, body, request_id=request_id), answer
            )
    except TimeoutError:
        return answer, "timeout", f"no whole answer after {timeout_s:g} s"
    except ProtocolError as error:
        return answer, "protocol", str(error)
    except OSError as error:
        return answer, "reset" if answer.status else "refused", str(error) or type(error).__name__
    if answer.status != 200:
        return answer, f"http {answer.status}", error_words(answer.body)
    if reader.error:
        return answer, reader.error_kind, reader.error
    if not (reader.is_ended or reader.finish_reason):
        return answer, "truncated", "the stream ended without its end mark"
    return answer, "", ""


def error_words(body: bytes) -> str:
    """Return the message of an error body, else the first characters of the body."""
    try:
        parsed: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace")
    return _words(parsed.get("error", parsed) if isinstance(parsed, dict) else parsed)


def _words(error: Any) -> str:
    """Return the message of an error object, or the object itself as text."""
    return str(error.get("message", error) if isinstance(error, dict) else error)


def retry_wait_s(answer: Answer) -> float:
    """Return the seconds a 429 asks to wait, at most a minute; one second when it does not say."""
    try:
        wait_s = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return _DEFAULT_WAIT_S
    return min(max(wait_s, 0.0), _MAX_WAIT_S) if math.isfinite(wait_s) else _DEFAULT_WAIT_S


async def fill_record(
    pool: ConnectionPool,
    path: str,
    body: bytes,
    record: RequestRecord,
    *,
    start_s: float,
    timeout_s: float,
    retries: int,
) -> None:
    """Send a request, again after each 429 as often as allowed, and write down what happened.

    Times count from the first sending, so that waiting for a busy server is part of the latency.

    Args:
        pool: connections to the server.
        path: "/completions" or "/chat/completions".
        body: JSON that asks for a stream.
        record: filled; its `scheduled_s`, `index` and `expected_tokens` are set.
        start_s: start of the load on the machine's monotonic clock.
        timeout_s: longest wait for each answer.
        retries: how often a request is sent again after 429.
    """
    record.sent_s = time.perf_counter() - start_s
    while True:
        reader = StreamReader()
        answer, record.error, record.message = await stream_once(
            pool, path, body, reader, timeout_s=timeout_s
        )
        if record.error != "http 429" or record.retries >= retries:
            break
        record.retries += 1
        await asyncio.sleep(retry_wait_s(answer))
    record.finished_s = time.perf_counter() - start_s
    record.first_byte_s = answer.first_byte_s - start_s
    record.chunk_s = [at_s - start_s for at_s in reader.chunk_s]
    record.finish_reason = reader.finish_reason
    record.prompt_tokens = (
        record.prompt_tokens if reader.prompt_tokens is None else reader.prompt_tokens
    )
    record.output_tokens = (
        len(reader.chunk_s) if reader.output_tokens is None else reader.output_tokens
    )
    record.stages = reader.stages or parse_stages(answer.headers.get("x-stage-times", ""))
