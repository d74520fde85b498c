"""What guesses the next tokens of sequences."""

from typing import Protocol

from steelyard.serve.scheduling.request import Request

__all__ = ["Drafter"]


class Drafter(Protocol):
    """Guesses how sequences go on; a wrong guess costs time and changes no output.

    Attributes:
        kind: name of what it guesses by.
        longest: most tokens it guesses for a sequence at once.
        round_s: seconds that one more token for all sequences takes, as far as known; 0 when
            guessing costs next to nothing, so that it may guess before it is known how much pays.
        spent_s: seconds that the latest call of `draft` took; 0 when next to nothing.
    """

    kind: str
    longest: int
    round_s: float
    spent_s: float

    def draft(self, requests: list[Request], lengths: list[int]) -> list[list[int]]:
        """Guess tokens.

        Args:
            requests: decoding sequences; all their tokens are known.
            lengths: most tokens to guess for each, 0 for none; where `round_s` is not 0, the
                sequence's table has slots for them.

        Returns:
            For each sequence at most so many tokens that may follow its output, the next one first.
        """
        ...
