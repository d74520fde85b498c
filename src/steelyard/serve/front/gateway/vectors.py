"""Answers to requests for embeddings."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.gateway.prompts import check_tokens, encode_prompt

if TYPE_CHECKING:
    from steelyard.serve.front.api.bodies import EmbeddingBody
    from steelyard.serve.front.gateway.dispatch import Dispatcher
    from steelyard.serve.front.gateway.exchange import Exchange
    from steelyard.serve.front.metrics import GatewayMetrics
    from steelyard.serve.front.text import TextCodec

__all__ = ["Vectors"]


class Vectors:
    """Runs `/v1/embeddings`."""

    def __init__(
        self, name: str, codec: TextCodec, dispatcher: Dispatcher, metrics: GatewayMetrics
    ) -> None:
        """Keep the parts.

        Args:
            name: name of the model.
            codec: tokenizer.
            dispatcher: way to the engine.
            metrics: counts tokens.
        """
        self._name = name
        self._codec = codec
        self._dispatcher = dispatcher
        self._metrics = metrics

    async def embed(self, exchange: Exchange, body: EmbeddingBody) -> None:
        """Answer with one vector per prompt.

        Args:
            exchange: request to answer.
            body: its body, checked field by field.

        Raises:
            ApiError: the request is refused or there is no engine.
        """
        prompts = [await encode_prompt(self._codec, item) for item in body.prompts]
        ready = self._dispatcher.ready
        backlog = self._dispatcher.backlog
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
            answer = await self._dispatcher.embed(prompts)
        finally:
            backlog.leave(cost, 0, time.perf_counter(), is_complete=False)
        if answer.message:
            raise ApiError(400, answer.message, param="input")
        self._metrics.prompt_tokens.inc(cost)
        rows = np.frombuffer(answer.values, dtype="<f4").reshape(len(prompts), answer.width)
        await exchange.send_json(
            200, self._body(_cut(rows, body.dimensions), body.encoding_format == "base64", cost)
        )

    def _body(self, rows: np.ndarray, as_base64: bool, tokens: int) -> bytes:
        """Return the answer as JSON."""
        values: list[Any] = (
            [base64.b64encode(row.tobytes()).decode() for row in rows]
            if as_base64
            else rows.tolist()
        )
        data = [
            {"object": "embedding", "index": index, "embedding": value}
            for index, value in enumerate(values)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return msgspec.json.encode(
            {"object": "list", "data": data, "model": self._name, "usage": usage}
        )


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
