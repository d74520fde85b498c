"""Output text cut into what is said and what is called, as it comes."""

import json
import secrets
from dataclasses import dataclass
from typing import Literal

from steelyard.serve.front.api.tools import BEGIN, END, HEAD, MIDDLE
from steelyard.serve.front.text import overlap

__all__ = ["CallSplitter", "Piece"]

_CLOSE = "}\n" + END


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an output.

    Attributes:
        kind: text, the beginning of a call, some of its arguments, or its end.
        text: text, name of the function, or JSON of the arguments.
        call: number of the call, from 0.
        id: what a result of the call refers to; with its beginning only.
    """

    kind: Literal["text", "begin", "arguments", "end"]
    text: str = ""
    call: int = 0
    id: str = ""


class CallSplitter:
    """Cuts an output that `tool_grammar` shaped.

    What may be the beginning of a mark is held back until the next text shows whether it is.

    Attributes:
        num_calls: calls begun so far.
    """

    def __init__(self) -> None:
        """Start with no text."""
        self.num_calls = 0
        self._rest = ""
        self._state: Literal["text", "name", "arguments"] = "text"

    def push(self, text: str) -> list[Piece]:
        """Take text and return the pieces it completes."""
        self._rest += text
        pieces: list[Piece] = []
        while self._advance(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """Return what was held back; a call cut short before its arguments is dropped."""
        rest, self._rest = self._rest, ""
        if self._state == "text":
            return [Piece("text", rest)] if rest and not self.num_calls else []
        if self._state == "arguments":
            # No mark follows any more: what looked like its beginning is part of the arguments.
            last = self.num_calls - 1
            return [Piece("arguments", rest, last)] * bool(rest) + [Piece("end", "", last)]
        return []

    def _advance(self, pieces: list[Piece]) -> bool:
        """Handle the text up to the next mark; return whether there was one."""
        if self._state == "name":
            return self._begin(pieces)
        mark = BEGIN if self._state == "text" else _CLOSE
        found = self._rest.find(mark)
        cut = found if found >= 0 else len(self._rest) - overlap(self._rest, mark)
        shown = self._rest[:cut]
        self._rest = self._rest[cut + len(mark) if found >= 0 else cut :]
        if self._state == "arguments":
            pieces += [Piece("arguments", shown, self.num_calls - 1)] * bool(shown)
        elif shown and not self.num_calls:  # only a line's end stands between two calls
            pieces.append(Piece("text", shown))
        if found < 0:
            return False
        if self._state == "arguments":
            pieces.append(Piece("end", "", self.num_calls - 1))
        self._state = "name" if self._state == "text" else "text"
        return True

    def _begin(self, pieces: list[Piece]) -> bool:
        """Read the name of a call once it is whole."""
        head, middle, rest = self._rest.partition(MIDDLE)
        if not middle:
            return False
        name = json.loads(head.removeprefix(HEAD))
        pieces.append(Piece("begin", name, self.num_calls, f"call_{secrets.token_hex(12)}"))
        self.num_calls += 1
        self._rest, self._state = rest, "arguments"
        return True
