"""Bodies of the requests of a load: token ids, or words where a server takes only text."""

from typing import Any, Literal

import msgspec

from steelyard.serve.traces.prompts import PromptMaker
from steelyard.serve.traces.record import TraceRow

__all__ = ["BodyMaker", "Form"]

Form = Literal["tokens", "text", "chat"]

_TEXT = (
    "the of and to in is you that it he was for on are as with his they at be this have from or "
    "one had by word but not what all "
    "were we when your can said there use an each which she do how their if will up other about "
    "out many then them these so some"
)
_WORDS = _TEXT.split()


class BodyMaker:
    """Makes the body of any row of a trace.

    Attributes:
        path: where the bodies go, "/completions" or "/chat/completions".
    """

    def __init__(
        self, *, form: Form, model: str, seed: int, vocab_size: int, extra: dict[str, Any]
    ) -> None:
        """Keep what all bodies share.

        Args:
            form: "tokens" sends prompts as token ids, "text" as common words, one per token, "chat"
                the same as a user's message.
            model: name of the model, left out when empty.
            seed: seed of the prompts.
            vocab_size: token ids lie below it.
            extra: fields that override the usual ones; a None takes the field away.
        """
        self.path = "/chat/completions" if form == "chat" else "/completions"
        self._form = form
        self._maker = PromptMaker(seed, vocab_size if form == "tokens" else len(_WORDS))
        fixed = {"model": model or None, "temperature": 0.0, "ignore_eos": True, "stream": True}
        fixed |= {"stream_options": {"include_usage": True}} | extra
        self._fixed = {name: value for name, value in fixed.items() if value is not None}

    def body(self, row: TraceRow, index: int) -> bytes:
        """Return the JSON of a row's request.

        Args:
            row: row of the trace.
            index: number of the row.

        Returns:
            The body.
        """
        tokens = self._maker.tokens(row, index)
        fields: dict[str, Any] = {"max_tokens": row.output_tokens}
        if self._form == "tokens":
            fields["prompt"] = tokens
        else:
            text = " ".join(_WORDS[token] for token in tokens)
            fields |= (
                {"prompt": text}
                if self._form == "text"
                else {"messages": [{"role": "user", "content": text}]}
            )
        return msgspec.json.encode(fields | self._fixed)
