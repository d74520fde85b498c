"""What a request gives the engine: token ids, encoded where it is cheapest, and parameters."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from steelyard.errors import SteelyardError
from steelyard.serve.front.api.bodies import ChatBody, CompletionBody, ResponseFormat
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.api.tools import instructions, plain_tool, tool_grammar
from steelyard.serve.front.engine.wire import Ready
from steelyard.serve.front.text import TextCodec
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["check_tokens", "encode_chat", "encode_prompt", "sampling_params"]

_INLINE_CHARS = 8192
"""Shorter texts are encoded on the event loop: a thread's hand-over costs more."""


async def encode_prompt(codec: TextCodec, prompt: str | list[int]) -> list[int]:
    """Return a prompt's token ids.

    Args:
        codec: tokenizer of the model.
        prompt: text, or token ids that are returned.

    Returns:
        Token ids.

    Raises:
        ApiError: the text cannot be encoded.
    """
    if isinstance(prompt, list):
        return prompt
    return await _off_loop(len(prompt), lambda: codec.encode(prompt))


async def encode_chat(codec: TextCodec, body: ChatBody) -> list[int]:
    """Return the token ids of a chat, with the functions that the model may call.

    Args:
        codec: tokenizer and chat template of the model.
        body: turns and functions.

    Returns:
        Token ids.

    Raises:
        ApiError: the turns cannot be encoded, or the choice names no function on offer.
    """
    tools = body.offered
    if tools and codec.tokenizer is None:
        raise ApiError(400, "tools need a model with a tokenizer; leave them out", param="tools")
    messages = [item.plain(knows_tools=codec.knows_tools) for item in body.messages]
    plain = [plain_tool(tool) for tool in tools] if codec.knows_tools else None
    if tools and plain is None:
        words = instructions(tools)
        if messages[0]["role"] in ("system", "developer"):
            messages[0]["content"] += f"\n\n{words}"
        else:
            messages.insert(0, {"role": "system", "content": words})
    size = sum(len(item["content"]) for item in messages)
    return await _off_loop(size, lambda: codec.encode_chat(messages, plain))


async def _off_loop(size: int, work: Callable[[], list[int]]) -> list[int]:
    """Encode here when it is short, else in a thread.

    Args:
        size: length of the text in characters.
        work: function that returns token ids.

    Returns:
        Token ids.

    Raises:
        ApiError: it refused.
    """
    try:
        return work() if size <= _INLINE_CHARS else await asyncio.to_thread(work)
    except SteelyardError as error:
        raise ApiError.refusal(error, "prompt") from error


def check_tokens(prompts: list[list[int]], ready: Ready | None, field: str) -> None:
    """Refuse prompts without tokens and token ids outside the vocabulary.

    Args:
        prompts: token ids.
        ready: what the engine reported of itself.
        field: name of the field in the request, for the error.

    Raises:
        ApiError: names the field.
    """
    size = ready.vocab_size if ready else 0
    for prompt in prompts:
        if not prompt:
            raise ApiError(400, f"{field} is empty; give at least one token", param=field)
        if min(prompt) < 0 or max(prompt) >= size:
            raise ApiError(
                400,
                f"token ids must be in [0, {size}); encode the {field} with this model's tokenizer",
                param=field,
            )


def sampling_params(body: CompletionBody | ChatBody, limit: int) -> SamplingParams:
    """Return a body's fields as sampling parameters.

    Args:
        body: checked field by field.
        limit: most output tokens.

    Returns:
        The parameters, with a seed of their own where the body has none.

    Raises:
        ApiError: fields do not go together or are not supported.
    """
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
    """Return the grammar of tools and response format, spelled as `running.grammar` does."""
    schema = _schema(body.response_format)
    tools = body.offered if isinstance(body, ChatBody) else []
    if isinstance(body, ChatBody) and tools:
        parallel = bool(body.parallel_tool_calls)
        return tool_grammar(tools, body.tool_choice or "auto", parallel=parallel, answer=schema)
    return "" if schema is None else "json_schema:" + msgspec.json.encode(schema).decode()


def _schema(form: ResponseFormat | None) -> dict[str, Any] | None:
    """Return the schema of a response format, None for text."""
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "object"}
    if form.json_schema is None or form.json_schema.schema is None:
        raise ApiError(
            400,
            "response_format of type 'json_schema' needs json_schema.schema",
            param="response_format",
        )
    return form.json_schema.schema
