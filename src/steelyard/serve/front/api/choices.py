"""What goes back: answers, stream events and log probabilities in the shapes of the OpenAI API."""

import math
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.sequence import Sequence, TokenReport
from steelyard.serve.front.text import TextCodec

__all__ = ["ChatShape", "CompletionShape", "Shape", "usage"]

_encode = msgspec.json.encode
_FLOOR = -9999.0
"""Stands for a probability of zero, which JSON has no number for."""


class Shape(ABC):
    """How one kind of request is answered.

    Attributes:
        id: name of the answer.
        created: seconds since 1970.
        model: name of the model.
    """

    whole = piece = ""

    def __init__(
        self, name: str, created: int, model: str, codec: TextCodec, *, with_usage: bool = False
    ) -> None:
        """Prepare what all events of one answer share.

        Args:
            name: id of the answer.
            created: seconds since 1970.
            model: name of the model.
            codec: tokenizer, for the text of tokens.
            with_usage: whether a last event counts tokens, for which the others carry an empty
                count.
        """
        self.id = name
        self.created = created
        self.model = model
        self._codec = codec
        # What all events of a stream share is encoded once: an event per token would spend most of
        # its time on it.
        head = {"id": name, "object": self.piece, "created": created, "model": model}
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"

    def answer(self, choices: list[dict[str, Any]], counts: dict[str, Any]) -> bytes:
        """Return a whole answer."""
        head = {"id": self.id, "object": self.whole, "created": self.created, "model": self.model}
        return _encode({**head, "choices": choices, "usage": counts})

    @abstractmethod
    def choice(
        self, sequence: Sequence, prefix: str = "", *, with_logprobs: bool = False
    ) -> dict[str, Any]:
        """Return one whole choice."""

    def event(self, sequence: Sequence, *, with_logprobs: bool = False) -> bytes:
        """Return a stream event with what the client does not know yet of a sequence.

        Args:
            sequence: its news count as known from then on.
            with_logprobs: whether log probabilities are reported.

        Returns:
            One event.
        """
        text, sequence.text = sequence.text, ""
        return self._event(sequence, self.delta(text), with_logprobs=with_logprobs)

    def _event(self, sequence: Sequence, delta: bytes, *, with_logprobs: bool) -> bytes:
        """Return an event with the fields in `delta`, and the sequence's end if it has ended."""
        reason = b"null"
        if sequence.finish_reason and not sequence.reported:
            reason = b'"' + self.reason(sequence).encode() + b'"'
            sequence.reported = True
        report = b"null"
        if with_logprobs:
            reports, sequence.reports = sequence.reports, []
            report = _encode(self.report(reports))
        index = str(sequence.index).encode()
        parts = (
            b'{"index":',
            index,
            b",",
            delta,
            b',"logprobs":',
            report,
            b',"finish_reason":',
            reason,
            b"}",
        )
        return self._head + b"".join(parts) + self._tail

    def reason(self, sequence: Sequence) -> str:
        """Return why a sequence ended, in the client's words."""
        return sequence.finish_reason

    @abstractmethod
    def delta(self, text: str) -> bytes:
        """Return the fields of an event that carry text."""

    @abstractmethod
    def report(self, reports: list[TokenReport]) -> dict[str, Any]:
        """Return log probabilities in this kind's form."""

    def opening(self, sequence: Sequence) -> bytes:
        """Return the event before the first text of a choice, if this kind has one."""
        return b""

    def closing(self, counts: dict[str, Any] | None) -> bytes:
        """Return what ends a stream: the counts, when asked for, and the end mark."""
        event = b"" if counts is None else self._head + b'],"usage":' + _encode(counts) + b"}\n\n"
        return event + b"data: [DONE]\n\n"

    def failing(self, error: ApiError) -> bytes:
        """Return what ends a stream that failed."""
        return b"data: " + error.body + b"\n\n"


class CompletionShape(Shape):
    """Answers of `/v1/completions`."""

    whole = piece = "text_completion"

    def choice(
        self, sequence: Sequence, prefix: str = "", *, with_logprobs: bool = False
    ) -> dict[str, Any]:
        """Return one whole choice."""
        report = self.report(sequence.reports) if with_logprobs else None
        return {
            "index": sequence.index,
            "text": prefix + sequence.text,
            "logprobs": report,
            "finish_reason": sequence.finish_reason,
        }

    def delta(self, text: str) -> bytes:
        """Return the fields of an event that carry text."""
        return b'"text":' + _encode(text)

    def report(self, reports: list[TokenReport]) -> dict[str, Any]:
        """Return tokens, log probabilities, the likeliest ones and the characters before each."""
        name = self._codec.piece
        return {
            "tokens": [name(item.token) for item in reports],
            "token_logprobs": [_finite(item.logprob) for item in reports],
            "top_logprobs": [
                {name(token): _finite(value) for token, value in item.tops} for item in reports
            ],
            "text_offset": [item.offset for item in reports],
        }


class ChatShape(Shape):
    """Answers of `/v1/chat/completions`."""

    whole, piece = "chat.completion", "chat.completion.chunk"

    def choice(
        self, sequence: Sequence, prefix: str = "", *, with_logprobs: bool = False
    ) -> dict[str, Any]:
        """Return one whole choice."""
        message = {"role": "assistant", "content": prefix + sequence.text, "refusal": None}
        report = self.report(sequence.reports) if with_logprobs else None
        return {
            "index": sequence.index,
            "message": message,
            "logprobs": report,
            "finish_reason": sequence.finish_reason,
        }

    def delta(self, text: str) -> bytes:
        """Return the fields of an event that carry text."""
        return b'"delta":{"content":' + _encode(text) + b"}" if text else b'"delta":{}'

    def opening(self, sequence: Sequence) -> bytes:
        """Return the event that names the role."""
        index = str(sequence.index).encode()
        body = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return self._head + b'{"index":' + index + body + self._tail

    def report(self, reports: list[TokenReport]) -> dict[str, Any]:
        """Return each token with its log probability, its bytes and the likeliest ones."""
        content = [
            {
                **self._token(item.token, item.logprob),
                "top_logprobs": [self._token(token, value) for token, value in item.tops],
            }
            for item in reports
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        """Return one token."""
        raw = self._codec.piece_bytes(token)
        return {
            "token": raw.decode(errors="replace"),
            "logprob": _finite(logprob),
            "bytes": list(raw),
        }


def _finite(value: float) -> float:
    """Return a number that JSON has."""
    return value if math.isfinite(value) else _FLOOR


def usage(prompt_tokens: int, output_tokens: int, stage_times: dict[str, float]) -> dict[str, Any]:
    """Return the counts of an answer's tokens and where its time went.

    Args:
        prompt_tokens: tokens of all prompts.
        output_tokens: tokens of all choices.
        stage_times: seconds by stage.

    Returns:
        OpenAI's counts, and `stage_times` beside them.
    """
    total = prompt_tokens + output_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": total,
        "stage_times": stage_times,
    }
