"""One request to the API on its way: the sequences it runs and the text they gave so far."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.gateway.stages import StageClock
from steelyard.serve.front.text import TextCodec, TextStream

if TYPE_CHECKING:
    from steelyard.serve.front.engine.wire import Update
    from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["Call", "Sequence", "TokenReport"]


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


class Call:
    """One request to the API.

    Attributes:
        id: name that the client sees.
        prompts: token ids of each prompt.
        params: sampling parameters of all its sequences.
        sequences: the choices, `width` per prompt.
        width: choices per prompt.
        clock: where its time went.
        streaming: whether the client gets text as it comes.
        priority: smaller runs first under the priority policy.
        client: who pays for it, the owner of the API key.
        user: whom of the client's users it is for.
        expected: output tokens expected per sequence.
        attempts: engines it was sent to.
        emitted: whether anything was sent to the client.
        has_news: whether there may be text or an end that the client does not know.
        failure: why it ended without an answer, or None.
    """

    def __init__(
        self,
        name: str,
        prompts: list[list[int]],
        params: SamplingParams,
        codec: TextCodec,
        stops: list[str],
        *,
        streaming: bool,
    ) -> None:
        """Make the sequences.

        Args:
            name: id of the call.
            prompts: token ids of each prompt.
            params: sampling parameters of all sequences.
            codec: tokenizer of the model.
            stops: strings that end a text.
            streaming: whether the client wants text as it comes.
        """
        self.id = name
        self.prompts = prompts
        self.params = params
        self.streaming = streaming
        self.width = params.n
        self.clock = StageClock()
        self.priority = self.attempts = 0
        self.client = "default"
        self.user = ""
        self.expected = params.max_tokens
        self.emitted = False
        self.failure: ApiError | None = None
        self._codec = codec
        self._stops = stops
        self._waiter: asyncio.Future[None] | None = None
        self.sequences: list[Sequence] = []
        self.restart()

    def restart(self) -> None:
        """Forget all output, for another try."""
        self.sequences = [
            Sequence(index, self._codec, self._stops)
            for index in range(len(self.prompts) * self.width)
        ]
        self._num_open = len(self.sequences)
        self.has_news = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return not self._num_open or self.failure is not None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all outputs so far."""
        return sum(item.num_tokens for item in self.sequences)

    @property
    def predicted_tokens(self) -> int:
        """Prompt and expected output tokens."""
        return (
            self.num_prompt_tokens + len(self.prompts) * self.params.num_sequences * self.expected
        )

    def take(self, row: int, update: Update, ended_s: float) -> bool:
        """Account for what one sequence got.

        Args:
            row: number of the prompt.
            update: news of one of its sequences.
            ended_s: when the step ended.

        Returns:
            Whether the client should hear of it at once: at the first token and at an end.
        """
        if update.finish_reason == "refused":
            self.fail(ApiError(400, update.message))
            return True
        sequence = self.sequences[row * self.width + update.index]
        if sequence.finish_reason:  # it met a stop string here; the engine does not know yet
            return False
        self.has_news = True
        clock = self.clock
        clock.last_s = ended_s
        is_first = clock.first_s != clock.first_s
        if is_first and update.stamps:
            clock.received_s, clock.begun_s, clock.first_s = update.stamps
        if update.finish_reason:
            begin_s = time.perf_counter()
            sequence.take(update)
            clock.detokenize_s = time.perf_counter() - begin_s
        else:
            sequence.take(update)
        if sequence.finish_reason:
            self._num_open -= 1
            return True
        return is_first

    def is_prompt_done(self, row: int) -> bool:
        """Whether all sequences of a prompt have ended."""
        return all(
            item.finish_reason for item in self.sequences[row * self.width : (row + 1) * self.width]
        )

    def fail(self, error: ApiError) -> None:
        """End without an answer."""
        self.failure = error
        self.has_news = True

    def wake(self) -> None:
        """Let the waiting answer go on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until there is something to tell."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
