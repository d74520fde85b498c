"""One choice of an answer on its way: its tokens as text, as far as the client may see it."""

from typing import NamedTuple

from steelyard.serve.front.engine.wire import Update
from steelyard.serve.front.text import TextCodec, TextStream

__all__ = ["Sequence", "TokenReport"]


class TokenReport(NamedTuple):
    """A token with its log probability.

    Attributes:
        token: id.
        logprob: natural logarithm.
        tops: (token, natural logarithm) of the likeliest ones.
        offset: characters of the output before it.
    """

    token: int
    logprob: float
    tops: list[tuple[int, float]]
    offset: int


class Sequence:
    """One choice of an answer.

    Attributes:
        index: number of the choice.
        num_tokens: output tokens so far.
        finish_reason: "stop" or "length" once it ended, else empty.
        text: text that the client does not have yet.
        reports: tokens of that text, where the request asks for them.
        reported: whether the client knows of the end.
    """

    __slots__ = (
        "_num_chars",
        "_stream",
        "finish_reason",
        "index",
        "num_tokens",
        "reported",
        "reports",
        "text",
    )

    def __init__(self, index: int, codec: TextCodec, stops: list[str]) -> None:
        """Start with no text.

        Args:
            index: number of the choice.
            codec: tokenizer of the model.
            stops: strings that end the text.
        """
        self.index = index
        self.num_tokens = self._num_chars = 0
        self.finish_reason = self.text = ""
        self.reports: list[TokenReport] = []
        self.reported = False
        self._stream = TextStream(codec, stops)

    @property
    def has_news(self) -> bool:
        """Whether there is text or an end that the client does not know."""
        return bool(self.text or self.reports or (self.finish_reason and not self.reported))

    def take(self, update: Update) -> None:
        """Account for new tokens."""
        # Nearly every update is one token of a sequence that goes on, and this is the gateway's
        # work per token: it skips the lists that the general case below makes.
        if len(update.tokens) == 1 and update.logprobs is None and not update.finish_reason:
            self.num_tokens += 1
            self._show(self._stream.push(update.tokens[0]))
            return
        pieces = []
        for place, token in enumerate(update.tokens):
            self.num_tokens += 1
            if update.logprobs is not None:
                tops = update.tops[place] if update.tops else []
                self.reports.append(
                    TokenReport(token, update.logprobs[place], tops, self._num_chars)
                )
            piece = self._stream.push(token)
            self._num_chars += len(piece)
            pieces.append(piece)
            if self._stream.stopped:
                self.finish_reason = "stop"
                break
        if update.finish_reason and not self.finish_reason:
            self.finish_reason = update.finish_reason
            pieces.append(self._stream.finish())
        self.text += "".join(pieces)

    def _show(self, piece: str) -> None:
        """Keep the text of a lone token."""
        self._num_chars += len(piece)
        self.text += piece
        if self._stream.stopped:
            self.finish_reason = "stop"
