"""A conversation with a chat model: what was said, how to ask, and the answer as it comes."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from steelyard.errors import BackendError, ConfigError, DataError
from steelyard.files import read_json, write_json
from steelyard.serve.client.wire.address import Endpoint
from steelyard.serve.client.wire.connection import ConnectionPool
from steelyard.serve.client.wire.stream import StreamReader, stream_once

__all__ = ["Conversation", "Reply"]

_ROOM = 256
"""Tokens kept for an answer, unless a quarter of the context is less."""

_FULL = (b"context_length_exceeded", b"context length", b"context size")
"""Words by which OpenAI, vLLM and llama.cpp say that a prompt is too long."""

_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One answer.

    Attributes:
        text: text of the answer, as far as it came.
        output_tokens: tokens as the server counts them, else pieces of text.
        ttft_s: sending to first text, NaN without text.
        seconds: sending to the end.
        is_stopped: whether the user stopped it.
        left_out: oldest turns that no longer fitted the model's context.
        is_cut: whether it ended at the longest length and not at its end.
    """

    text: str
    output_tokens: int
    ttft_s: float
    seconds: float
    is_stopped: bool
    left_out: int = 0
    is_cut: bool = False

    @property
    def tokens_per_s(self) -> float:
        """Output tokens after the first over the time after it; 0 with fewer than two."""
        busy_s = self.seconds - self.ttft_s
        return (self.output_tokens - 1) / busy_s if self.output_tokens > 1 and busy_s > 0 else 0.0


@dataclass(kw_only=True, slots=True)
class Conversation:
    """What was said so far, and how the model is asked.

    Attributes:
        endpoint: the server.
        model: name, the server's own choice when empty.
        messages: turns with "role" and "content", the system's first if there is one.
        parameters: further fields of the request, such as {"temperature": 0.7}.
        timeout_s: longest wait for one answer.
        context: tokens of prompt and answer together that the model takes, 0 when unknown.
    """

    endpoint: Endpoint
    model: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0
    context: int = 0
    _tokens_per_char: float = field(default=0.0, init=False, repr=False)

    @property
    def system(self) -> str:
        """The system's message, empty for none."""
        return (
            self.messages[0]["content"]
            if self.messages and self.messages[0]["role"] == "system"
            else ""
        )

    def set_system(self, text: str) -> None:
        """Set the system's message, or take it away with an empty text; what was said stays."""
        rest = [item for item in self.messages if item["role"] != "system"]
        self.messages = [{"role": "system", "content": text}, *rest] if text else rest

    def clear(self) -> None:
        """Forget what was said; the system's message stays."""
        self.messages = [item for item in self.messages if item["role"] == "system"]

    def take_back(self) -> str:
        """Forget the last question and its answer.

        Returns:
            The question.

        Raises:
            ConfigError: nothing was asked yet.
        """
        places = [place for place, item in enumerate(self.messages) if item["role"] == "user"]
        if not places:
            raise ConfigError("nothing was asked yet", hint="type a question")
        question = self.messages[places[-1]]["content"]
        self.messages = self.messages[: places[-1]]
        return question

    def set_parameter(self, text: str) -> None:
        """Set a field of the request, or take it away.

        Args:
            text: NAME=VALUE, the value in JSON or as plain text; NAME= takes the field away.

        Raises:
            ConfigError: there is no name or no "=".
        """
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name.isidentifier() or not equals:
            raise ConfigError(
                f"cannot read {text!r}", hint="write NAME=VALUE, such as temperature=0.7"
            )
        if not value:
            self.parameters.pop(name, None)
            return
        try:
            self.parameters[name] = json.loads(value)
        except ValueError:
            self.parameters[name] = value

    def ask(self, question: str, on_text: Callable[[str], None]) -> Reply:
        """Ask and wait for the answer; Ctrl-C stops it, and what came so far counts.

        The question and its answer are added to what was said; neither is when the server fails.
        What was said stays whole, but of a conversation that outgrows the model's context the
        oldest turns are not sent any more.

        Args:
            question: words of the user.
            on_text: function that takes pieces of text as they come.

        Returns:
            The answer.

        Raises:
            BackendError: the server cannot be reached or refuses.
            OSError: `on_text` cannot write, because its reader is gone or the disk is full.
        """
        output = _Output(on_text)
        asked = [*self.messages, {"role": "user", "content": question}]
        start_s = time.perf_counter()
        stopped, left_out = False, self._num_too_old(asked)
        try:
            while True:
                reader = StreamReader(output.take)
                sent = _without(asked, left_out)
                kind, words, is_full = asyncio.run(self._send(sent, reader, output))
                if not is_full or left_out + 1 >= _num_turns(asked):
                    break
                # The estimate was too low, or there was none; a full context is a lower bound.
                least = self.context / _num_chars(sent)
                self._tokens_per_char = max(self._tokens_per_char, least)
                left_out = max(left_out + 1, self._num_too_old(asked))
        except KeyboardInterrupt:  # stops the answer, not the program
            kind, words, stopped, is_full = "", "", True, False
        except asyncio.CancelledError:
            if output.error is None:
                raise
            kind, words, is_full = "", "", False
        if output.error is not None:
            raise output.error
        if kind:
            raise self._refusal(kind, words, is_full=is_full)
        # Only now: a failed question leaves what was said as it was.
        self.messages = [*asked, {"role": "assistant", "content": output.text}]
        if reader.prompt_tokens:
            self._tokens_per_char = reader.prompt_tokens / _num_chars(sent)
        return Reply(
            text=output.text,
            output_tokens=len(reader.chunk_s)
            if reader.output_tokens is None
            else reader.output_tokens,
            ttft_s=reader.chunk_s[0] - start_s if reader.chunk_s else float("nan"),
            seconds=time.perf_counter() - start_s,
            is_stopped=stopped,
            left_out=left_out,
            is_cut=reader.finish_reason == "length",
        )

    @property
    def room(self) -> int:
        """Tokens of the context that are kept for the answer."""
        limit = self.parameters.get("max_completion_tokens") or self.parameters.get("max_tokens")
        return limit if isinstance(limit, int) else min(_ROOM, self.context // 4)

    def _num_too_old(self, asked: list[dict[str, str]]) -> int:
        """Count the oldest turns to leave out so that the answer has room, by the last prompt."""
        count = 0
        while count + 1 < _num_turns(asked) and self.context:
            tokens = self._tokens_per_char * _num_chars(_without(asked, count))
            if tokens + self.room <= self.context:
                break
            count += 1
        return count

    def _refusal(self, kind: str, words: str, *, is_full: bool) -> BackendError:
        """Return the error of a question that got no answer."""
        if not is_full:
            hint = "the conversation is as it was before; /retry is for later"
            return BackendError(_failure(kind, words, self.endpoint), hint=hint)
        size = f" of {self.context} tokens" if self.context else ""
        return BackendError(
            f"the question alone does not fit the model's context{size}: {words}",
            hint="ask in fewer words, or allow a shorter answer with max_tokens",
        )

    async def _send(
        self, messages: list[dict[str, str]], reader: StreamReader, output: "_Output"
    ) -> tuple[str, str, bool]:
        """Send messages; return kind and words of an error and whether the context is full."""
        fields: dict[str, Any] = {"model": self.model} if self.model else {}
        fields |= {
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | self.parameters
        output.task = asyncio.current_task()
        pool = ConnectionPool(self.endpoint)
        with contextlib.closing(pool):
            body = msgspec.json.encode(fields)
            answer, kind, words = await stream_once(
                pool, "/chat/completions", body, reader, timeout_s=self.timeout_s
            )
        full = answer.status == 400 and any(mark in answer.body for mark in _FULL)
        return kind, words, full

    def save(self, path: Path) -> None:
        """Write the conversation as JSON.

        Args:
            path: the file; an older one is replaced.

        Raises:
            DataError: the file cannot be written.
        """
        try:
            write_json(
                path,
                {"model": self.model, "parameters": self.parameters, "messages": self.messages},
            )
        except OSError as error:
            raise DataError(
                f"cannot write {path}: {error.strerror}",
                hint="name a file in a folder you may write to",
            ) from error

    def load(self, path: Path) -> None:
        """Read what `save` wrote; the model stays as it is.

        Args:
            path: the file.

        Raises:
            DataError: the file is missing or holds no conversation; nothing has changed.
        """
        found = read_json(path)
        messages = found.get("messages") if isinstance(found, dict) else None
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise DataError(
                f"{path} holds no conversation",
                hint='it needs "messages" with "role" and "content"; /save writes such a file',
            )
        self.messages = [{"role": item["role"], "content": item["content"]} for item in messages]
        self.parameters = dict(found.get("parameters") or {})


class _Output:
    """Takes the text of an answer; where it cannot be written, the answer is given up."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        """Start with no text."""
        self.error: OSError | None = None
        self.task: asyncio.Task[Any] | None = None
        self._on_text = on_text
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def take(self, text: str) -> None:
        """Take a piece."""
        self._pieces.append(text)
        try:
            self._on_text(text)
        except OSError as error:
            # Raised here it would be taken for a failure of the connection, which calls this.
            self.error = error
            if self.task is not None:
                self.task.cancel()


def _num_turns(messages: list[dict[str, str]]) -> int:
    """Count the questions."""
    return sum(item["role"] == "user" for item in messages)


def _num_chars(messages: list[dict[str, str]]) -> int:
    """Count the characters that a chat template makes a prompt of, its own few included."""
    return sum(len(item["content"]) + 10 for item in messages)


def _without(messages: list[dict[str, str]], count: int) -> list[dict[str, str]]:
    """Leave out the oldest turns, from a question up to the next; the system's message stays."""
    if not count:
        return messages
    starts = [place for place, item in enumerate(messages) if item["role"] == "user"]
    head = [item for item in messages[:1] if item["role"] == "system"]
    return head + messages[starts[count] :]


def _is_message(item: Any) -> bool:
    """Whether a value is one turn of a conversation."""
    return (
        isinstance(item, dict)
        and item.get("role") in _ROLES
        and isinstance(item.get("content"), str)
    )


def _failure(kind: str, words: str, endpoint: Endpoint) -> str:
    """Say why an answer failed."""
    if kind == "refused":
        return f"no server answers at {endpoint.url}: {words}"
    return f"{endpoint.url} failed ({kind}): {words}"
