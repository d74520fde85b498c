"""The requests that a service is planned for, at any rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import TraceError
from steelyard.serve.deployment import DeployedLoad
from steelyard.serve.traces import TraceRow, load_rows
from steelyard.serve.traces.fleet import block_ids
from steelyard.serve.traces.reshape import gamma_gaps
from steelyard.serve.traces.statistics.local import local_arrivals

__all__ = ["ServiceLoad", "asked_load"]

SHARED_BLOCK = 16
"""Token slots of the blocks that prompts share."""
_ROUND = 1 << 140
"""Ids of a round begin here, above those of all sessions."""
_MOST_BURSTY = 8.0
"""Largest coefficient of variation that is taken from a trace: the Gamma distribution of gaps needs
ever more requests to show its mean beyond."""


@dataclass(frozen=True, kw_only=True)
class ServiceLoad:
    """A sample of requests whose arrivals are stretched to any rate.

    One sample serves all rates and candidates, so that these differ by what they are and not by
    what was drawn.

    Attributes:
        input_tokens: int64 [R] prompt lengths.
        output_tokens: int64 [R] output lengths.
        unit_arrival_s: float64 [R] arrivals at one request per second.
        variation: coefficient of variation of the gaps; 1 is Poisson.
        most_tokens: tokens of the longest request that may come, prompt and output, where that is
            longer than any that was drawn.
        block_ids: what the leading blocks of each prompt hold, [R] tuples, as `sim.fleet` takes
            them; empty where nothing is shared.
    """

    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    unit_arrival_s: NDArray[np.float64]
    variation: float = 1.0
    most_tokens: int = 0
    block_ids: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def drawn(
        cls,
        input_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        generator: np.random.Generator,
        *,
        count: int,
        variation: float = 1.0,
    ) -> "ServiceLoad":
        """Draw requests of given lengths.

        Args:
            input_tokens: [n] prompt lengths to draw from.
            output_tokens: [n] output lengths of the same requests.
            generator: source of the draws.
            count: requests to draw.
            variation: coefficient of variation of the gaps, above 0.

        Returns:
            The load.

        Source: Zhong et al. 2024 (arXiv 2401.09670), section 4.1 (resampling of the history).
        """
        rows = generator.integers(len(input_tokens), size=count)
        gaps = gamma_gaps(generator, count, rate_per_s=1.0, burstiness=1 / variation**2)
        return cls(
            input_tokens=np.asarray(input_tokens)[rows],
            output_tokens=np.asarray(output_tokens)[rows],
            # The sample's own mean gap, so that a rate is met whatever was drawn.
            unit_arrival_s=np.cumsum(gaps) * (count / gaps.sum()),
            variation=variation,
            most_tokens=int((np.asarray(input_tokens) + np.asarray(output_tokens)).max()),
        )

    @classmethod
    def of_rows(
        cls, rows: Sequence[TraceRow], generator: np.random.Generator, *, count: int
    ) -> "ServiceLoad":
        """Draw requests like those of a trace, with gaps that vary as much as inside its minutes.

        How the rate changes over hours is no burst: it is what the rate is planned for. Where
        prompts share prefixes, requests that follow each other are taken: draws from all over the
        trace would tear conversations apart.

        Args:
            rows: rows by arrival.
            generator: source of the draws.
            count: requests to draw.

        Returns:
            The load; Poisson where all rows arrive at once.

        Raises:
            TraceError: there is no row.
        """
        if not rows:
            raise TraceError("the trace has no request", hint="give at least one row")
        times = np.array([row.arrival_s for row in rows])
        spread = local_arrivals(times).variation if times[-1] > times[0] else 1.0
        variation = float(np.clip(spread, 0.05, _MOST_BURSTY))
        if any(row.hash_ids or row.session for row in rows):
            start = int(generator.integers(max(len(rows) - count, 0) + 1))
            return cls._following(rows[start : start + count], variation, generator, rows)
        return cls.drawn(
            np.array([row.input_tokens for row in rows]),
            np.array([row.output_tokens for row in rows]),
            generator,
            count=count,
            variation=variation,
        )

    @classmethod
    def _following(
        cls,
        taken: Sequence[TraceRow],
        variation: float,
        generator: np.random.Generator,
        rows: Sequence[TraceRow],
    ) -> "ServiceLoad":
        """Take rows as they follow each other, with what their prompts share."""
        made = cls(
            input_tokens=np.array([row.input_tokens for row in taken]),
            output_tokens=np.array([row.output_tokens for row in taken]),
            unit_arrival_s=np.zeros(len(taken)),
            most_tokens=max(row.input_tokens + row.output_tokens for row in rows),
            block_ids=tuple(block_ids(row, SHARED_BLOCK) for row in taken),
        )
        return made.with_variation(variation, generator)

    @property
    def shared_fraction(self) -> float:
        """Share of the prompts' tokens that stand in blocks of an earlier request too."""
        seen: set[int] = set()
        shared = 0
        for ids in self.block_ids:
            shared += sum(name in seen for name in ids)
            seen.update(ids)
        return SHARED_BLOCK * shared / float(self.input_tokens.sum())

    def contents(self, count: int) -> list[tuple[int, ...]]:
        """Return what the prompts of `lasting` requests hold; rounds share nothing.

        Args:
            count: requests of all rounds.

        Returns:
            Block ids of each; none where nothing is shared.
        """
        if not self.block_ids:
            return []
        rounds = range(count // len(self.block_ids))
        # The same request again is another one: it would find its whole prompt else.
        return [
            tuple(name + turn * _ROUND for name in ids) for turn in rounds for ids in self.block_ids
        ]

    def less_shared(self, kept: float, generator: np.random.Generator) -> "ServiceLoad":
        """Return the requests with some prompts that share nothing any more.

        Args:
            kept: share of the requests whose prompts go on to share.
            generator: chooses them.

        Returns:
            The same requests otherwise.
        """
        stay = generator.random(len(self.block_ids)) < kept
        ids = (ids if keeps else () for ids, keeps in zip(self.block_ids, stay, strict=True))
        return replace(self, block_ids=tuple(ids))

    def with_prompts(self, factor: float, *, most: int) -> "ServiceLoad":
        """Return the requests with prompts that are longer or shorter.

        Args:
            factor: above 0, multiplies each prompt.
            most: tokens that no request, prompt and output, may come to have.

        Returns:
            The same requests otherwise.
        """
        longer = np.rint(self.input_tokens * factor).astype(np.int64)
        room = np.maximum(most - self.output_tokens, 1)
        return replace(self, input_tokens=np.clip(longer, 1, room))

    def with_variation(self, variation: float, generator: np.random.Generator) -> "ServiceLoad":
        """Return the requests with gaps that vary more or less.

        Args:
            variation: coefficient of variation of the gaps, above 0.
            generator: source of the gaps.

        Returns:
            The same requests in the same order.
        """
        count = len(self.unit_arrival_s)
        gaps = gamma_gaps(generator, count, rate_per_s=1.0, burstiness=1 / variation**2)
        times = np.cumsum(gaps) * (count / gaps.sum())
        return replace(self, unit_arrival_s=times, variation=variation)

    def redrawn(self, generator: np.random.Generator) -> "ServiceLoad":
        """Return another sample like this one: its requests drawn again, with new gaps.

        Args:
            generator: source of the draws.

        Returns:
            As many requests; in their order where prompts share prefixes.
        """
        made = self.with_variation(self.variation, generator)
        if self.block_ids:
            return made
        rows = generator.integers(len(self.input_tokens), size=len(self.input_tokens))
        return replace(
            made, input_tokens=self.input_tokens[rows], output_tokens=self.output_tokens[rows]
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest request that may come, prompt and output."""
        return max(int((self.input_tokens + self.output_tokens).max()), self.most_tokens)

    def head(self, count: int) -> "ServiceLoad":
        """Return the first `count` requests, or all where there are fewer."""
        return replace(
            self,
            input_tokens=self.input_tokens[:count],
            output_tokens=self.output_tokens[:count],
            unit_arrival_s=self.unit_arrival_s[:count],
            block_ids=self.block_ids[:count],
        )

    def lasting(
        self, rate_per_s: float, span_s: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the requests at a rate, again and again until they span a time.

        Args:
            rate_per_s: requests per second.
            span_s: least time from the first to the last arrival, seconds.

        Returns:
            Arrivals [n], prompt tokens [n] and output tokens [n]; all requests at least once.
        """
        size = len(self.unit_arrival_s)
        rounds = max(math.ceil(span_s * rate_per_s / size), 1)
        starts = np.repeat(np.arange(rounds) * float(size), size)
        arrival_s = (np.tile(self.unit_arrival_s, rounds) + starts) / rate_per_s
        return arrival_s, np.tile(self.input_tokens, rounds), np.tile(self.output_tokens, rounds)


def asked_load(asked: DeployedLoad) -> ServiceLoad:
    """Return the requests that a deployment is planned for.

    Args:
        asked: its trace, of which all rows are drawn from, or the mean lengths.

    Returns:
        As many requests as a replay sends.

    Raises:
        TraceError: the trace cannot be read.
    """
    generator = np.random.default_rng(asked.seed)
    if asked.trace is not None:
        rows = load_rows(asked.trace, generator, scale=asked.length_scale)
        return ServiceLoad.of_rows(rows, generator, count=asked.requests)
    rows = asked.rows()
    return ServiceLoad.drawn(
        np.array([row.input_tokens for row in rows]),
        np.array([row.output_tokens for row in rows]),
        generator,
        count=asked.requests,
    )
