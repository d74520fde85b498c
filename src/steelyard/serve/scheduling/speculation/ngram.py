"""Drafts from the sequence itself: what followed its last tokens where they stood before."""

from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.states import RequestStates

__all__ = ["NgramDrafter"]

_SIZES = (6, 3)
"""Tokens that must be equal, the longer run first: it tells places apart that look alike."""


class _History:
    """Tokens of one sequence, and where each run of them stood last."""

    def __init__(self, request: Request) -> None:
        """Begin with the prompt."""
        self._request = request
        self._tokens = list(request.prompt)
        self._places: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def follow(self, length: int) -> list[int]:
        """Return up to `length` tokens that followed the sequence's end where it stood before."""
        tokens = self._tokens
        tokens += self._request.output[len(tokens) - len(self._request.prompt) :]
        self._index()
        for size in _SIZES:
            place = self._places.get(tuple(tokens[-size:]))
            if place is not None:
                return self._copy(place, length)
        return []

    def _index(self) -> None:
        """Enter all runs that end before the last token, later ones over earlier ones."""
        tokens, places = self._tokens, self._places
        for end in range(self._indexed, len(tokens)):
            for size in _SIZES:
                if end >= size:
                    places[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)

    def _copy(self, place: int, length: int) -> list[int]:
        """Copy tokens from a place; beyond the end of the sequence what was copied goes on."""
        found = self._tokens[place : place + length]
        period = len(self._tokens) - place
        while len(found) < length:
            found.append(found[-period])
        return found


class NgramDrafter:
    """Guesses that what followed the last tokens of a sequence before will follow them again.

    The prompt and the output are searched for the latest place of the last six tokens, else of the
    last three. Each token is indexed once.

    Attributes:
        kind: "ngram".
        longest: most tokens it guesses for a sequence at once.
        round_s: 0, as a guess costs a few microseconds.
        spent_s: 0.

    Source: prompt look-up, Saxena 2023, "Prompt lookup decoding"; Yang et al. 2023, "Inference with
        reference: lossless acceleration of large language models" (arXiv 2304.04487), section 3.
    """

    kind = "ngram"
    round_s = 0.0
    spent_s = 0.0

    def __init__(self, longest: int = 15) -> None:
        """Know no sequence.

        Args:
            longest: most tokens to guess for a sequence at once.
        """
        self.longest = longest
        self._histories = RequestStates(_History)

    def draft(self, requests: list[Request], lengths: list[int]) -> list[list[int]]:
        """Guess tokens, as `Drafter.draft` describes."""
        return [
            self._histories.get(request).follow(length) if length else []
            for request, length in zip(requests, lengths, strict=True)
        ]
