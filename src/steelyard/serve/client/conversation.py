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
    """

    text: str
    output_tokens: int
    ttft_s: float
    seconds: float
    is_stopped: bool

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
    """

    endpoint: Endpoint
    model: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0

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

        Args:
            question: words of the user.
            on_text: function that takes pieces of text as they come.

        Returns:
            The answer.

        Raises:
            BackendError: the server cannot be reached or refuses.
        """
        pieces: list[str] = []

        def take(text: str) -> None:
            pieces.append(text)
            on_text(text)

        reader = StreamReader(take)
        asked = [*self.messages, {"role": "user", "content": question}]
        start_s = time.perf_counter()
        stopped = False
        try:
            kind, words = asyncio.run(self._send(asked, reader))
        except KeyboardInterrupt:  # stops the answer, not the program
            kind, words, stopped = "", "", True
        if kind:
            raise BackendError(
                _failure(kind, words, self.endpoint),
                hint="the conversation is as it was before; /retry is for later",
            )
        # Only now: a failed question leaves what was said as it was.
        self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]
        return Reply(
            text="".join(pieces),
            output_tokens=len(reader.chunk_s)
            if reader.output_tokens is None
            else reader.output_tokens,
            ttft_s=reader.chunk_s[0] - start_s if reader.chunk_s else float("nan"),
            seconds=time.perf_counter() - start_s,
            is_stopped=stopped,
        )

    async def _send(self, messages: list[dict[str, str]], reader: StreamReader) -> tuple[str, str]:
        """Send the messages and return the kind of error and its words, empty without one."""
        fields: dict[str, Any] = {"model": self.model} if self.model else {}
        fields |= {
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | self.parameters
        pool = ConnectionPool(self.endpoint)
        with contextlib.closing(pool):
            body = msgspec.json.encode(fields)
            _, kind, words = await stream_once(
                pool, "/chat/completions", body, reader, timeout_s=self.timeout_s
            )
        return kind, words

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
