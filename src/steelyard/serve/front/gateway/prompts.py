"""Prompts as token ids: encoded where it is cheapest, and checked against the model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from steelyard.errors import SteelyardError
from steelyard.serve.front.api.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.serve.front.engine.wire import Ready
    from steelyard.serve.front.text import TextCodec

__all__ = ["check_tokens", "encode_prompt", "off_loop"]

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
    return await off_loop(len(prompt), lambda: codec.encode(prompt))


async def off_loop(size: int, work: Callable[[], list[int]]) -> list[int]:
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
