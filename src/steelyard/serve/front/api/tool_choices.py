"""Choices of a chat in which the model may call functions."""

from typing import Any

import msgspec

from steelyard.serve.front.api.choices import ChatShape
from steelyard.serve.front.api.splitter import CallSplitter, Piece
from steelyard.serve.front.sequence import Sequence

__all__ = ["ToolChatShape"]

_encode = msgspec.json.encode


class ToolChatShape(ChatShape):
    """Answers of `/v1/chat/completions` with functions on offer."""

    def __init__(self, *words: Any, **options: Any) -> None:
        """Prepare as every chat does; each choice has its own splitter."""
        super().__init__(*words, **options)
        self._splitters: dict[int, CallSplitter] = {}

    def choice(
        self, sequence: Sequence, prefix: str = "", *, with_logprobs: bool = False
    ) -> dict[str, Any]:
        """Return one whole choice; its content is null when there are only calls."""
        pieces = self._pieces(sequence)
        whole = super().choice(sequence, prefix, with_logprobs=with_logprobs)
        calls: list[dict[str, Any]] = []
        for piece in pieces:
            if piece.kind == "begin":
                calls.append(_begun(piece))
            elif piece.kind == "arguments":
                calls[-1]["function"]["arguments"] += piece.text
        text = "".join(piece.text for piece in pieces if piece.kind == "text")
        message = whole["message"]
        message["content"] = text or ("" if not calls else None)
        if calls:
            message["tool_calls"] = calls
            whole["finish_reason"] = self.reason(sequence)
        return whole

    def event(self, sequence: Sequence, *, with_logprobs: bool = False) -> bytes:
        """Return the events of what the client does not know yet: text, calls, arguments."""
        deltas = [_delta(piece) for piece in self._pieces(sequence) if piece.kind != "end"]
        if sequence.finish_reason and not sequence.reported:
            deltas.append(b'"delta":{}')
        # Why it ended stands in the last event alone.
        reason, sequence.finish_reason = sequence.finish_reason, ""
        events = []
        for place, delta in enumerate(deltas):
            if place == len(deltas) - 1:
                sequence.finish_reason = reason
            events.append(self._event(sequence, delta, with_logprobs=with_logprobs))
        sequence.finish_reason = reason
        return b"".join(events)

    def reason(self, sequence: Sequence) -> str:
        """Return why a sequence ended; one that called and was not cut short ended to call."""
        splitter = self._splitters.get(sequence.index)
        called = splitter is not None and splitter.num_calls > 0
        return (
            "tool_calls"
            if called and sequence.finish_reason == "stop"
            else super().reason(sequence)
        )

    def _pieces(self, sequence: Sequence) -> list[Piece]:
        """Take what is new of a sequence."""
        splitter = self._splitters.setdefault(sequence.index, CallSplitter())
        text, sequence.text = sequence.text, ""
        pieces = splitter.push(text)
        return pieces + splitter.finish() if sequence.finish_reason else pieces


def _begun(piece: Piece) -> dict[str, Any]:
    """Return a call without arguments."""
    return {"id": piece.id, "type": "function", "function": {"name": piece.text, "arguments": ""}}


def _delta(piece: Piece) -> bytes:
    """Return the fields of an event that carries a piece."""
    if piece.kind == "text":
        return b'"delta":' + _encode({"content": piece.text})
    call = _begun(piece) if piece.kind == "begin" else {"function": {"arguments": piece.text}}
    return b'"delta":' + _encode({"tool_calls": [{"index": piece.call, **call}]})
