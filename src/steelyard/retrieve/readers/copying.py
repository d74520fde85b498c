"""A reader that copies: what followed the same words in passages, mixed with a language model."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.readers.reader import PassageReader
from steelyard.retrieve.readers.windows import ReadingWindows

if TYPE_CHECKING:
    from steelyard.retrieve.datastore import Candidates

__all__ = ["CopyingReader", "copy_probabilities"]

_LONGEST = 8
_ROUNDS = 20
_LEAST_WEIGHT = 1e-4
Tokens = NDArray[np.int64]
Floats = NDArray[np.float64]


class CopyingReader:
    """A decoder beside a copier: their mixture predicts each token.

    The copier looks for the longest run of last tokens that stands in a passage too, and predicts
    what followed it there. How far it is believed depends on the length of the run, and is learned.
    A small decoder that reads passages in front of the text does not learn to look them up; this
    one needs no training for that, and costs no longer prompts.

    Attributes:
        reader: the decoder; it reads the text alone.
        weights: weight of the copier by length of the run, 0 to the longest [9].

    Source: Grave et al. 2017 (arXiv 1612.04426), cache of what was seen; Khandelwal et al. 2020
        (arXiv 1911.00172), interpolation; Liu et al. 2024 (arXiv 2401.17377), longest suffix.
    """

    def __init__(self, reader: PassageReader, weights: Floats | None = None) -> None:
        """Put a copier beside a decoder.

        Args:
            reader: the decoder.
            weights: of an earlier `fit`; none is believed before.

        Raises:
            ConfigError: weights of other lengths, or outside 0 to 1.
        """
        found = np.zeros(_LONGEST + 1) if weights is None else np.asarray(weights, np.float64)
        if found.shape != (_LONGEST + 1,) or not ((found >= 0) & (found < 1)).all():
            raise ConfigError(
                f"weights {found.tolist()}", hint=f"give {_LONGEST + 1} numbers from 0 to below 1"
            )
        self.reader, self.weights = reader, found

    def fit(self, windows: ReadingWindows, found: "Candidates") -> None:
        """Learn how far runs of each length are to be believed.

        Args:
            windows: windows of training text.
            found: passages of each; those of the window's own document must be left out.

        Raises:
            ConfigError: not as many windows as queries, or passages of a window's own document.
        """
        if "exclude" not in found.steps:
            raise ConfigError(
                "passages of the windows' own documents are among the candidates",
                hint="leave them out: candidates.exclude(windows.sources)",
            )
        model, copied, lengths = self._parts(windows, found)
        weights = np.full(_LONGEST + 1, 0.3)
        weights[0] = 0.0
        for _ in range(_ROUNDS):
            # Expectation-maximization: the share of each token that the copier explains.
            theirs = weights[lengths] * copied
            shares = theirs / np.maximum((1 - weights[lengths]) * model + theirs, 1e-300)
            counts = np.bincount(lengths, minlength=_LONGEST + 1)
            sums = np.bincount(lengths, shares, minlength=_LONGEST + 1)
            weights = np.clip(sums / np.maximum(counts, 1), 0.0, 1 - _LEAST_WEIGHT)
            weights[0] = 0.0
        self.weights = weights

    def losses(
        self, windows: ReadingWindows, found: "Candidates | None" = None
    ) -> NDArray[np.float64]:
        """Return how surprising each window's answer is.

        Args:
            windows: what is read.
            found: passages of each window; None for none.

        Returns:
            Mean nats per predicted token [W].

        Raises:
            ConfigError: not as many windows as queries.
        """
        if found is None:
            return self.reader.losses(windows)
        model, copied, lengths = self._parts(windows, found)
        believed = self.weights[lengths]
        mixed = np.log((1 - believed) * model + believed * copied)
        return -mixed.reshape(len(windows), -1).mean(axis=1)

    def _parts(self, windows: ReadingWindows, found: "Candidates") -> tuple[Floats, Floats, Tokens]:
        """Return what decoder and copier give each answer's token, and lengths of runs [W A]."""
        if len(found) != len(windows):
            raise ConfigError(f"passages for {len(found)} windows of {len(windows)}")
        model = np.exp(-self.reader.token_losses(windows))
        parts = [
            copy_probabilities(known, wanted, passages)
            for known, wanted, passages in zip(
                windows.known, windows.wanted, self._passages(found), strict=True
            )
        ]
        copied, lengths = (np.concatenate(side) for side in zip(*parts, strict=True))
        return model.ravel(), copied, lengths

    def _passages(self, found: "Candidates") -> Iterator[list[Tokens]]:
        """Yield tokens of the passages of each window."""
        numbers = np.unique(found.ids[found.ids >= 0]).tolist()
        texts = [found.store.text(number) for number in numbers]
        encoded = self.reader.tokenizer.encode_batch(texts, add_special_tokens=False)
        tokens = {
            number: np.array(item.ids, np.int64)
            for number, item in zip(numbers, encoded, strict=True)
        }
        for row in found.ids:
            yield [tokens[number] for number in row.tolist() if number >= 0]


def copy_probabilities(
    known: Tokens, wanted: Tokens, passages: Sequence[Tokens]
) -> tuple[Floats, Tokens]:
    """Return what a copier gives each wanted token.

    Args:
        known: tokens that are given [C].
        wanted: tokens behind them [A]; each is predicted from all before it.
        passages: tokens of passages.

    Returns:
        Share of the places with the longest run that the token followed [A], and the length of
        that run, at most 8; 0 where not even the last token stands in a passage [A].
    """
    text = np.concatenate([known, wanted])
    # A break that equals no token keeps runs from reaching over from one passage to the next.
    broken = [part for passage in passages for part in (passage, np.array([-1]))]
    source = np.concatenate([*broken, np.array([-1])]) if broken else np.array([-1])
    runs = np.zeros(len(source), np.int64)
    shares, lengths = np.zeros(len(wanted)), np.zeros(len(wanted), np.int64)
    begins = max(0, len(known) - _LONGEST)
    for place in range(begins, len(text) - 1):
        # Length of the run that ends at each place of the passages, from that one place before.
        before = np.concatenate([[0], runs[:-1]])
        runs = np.where(source == text[place], np.minimum(before + 1, _LONGEST), 0)
        at = place + 1 - len(known)
        if at < 0:
            continue
        follows = np.where(source[1:] >= 0, runs[:-1], 0)
        longest = int(follows.max(initial=0))
        if longest:
            chosen = source[1:][follows == longest]
            shares[at] = float((chosen == text[place + 1]).mean())
            lengths[at] = longest
    return shares, lengths
