"""How many guessed tokens are worth checking."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.speculation.step_costs import StepCosts
from steelyard.serve.scheduling.states import RequestStates

__all__ = ["AdaptiveDrafting", "DraftControl"]

_MARGIN = 1.1
"""Gain below which tokens are not checked: the best of many noisy figures promises too much."""
_RETRY_STEPS = 64
"""Fewest steps without a checked token after which one is checked again."""
_RETRY_SHARE = 0.01
"""Most of the time that may be spent on guessing for such checks."""
_RETRY_GUESSES = 4
"""Guesses checked then where they take time, so that this time is measured anew too."""
_LONGEST_PAUSE = 15
"""Most steps in which no guesses are looked for after they gained nothing."""
_PAUSE_WITHOUT = 3
"""The same after none were found, which may change with any token."""
_PRIOR_WEIGHT = 2.0
"""Checked tokens for which the acceptance of all requests counts in that of one."""
_KEPT_OF_ONE = 0.9
_KEPT_OF_ALL = 0.98
"""Share of what was counted that each check leaves: some 10 and 50 checks count."""


class DraftControl(Protocol):
    """Decides how many tokens are checked, from what came of those before."""

    def looks(self) -> bool:
        """Whether guesses are looked for in the step about to be planned."""
        ...

    def choose(
        self,
        requests: Sequence[Request],
        lengths: Sequence[int],
        num_sequences: int,
        round_s: float,
    ) -> list[int]:
        """Return how many tokens to check of each request."""
        ...

    def checked(self, request: Request, accepted: int, rejected: int) -> None:
        """Learn how many tokens of a request were accepted, and whether one was not."""
        ...

    def timed(self, rows: int, seconds: float, spent_s: float) -> None:
        """Learn what a step took that ran only decoding sequences, and what guessing took."""
        ...


@dataclass(slots=True)
class _Tally:
    """Tokens checked and accepted, older ones for less."""

    accepted: float = 0.0
    checked: float = 0.0

    def add(self, accepted: int, checked: int, kept: float) -> None:
        """Count a check."""
        self.accepted = kept * self.accepted + accepted
        self.checked = kept * self.checked + checked


class AdaptiveDrafting:
    """Checks as many tokens as give the most tokens per second by what was measured.

    With an acceptance a, the j-th guess of a sequence is reached and right with probability a**j. A
    step that checks the n likeliest guesses of all sequences yields their probabilities in further
    tokens and takes what steps of so many rows took lately: the n of the highest rate is chosen, or
    none when it gains too little. Then a guess is still checked now and then, so that both
    measurements stay alive.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), equation 1 and section 3.3, with the measured
        time of a step for its constant cost; the batch as a whole as in Liu et al. 2024 (arXiv
        2406.14066), section 4.
    """

    def __init__(self) -> None:
        """Assume that six of ten guesses are right, for a short while."""
        self._costs = StepCosts()
        self._all = _Tally(accepted=2.4, checked=4.0)
        self._tallies: RequestStates[_Tally] = RequestStates(lambda _: _Tally())
        self._steps_off = 0
        self._retries = 0
        self._wait = _RETRY_STEPS
        self._fruitless = self._pause = self._paused = 0

    def acceptance(self, request: Request) -> float:
        """Return the probability that a guess for a request is right when all before it are."""
        own = self._tallies.get(request)
        overall = self._all.accepted / self._all.checked
        return (own.accepted + _PRIOR_WEIGHT * overall) / (own.checked + _PRIOR_WEIGHT)

    def looks(self) -> bool:
        """Whether guesses are looked for in the step about to be planned.

        Returns:
            True while they gain; where they did not, at ever fewer steps, as choosing takes time.
        """
        self._steps_off += 1
        self._paused += 1
        return self._paused > self._pause

    def choose(
        self,
        requests: Sequence[Request],
        lengths: Sequence[int],
        num_sequences: int,
        round_s: float,
    ) -> list[int]:
        """Choose the guesses to check.

        Args:
            requests: sequences that have, or can get, guesses.
            lengths: most guesses of each.
            num_sequences: sequences of the step, those without guesses among them.
            round_s: seconds that one more guess for each sequence takes.

        Returns:
            Guesses of each request, at most its length.
        """
        # One plain step first: without any known time all guesses would seem free.
        if not any(lengths) or not self._costs.is_known:
            self._rest(_PAUSE_WITHOUT)
            return [0] * len(lengths)
        owners = np.repeat(np.arange(len(requests)), lengths)
        depths = np.concatenate([np.arange(1, length + 1) for length in lengths])
        rates = np.array([self.acceptance(request) for request in requests])
        values = np.minimum(rates[owners], 0.999) ** depths
        order = np.argsort(-values, kind="stable")
        seconds = self._costs.predict(num_sequences, len(order) + 1)
        seconds[1:] += round_s * np.maximum.accumulate(depths[order])
        gains = (num_sequences + np.concatenate([[0.0], np.cumsum(values[order])])) / seconds
        best = int(gains.argmax())
        if gains[best] >= _MARGIN * gains[0]:
            self._steps_off = self._fruitless = self._pause = self._paused = 0
            return np.bincount(owners[order[:best]], minlength=len(requests)).tolist()
        return self._retry(lengths, _RETRY_GUESSES if round_s else 1)

    def _retry(self, lengths: Sequence[int], most: int) -> list[int]:
        """Check nothing, or after a while some guesses of one request, another one each time."""
        chosen = [0] * len(lengths)
        self._rest(_LONGEST_PAUSE)
        if self._steps_off > self._wait:
            self._steps_off = 0
            able = [at for at, length in enumerate(lengths) if length]
            at = able[self._retries % len(able)]
            chosen[at] = min(lengths[at], most)
            self._retries += 1
        return chosen

    def _rest(self, longest: int) -> None:
        """Look for guesses at fewer steps, after some looks in vain."""
        self._fruitless += 1
        self._pause, self._paused = min(self._fruitless // 4, longest), 0

    def checked(self, request: Request, accepted: int, rejected: int) -> None:
        """Learn from a check.

        Args:
            request: whose guesses they were.
            accepted: leading guesses that were right.
            rejected: 1 when the next one was wrong, 0 when there was none.
        """
        self._tallies.get(request).add(accepted, accepted + rejected, _KEPT_OF_ONE)
        self._all.add(accepted, accepted + rejected, _KEPT_OF_ALL)

    def timed(self, rows: int, seconds: float, spent_s: float) -> None:
        """Learn what a step took that ran only decoding sequences.

        Args:
            rows: tokens it ran.
            seconds: what it took, without the time spent on guessing.
            spent_s: that time.
        """
        self._costs.note(rows, seconds)
        # A model that guesses has to read a prompt before its first guess.
        if spent_s and seconds:
            self._wait = max(_RETRY_STEPS, round(spent_s / seconds / _RETRY_SHARE))
