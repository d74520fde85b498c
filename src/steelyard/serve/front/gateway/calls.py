"""One request to the API on its way: the sequences it runs and the text they gave so far."""

import asyncio
import time

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.engine.wire import Update
from steelyard.serve.front.gateway.stages import StageClock
from steelyard.serve.front.sequence import Sequence
from steelyard.serve.front.text import TextCodec
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["Call"]


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
            self.failure = ApiError(400, update.message)
            self.has_news = True
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

    def fail(self, failure: ApiError) -> None:
        """End it without an answer, and let the client hear of it at once.

        Args:
            failure: why.
        """
        self.failure = failure
        self.has_news = True
        self.wake()

    def is_prompt_done(self, row: int) -> bool:
        """Whether all sequences of a prompt have ended."""
        return all(
            item.finish_reason for item in self.sequences[row * self.width : (row + 1) * self.width]
        )

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
