"""What goes back from `/v1/responses`: an answer as items, and the events that tell of them."""

import secrets
from typing import Any

import msgspec

from steelyard.serve.front.api.choices import Shape
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.api.responses import ResponseBody, TextOptions
from steelyard.serve.front.api.splitter import CallSplitter, Piece
from steelyard.serve.front.sequence import Sequence, TokenReport
from steelyard.serve.front.text import TextCodec

__all__ = ["ResponseShape"]

_encode = msgspec.json.encode


class ResponseShape(Shape):
    """One answer of `/v1/responses`.

    Its items are made of pieces of the output one after the other; a stream sends the events that
    this gives, a whole answer only the items.

    Attributes:
        items: messages and function calls so far.
    """

    whole = "response"

    def __init__(
        self, name: str, created: int, model: str, codec: TextCodec, body: ResponseBody
    ) -> None:
        """Prepare what all events share.

        Args:
            name: id of the answer.
            created: seconds since 1970.
            model: name of the model.
            codec: tokenizer.
            body: what was asked; parts of it are in the answer.
        """
        super().__init__(name, created, model, codec)
        self.items: list[dict[str, Any]] = []
        self._body = body
        # Without tools a mark in the text is text like any other.
        self._splitter = CallSplitter() if body.tools and body.tool_choice != "none" else None
        self._number = 0
        self._reason = ""

    def choice(
        self, sequence: Sequence, prefix: str = "", *, with_logprobs: bool = False
    ) -> dict[str, Any]:
        """Take the whole output; `answer` has its items."""
        self._take(sequence)
        return {}

    def answer(self, choices: list[dict[str, Any]], counts: dict[str, Any]) -> bytes:
        """Return the whole answer."""
        return _encode(self._response(self._status, counts))

    def opening(self, sequence: Sequence) -> bytes:
        """Return the events before the first text."""
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return self._events([(kind, {"response": response}) for kind in kinds])

    def event(self, sequence: Sequence, *, with_logprobs: bool = False) -> bytes:
        """Return the events of what the client does not know yet."""
        return self._events(self._take(sequence))

    def closing(self, counts: dict[str, Any] | None) -> bytes:
        """Return the last event, with the whole answer."""
        response = self._response(self._status, counts)
        return self._events([(f"response.{self._status}", {"response": response})])

    def failing(self, error: ApiError) -> bytes:
        """Return what ends a stream that failed."""
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": str(error)}
        fields = {"code": error.code, "message": str(error), "param": error.param}
        return self._events([("error", fields), ("response.failed", {"response": response})])

    def delta(self, text: str) -> bytes:
        """Not used: events here are made of pieces."""
        raise AssertionError("an answer of /v1/responses has no choices")

    def report(self, reports: list[TokenReport]) -> dict[str, Any]:
        """Not used: log probabilities are refused."""
        raise AssertionError("an answer of /v1/responses has no log probabilities")

    @property
    def _status(self) -> str:
        """How the answer ended."""
        return "incomplete" if self._reason == "length" else "completed"

    def _take(self, sequence: Sequence) -> list[tuple[str, dict[str, Any]]]:
        """Add what is new to the items and return its events."""
        text, sequence.text = sequence.text, ""
        ended = bool(sequence.finish_reason)
        if self._splitter is None:
            pieces = [Piece("text", text)] if text else []
        else:
            pieces = self._splitter.push(text) + (self._splitter.finish() if ended else [])
        events = [event for piece in pieces for event in self._add(piece)]
        if ended and not sequence.reported:
            sequence.reported, self._reason = True, sequence.finish_reason
            if not self.items:
                events += self._open_message()
            events += self._close()
        return events

    def _add(self, piece: Piece) -> list[tuple[str, dict[str, Any]]]:
        """Add a piece of the output."""
        if piece.kind == "text":
            begun = [] if self.items else self._open_message()
            self.items[-1]["content"][0]["text"] += piece.text
            words = {"content_index": 0, "delta": piece.text, "logprobs": []}
            return [*begun, ("response.output_text.delta", self._place() | words)]
        if piece.kind == "begin":
            closed = self._close()
            call = {"type": "function_call", "call_id": piece.id, "name": piece.text}
            self.items.append({**self._item("fc"), **call, "arguments": ""})
            return [*closed, ("response.output_item.added", self._whole())]
        if piece.kind == "arguments":
            self.items[-1]["arguments"] += piece.text
            delta = self._place() | {"delta": piece.text}
            return [("response.function_call_arguments.delta", delta)]
        return []  # an item is closed by the next one, or by the end of the output

    def _open_message(self) -> list[tuple[str, dict[str, Any]]]:
        """Begin the message."""
        item = {**self._item("msg"), "type": "message", "role": "assistant", "content": []}
        self.items.append(item)
        added = ("response.output_item.added", self._whole())
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"] = [part]
        place = self._place() | {"content_index": 0, "part": dict(part)}
        return [added, ("response.content_part.added", place)]

    def _close(self) -> list[tuple[str, dict[str, Any]]]:
        """End the last item."""
        if not self.items:
            return []
        item, place = self.items[-1], self._place()
        item["status"] = self._status
        done = ("response.output_item.done", self._whole())
        if item["type"] == "function_call":
            words = {"arguments": item["arguments"], "name": item["name"]}
            return [("response.function_call_arguments.done", place | words), done]
        part, place = item["content"][0], place | {"content_index": 0}
        words = {"text": part["text"], "logprobs": []}
        return [
            ("response.output_text.done", place | words),
            ("response.content_part.done", place | {"part": dict(part)}),
            done,
        ]

    def _item(self, prefix: str) -> dict[str, Any]:
        """Return what all items have."""
        return {"id": f"{prefix}_{secrets.token_hex(12)}", "status": "in_progress"}

    def _place(self) -> dict[str, Any]:
        """Return which item an event is of."""
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _whole(self) -> dict[str, Any]:
        """Return an event's fields with a copy of the last item as it is now."""
        return {"output_index": len(self.items) - 1, "item": dict(self.items[-1])}

    def _events(self, events: list[tuple[str, dict[str, Any]]]) -> bytes:
        """Number events and write them."""
        written = []
        for kind, fields in events:
            data = {"type": kind, "sequence_number": self._number, **fields}
            self._number += 1
            written.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(data)))
        return b"".join(written)

    def _response(self, status: str, counts: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer as it is now."""
        body = self._body
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": self.whole,
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.model,
            "output": self.items,
            "parallel_tool_calls": bool(body.parallel_tool_calls),
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": body.text or TextOptions(),
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": _usage(counts) if counts else None,
            "user": body.user,
            "metadata": body.metadata or {},
        }


def _usage(counts: dict[str, Any]) -> dict[str, Any]:
    """Return counts of tokens by their names here."""
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
        "stage_times": counts["stage_times"],
    }
