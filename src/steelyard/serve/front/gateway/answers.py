"""Answers to requests for text and for vectors: from a checked body to the last byte."""

import base64
import math
import secrets
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from steelyard.serve.front.api.bodies import (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    StreamOptions,
)
from steelyard.serve.front.api.choices import ChatShape, CompletionShape, Shape, usage
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.api.response_shape import ResponseShape
from steelyard.serve.front.api.responses import ResponseBody
from steelyard.serve.front.api.tool_choices import ToolChatShape
from steelyard.serve.front.gateway.calls import Call
from steelyard.serve.front.gateway.dispatch import Dispatcher
from steelyard.serve.front.gateway.exchange import Exchange
from steelyard.serve.front.gateway.inputs import (
    check_tokens,
    encode_chat,
    encode_prompt,
    sampling_params,
)
from steelyard.serve.front.metrics import GatewayMetrics
from steelyard.serve.front.text import TextCodec

__all__ = ["Answers"]

_RESPONSE_FIELDS = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""Names in `/v1/responses` of what errors call by the names of a chat."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Runs requests and writes their answers.

    Attributes:
        names: what clients may call the model, its own name first.
        codec: tokenizer and chat template.
        dispatcher: way to the engine.
        metrics: counts calls and tokens.
    """

    names: tuple[str, ...]
    codec: TextCodec
    dispatcher: Dispatcher
    metrics: GatewayMetrics

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.names[0]

    async def complete(self, exchange: Exchange, body: CompletionBody) -> None:
        """Answer `/v1/completions`.

        Args:
            exchange: request to answer.
            body: its body, checked field by field.

        Raises:
            ApiError: the request is refused; nothing was sent.
        """
        prompts = [await encode_prompt(self.codec, item) for item in body.prompts]
        prefixes = (
            [item if isinstance(item, str) else self.codec.decode(item) for item in body.prompts]
            if body.echo
            else []
        )
        shape = self._shape(CompletionShape, "cmpl", body)
        await self._run(exchange, body, prompts, prefixes, shape)

    async def chat(self, exchange: Exchange, body: ChatBody) -> None:
        """Answer `/v1/chat/completions`.

        Args:
            exchange: request to answer.
            body: its body, checked field by field.

        Raises:
            ApiError: the request is refused; nothing was sent.
        """
        prompt = await encode_chat(self.codec, body)
        kind = ToolChatShape if body.offered else ChatShape
        await self._run(exchange, body, [prompt], [], self._shape(kind, "chatcmpl", body))

    async def respond(self, exchange: Exchange, body: ResponseBody) -> None:
        """Answer `/v1/responses`.

        Args:
            exchange: request to answer.
            body: its body, checked field by field.

        Raises:
            ApiError: the request is refused; nothing was sent.
        """
        try:
            chat = body.chat()
            prompt = await encode_chat(self.codec, chat)
            name = f"resp_{secrets.token_hex(24)}"
            shape = ResponseShape(name, int(time.time()), self.name, self.codec, body)
            # The last event has the counts of tokens, whoever asks.
            chat.stream_options = StreamOptions(include_usage=True)
            await self._run(exchange, chat, [prompt], [], shape)
        except ApiError as error:
            error.param = _RESPONSE_FIELDS.get(error.param or "", error.param)
            raise

    async def embed(self, exchange: Exchange, body: EmbeddingBody) -> None:
        """Answer `/v1/embeddings` with one vector per prompt.

        Args:
            exchange: request to answer.
            body: its body, checked field by field.

        Raises:
            ApiError: the request is refused or there is no engine.
        """
        prompts = [await encode_prompt(self.codec, item) for item in body.prompts]
        ready = self.dispatcher.ready
        backlog = self.dispatcher.backlog
        check_tokens(prompts, ready, "input")
        longest = max(len(prompt) for prompt in prompts)
        limit = ready.max_model_len if ready else 0
        if longest > limit:
            raise ApiError(
                400,
                f"input of {longest} tokens exceeds the model length {limit}; shorten it",
                param="input",
            )
        cost = sum(len(prompt) for prompt in prompts)
        # One question to the engine, answered between two steps: it has no text to stream.
        exchange.client.enter(cost, backlog, time.perf_counter())
        try:
            answer = await self.dispatcher.embed(prompts)
        finally:
            backlog.leave(cost, 0, time.perf_counter(), is_complete=False)
        if answer.message:
            raise ApiError(400, answer.message, param="input")
        self.metrics.prompt_tokens.inc(cost)
        rows = np.frombuffer(answer.values, dtype="<f4").reshape(len(prompts), answer.width)
        kept = _cut(rows, body.dimensions)
        values: list[Any] = (
            [base64.b64encode(row.tobytes()).decode() for row in kept]
            if body.encoding_format == "base64"
            else kept.tolist()
        )
        data = [
            {"object": "embedding", "index": index, "embedding": value}
            for index, value in enumerate(values)
        ]
        counts = {"prompt_tokens": cost, "total_tokens": cost}
        whole = {"object": "list", "data": data, "model": self.name, "usage": counts}
        await exchange.send_json(200, msgspec.json.encode(whole))

    def _shape(self, kind: type[Shape], prefix: str, body: CompletionBody | ChatBody) -> Shape:
        """Make an answer's frame."""
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        return kind(
            f"{prefix}-{secrets.token_hex(12)}",
            int(time.time()),
            self.name,
            self.codec,
            with_usage=with_usage,
        )

    async def _run(
        self,
        exchange: Exchange,
        body: CompletionBody | ChatBody,
        prompts: list[list[int]],
        prefixes: list[str],
        shape: Shape,
    ) -> None:
        """Make the call, let it in, write its answer and count it out."""
        check_tokens(prompts, self.dispatcher.ready, "prompt")
        limit = body.output_limit or max(self._longest - max(len(prompt) for prompt in prompts), 1)
        params = sampling_params(body, limit)
        call = Call(shape.id, prompts, params, self.codec, body.stops, streaming=bool(body.stream))
        self._check_length(call)
        call.clock = exchange.clock
        call.clock.tokenized_s = time.perf_counter()
        call.priority = body.priority or 0
        # The key pays. Were it the name in the body, one key could pose as many clients, and fair
        # policies would serve it as many times.
        call.client, call.user = exchange.client.name, body.user or ""
        backlog = self.dispatcher.backlog
        call.expected = backlog.predict(limit, is_forced=params.ignore_end)
        # Charged as predicted and settled in `_count`: a limit that waited for the true length
        # would let in everything that comes before the first answer ends.
        cost = call.predicted_tokens
        exchange.client.enter(cost, backlog, time.perf_counter())
        self.dispatcher.submit(call)
        try:
            writer = self._stream if call.streaming else self._whole
            await exchange.until_gone(writer(exchange, call, shape, body, prefixes))
        except ApiError as error:
            # Schemas are read by the engine, which does not know what field they came in.
            if error.status == 400 and error.param is None and params.grammar:
                is_tools = isinstance(body, ChatBody) and body.offered
                error.param = "tools" if is_tools else "response_format"
            raise
        finally:
            self.dispatcher.leave(call)
            self._count(exchange, call, cost)

    @property
    def _longest(self) -> int:
        """Longest prompt and output together."""
        return self.dispatcher.ready.max_model_len if self.dispatcher.ready else 1

    def _check_length(self, call: Call) -> None:
        """Refuse what exceeds the model length."""
        longest = max(len(prompt) for prompt in call.prompts)
        limit = call.params.max_tokens
        if longest + limit > self._longest:
            text = (
                f"prompt of {longest} tokens and max_tokens {limit} exceed the model length "
                f"{self._longest}"
            )
            param = "max_tokens" if longest < self._longest else "prompt"
            raise ApiError(
                400,
                f"{text}; shorten the prompt or lower max_tokens",
                param=param,
                code="context_length_exceeded",
            )

    async def _whole(
        self, exchange: Exchange, call: Call, shape: Shape, body: Any, prefixes: list[str]
    ) -> None:
        """Wait for the end and answer at once."""
        while not call.is_done:
            await call.wait()
        if call.failure is not None:
            raise call.failure
        now_s = time.perf_counter()
        wants = body.num_logprobs is not None
        heads = [prefixes[item.index // call.width] if prefixes else "" for item in call.sequences]
        choices = [
            shape.choice(item, head, with_logprobs=wants)
            for item, head in zip(call.sequences, heads, strict=True)
        ]
        counts = usage(call.num_prompt_tokens, call.num_output_tokens, call.clock.stages(now_s))
        call.emitted = True
        call.clock.first_relayed_s = now_s
        await exchange.send_json(
            200, shape.answer(choices, counts), stages=call.clock.header(now_s)
        )

    async def _stream(
        self, exchange: Exchange, call: Call, shape: Shape, body: Any, prefixes: list[str]
    ) -> None:
        """Send text as it comes."""
        wants = body.num_logprobs is not None
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        while True:
            while not call.has_news:
                await call.wait()
            call.has_news = False
            if call.failure is not None:
                if not call.emitted:
                    raise call.failure
                await exchange.send_piece(shape.failing(call.failure), is_last=True)
                return
            # The headers wait for the first text: until then a refusal of the engine can still have
            # a status of its own, and a call can still go to another engine.
            first = b"" if call.emitted else await self._open(exchange, call, shape, prefixes)
            piece = first + b"".join(
                [shape.event(item, with_logprobs=wants) for item in call.sequences if item.has_news]
            )
            if call.is_done:
                now_s = time.perf_counter()
                counts = (
                    usage(call.num_prompt_tokens, call.num_output_tokens, call.clock.stages(now_s))
                    if with_usage
                    else None
                )
                await exchange.send_piece(piece + shape.closing(counts), is_last=True)
                return
            if piece:
                await exchange.send_piece(piece)

    async def _open(
        self, exchange: Exchange, call: Call, shape: Shape, prefixes: list[str]
    ) -> bytes:
        """Send the headers and return what comes before the first text: roles, or the prompt."""
        for item in call.sequences if prefixes else ():
            item.text = prefixes[item.index // call.width] + item.text
        call.emitted = True
        call.clock.first_relayed_s = time.perf_counter()
        await exchange.start_stream(call.clock.header(call.clock.first_relayed_s))
        return b"".join(shape.opening(item) for item in call.sequences)

    def _count(self, exchange: Exchange, call: Call, cost: int) -> None:
        """Count a call out: room in the backlog, tokens of its key, metrics."""
        now_s = time.perf_counter()
        metrics = self.metrics
        clock = call.clock
        is_complete = call.is_done and call.failure is None
        output = call.num_output_tokens
        self.dispatcher.backlog.leave(
            cost, output // max(len(call.sequences), 1), now_s, is_complete=is_complete
        )
        exchange.client.tokens.give(cost - call.num_prompt_tokens - output)
        metrics.prompt_tokens.inc(call.num_prompt_tokens)
        exchange.outcome = (
            call.sequences[0].finish_reason if is_complete else "error" if call.failure else "abort"
        )
        if not math.isnan(clock.first_relayed_s):
            metrics.ttft.observe(clock.first_relayed_s - clock.arrived_s)
        if is_complete:
            if output > len(call.sequences):
                metrics.tpot.observe(
                    (clock.last_s - clock.first_s)
                    / (max(item.num_tokens for item in call.sequences) - 1 or 1)
                )
            metrics.duration.observe(now_s - clock.arrived_s)
            for name, value in clock.stages(now_s).items():
                metrics.stages.labels(name).observe(value)


def _cut(rows: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Keep leading components of vectors and make them unit length again."""
    if dimensions is None:
        return rows
    if dimensions > rows.shape[1]:
        raise ApiError(
            400,
            f"dimensions is {dimensions}, but the vectors have {rows.shape[1]}",
            param="dimensions",
        )
    kept = rows[:, :dimensions]
    return (kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)).astype("<f4")
