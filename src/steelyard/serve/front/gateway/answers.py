"""Answers to requests for text: from a checked body to the last byte."""

from __future__ import annotations

import math
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from steelyard.errors import SteelyardError
from steelyard.serve.front.api.bodies import ChatBody, CompletionBody
from steelyard.serve.front.api.choices import ChatShape, CompletionShape, Shape, usage
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.gateway.calls import Call
from steelyard.serve.front.gateway.prompts import check_tokens, encode_prompt, off_loop
from steelyard.serve.scheduling.params import SamplingParams

if TYPE_CHECKING:
    from steelyard.serve.front.gateway.dispatch import Dispatcher
    from steelyard.serve.front.gateway.exchange import Exchange
    from steelyard.serve.front.metrics import GatewayMetrics
    from steelyard.serve.front.text import TextCodec

__all__ = ["Answers"]


class Answers:
    """Runs calls and writes their answers."""

    def __init__(
        self, name: str, codec: TextCodec, dispatcher: Dispatcher, metrics: GatewayMetrics
    ) -> None:
        """Keep the parts.

        Args:
            name: name of the model.
            codec: tokenizer and chat template.
            dispatcher: way to the engine.
            metrics: counts calls.
        """
        self.name = name
        self._codec = codec
        self._dispatcher = dispatcher
        self._metrics = metrics

    async def complete(self, exchange: Exchange, body: CompletionBody) -> None:
        """Answer `/v1/completions`.

        Args:
            exchange: request to answer.
            body: its body, checked field by field.

        Raises:
            ApiError: the request is refused; nothing was sent.
        """
        exchange.clock.parsed_s = time.perf_counter()
        prompts = [await encode_prompt(self._codec, item) for item in body.prompts]
        prefixes = (
            [item if isinstance(item, str) else self._codec.decode(item) for item in body.prompts]
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
        exchange.clock.parsed_s = time.perf_counter()
        messages = [item.plain() for item in body.messages]
        size = sum(len(item["content"]) for item in messages)
        prompt = await off_loop(size, lambda: self._codec.encode_chat(messages))
        await self._run(exchange, body, [prompt], [], self._shape(ChatShape, "chatcmpl", body))

    def _shape(self, kind: type[Shape], prefix: str, body: CompletionBody | ChatBody) -> Shape:
        """Make an answer's frame."""
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        return kind(
            f"{prefix}-{secrets.token_hex(12)}",
            int(time.time()),
            self.name,
            self._codec,
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
        check_tokens(prompts, self._dispatcher.ready, "prompt")
        limit = body.output_limit or max(self._longest - max(len(prompt) for prompt in prompts), 1)
        params = _params(body, limit)
        call = Call(shape.id, prompts, params, self._codec, body.stops, streaming=bool(body.stream))
        self._check_length(call)
        call.clock = exchange.clock
        call.clock.tokenized_s = time.perf_counter()
        call.priority = body.priority or 0
        # The key pays. Were it the name in the body, one key could pose as many clients, and fair
        # policies would serve it as many times.
        call.client, call.user = exchange.client.name, body.user or ""
        backlog = self._dispatcher.backlog
        call.expected = backlog.predict(limit, is_forced=params.ignore_end)
        # Charged as predicted and settled in `_count`: a limit that waited for the true length
        # would let in everything that comes before the first answer ends.
        cost = call.predicted_tokens
        exchange.client.enter(cost, backlog, time.perf_counter())
        self._dispatcher.submit(call)
        try:
            writer = self._stream if call.streaming else self._whole
            await exchange.until_gone(writer(exchange, call, shape, body, prefixes))
        finally:
            self._dispatcher.leave(call)
            self._count(exchange, call, cost)

    @property
    def _longest(self) -> int:
        """Longest prompt and output together."""
        return self._dispatcher.ready.max_model_len if self._dispatcher.ready else 1

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
                await exchange.send_piece(b"data: " + call.failure.body + b"\n\n", is_last=True)
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
        """Send the headers and return what comes before the first text."""
        opening = self._opening(call, shape, prefixes)
        call.emitted = True
        call.clock.first_relayed_s = time.perf_counter()
        await exchange.start_stream(call.clock.header(call.clock.first_relayed_s))
        return opening

    def _opening(self, call: Call, shape: Shape, prefixes: list[str]) -> bytes:
        """Return what comes before the first text: roles, or an echoed prompt."""
        for item in call.sequences if prefixes else ():
            item.text = prefixes[item.index // call.width] + item.text
        return b"".join(shape.opening(item) for item in call.sequences)

    def _count(self, exchange: Exchange, call: Call, cost: int) -> None:
        """Count a call out: room in the backlog, tokens of its key, metrics."""
        now_s = time.perf_counter()
        metrics = self._metrics
        clock = call.clock
        is_complete = call.is_done and call.failure is None
        output = call.num_output_tokens
        self._dispatcher.backlog.leave(
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


def _params(body: CompletionBody | ChatBody, limit: int) -> SamplingParams:
    """Return a body's fields as sampling parameters."""
    names = body.unsupported()
    if names:
        raise ApiError(400, f"not supported: {', '.join(names)}; leave it out", param=names[0])
    n = body.n or 1
    beams = body.beam_width or 0
    drawn = body.best_of or 0
    if drawn and drawn < n:
        raise ApiError(400, f"best_of is {drawn}, but must be at least n = {n}", param="best_of")
    if body.stream and (drawn > n or beams):
        raise ApiError(
            400,
            "the likeliest sequences are known only at the end; leave stream out",
            param="stream",
        )
    try:
        return SamplingParams(
            max_tokens=limit,
            min_tokens=min(body.min_tokens or 0, limit),
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(body.top_k or 0, 0),
            min_p=body.min_p or 0.0,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
            logit_bias=_bias(body.logit_bias),
            # Drawn here, not in the engine: a second engine gives the same answer as the first.
            seed=secrets.randbits(63) if body.seed is None else body.seed & (2**63 - 1),
            stop_tokens=tuple(body.stop_token_ids or ()),
            ignore_end=bool(body.ignore_eos),
            logprobs=body.num_logprobs,
            n=n,
            best_of=drawn if drawn > n else 0,
            beam_width=beams,
            length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
            grammar=_grammar(body),
        )
    except SteelyardError as error:
        raise ApiError.refusal(error, str(error).partition(" ")[0]) from error


def _bias(given: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    """Return logit biases by token."""
    if any(not key.isascii() or not key.isdigit() for key in given or ()):
        raise ApiError(400, "logit_bias must have token ids for names", param="logit_bias")
    return tuple((int(key), value) for key, value in (given or {}).items())


def _grammar(body: CompletionBody | ChatBody) -> str:
    """Return the grammar of a response format, spelled as `running.grammar` does."""
    form = body.response_format
    if form is None or form.type == "text":
        return ""
    if form.type == "json_object":
        return "json_object"
    if form.json_schema is None or form.json_schema.schema is None:
        raise ApiError(
            400,
            "response_format of type 'json_schema' needs json_schema.schema",
            param="response_format",
        )
    return "json_schema:" + msgspec.json.encode(form.json_schema.schema).decode()
