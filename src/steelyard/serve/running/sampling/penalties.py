"""Changes to the logits of single requests: held-back end tokens, biases and penalties."""

import numpy as np

from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.states import common_length

__all__ = ["TokenHistory", "add_bias", "forbid_end", "has_penalty"]


def has_penalty(params: SamplingParams) -> bool:
    """Whether tokens that came before change the logits."""
    return bool(
        params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    )


def forbid_end(logits: np.ndarray, params: SamplingParams, position: int) -> None:
    """Leave no chance to the tokens that would end an output before it has `min_tokens`.

    Args:
        logits: float32 [V], changed in place.
        params: parameters of the request.
        position: output tokens it already has.
    """
    if position < params.min_tokens and not params.ignore_end:
        logits[[token for token in params.stop_tokens if token < len(logits)]] = -np.inf


def add_bias(logits: np.ndarray, params: SamplingParams) -> None:
    """Add the request's biases to logits float32 [V], in place."""
    if params.logit_bias:
        tokens, addends = zip(*params.logit_bias, strict=True)
        np.add.at(logits, list(tokens), np.array(addends, dtype=np.float32))


class TokenHistory:
    """Distinct tokens of one request, and how often each is in its output.

    Tokens are counted once, as they come; those that were replaced, as guesses and beams are, are
    taken off again.

    Attributes:
        request: whose tokens they are.
    """

    def __init__(self, request: Request) -> None:
        """Count the prompt, when it matters."""
        self.request = request
        given = request.prompt if request.params.repetition_penalty != 1.0 else []
        distinct = np.unique(np.array(given, dtype=np.int64))
        self._size = self._num_given = len(distinct)
        self._tokens = np.concatenate([distinct, np.empty(64, dtype=np.int64)])
        self._counts = np.zeros(len(self._tokens), dtype=np.float32)
        self._places = {token: place for place, token in enumerate(distinct.tolist())}
        self._taken: list[int] = []

    def update(self, length: int) -> None:
        """Count what is new among the first `length` output tokens, guesses among them."""
        output = self.request.leading(length)
        done = len(self._taken)
        if self._taken != output[:done]:
            done = common_length(self._taken, output)
            for token in self._taken[done:]:
                self._counts[self._places[token]] -= 1
            del self._taken[done:]
        for token in output[done:]:
            place = self._places.setdefault(token, self._size)
            if place == self._size:
                self._append(token)
            self._counts[place] += 1
        self._taken += output[done:]

    def _append(self, token: int) -> None:
        """Make room for a token not seen before."""
        if self._size == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[self._size] = token
        self._size += 1

    def penalize(self, logits: np.ndarray) -> None:
        """Apply the request's penalties: repetition first, then frequency and presence.

        Args:
            logits: float32 [V], changed in place.

        Source: repetition, Keskar et al. 2019 (arXiv 1909.05858), section 4.1, with negative logits
            multiplied as is usual; frequency and presence, OpenAI API reference.
        """
        params = self.request.params
        tokens, counts = self._tokens[: self._size], self._counts[: self._size]
        values = logits[tokens]
        if params.repetition_penalty != 1.0:
            factor = np.float32(params.repetition_penalty)
            harder = np.where(values > 0, values / factor, values * factor)
            is_there = counts > 0
            is_there[: self._num_given] = True
            values = np.where(is_there, harder, values)
        values -= np.float32(params.frequency_penalty) * counts + np.float32(
            params.presence_penalty
        ) * (counts > 0)
        logits[tokens] = values
