"""Prompts of trace rows: random token ids that keep what the rows say about shared prefixes."""

import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from steelyard.errors import ConfigError
from steelyard.serve.traces.record import TraceRequest, TraceRow

__all__ = ["PromptMaker", "with_prompts"]

_ALONE, _BLOCK, _SESSION = 0, 1, 2


class PromptMaker:
    """Makes the prompt of any row, in any order and process, from one seed.

    Rows with hash ids get one random block per id, so that prompts agree as far as their ids do;
    the turns of a session are prefixes of one random stream.

    Attributes:
        seed: seed of all tokens.
        vocab_size: tokens are uniform in [0, vocab_size).
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        """Keep seed and vocabulary.

        Args:
            seed: seed of all tokens, at least 0.
            vocab_size: number of tokens to draw from, at least 1.

        Raises:
            ConfigError: there is no token to draw.
        """
        if vocab_size < 1:
            raise ConfigError(
                f"cannot draw tokens from a vocabulary of {vocab_size}",
                hint="vocab_size is at least 1",
            )
        self.seed = seed
        self.vocab_size = vocab_size

    def tokens(self, row: TraceRow, index: int) -> list[int]:
        """Make a prompt.

        Args:
            row: row of the trace.
            index: number of the row in its trace; rows that share nothing differ by it.

        Returns:
            `row.input_tokens` token ids.
        """
        if row.hash_ids:
            blocks = [self._draw(_BLOCK, name, row.block_tokens) for name in row.hash_ids]
            return np.concatenate(blocks)[: row.input_tokens].tolist()
        if row.session:
            return self._draw(_SESSION, zlib.crc32(row.session.encode()), row.input_tokens).tolist()
        return self._draw(_ALONE, index, row.input_tokens).tolist()

    def _draw(self, kind: int, name: int, count: int) -> np.ndarray:
        """Draw the first tokens of a named stream."""
        return np.random.default_rng((self.seed, kind, name)).integers(0, self.vocab_size, count)


def with_prompts(
    rows: Iterable[TraceRow], generator: np.random.Generator, *, vocab_size: int
) -> Iterator[TraceRequest]:
    """Make the prompts of rows, one at a time.

    Args:
        rows: rows of a trace.
        generator: source of the seed of the tokens.
        vocab_size: tokens are uniform in [0, vocab_size).

    Yields:
        Requests in the order of the rows.
    """
    maker = PromptMaker(int(generator.integers(2**62)), vocab_size)
    for index, row in enumerate(rows):
        yield TraceRequest(
            arrival_s=row.arrival_s,
            prompt=maker.tokens(row, index),
            output_tokens=row.output_tokens,
            client=row.client,
            session=row.session,
        )
