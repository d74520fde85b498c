"""What requests carry: lengths drawn together, with what their prompts share or their sessions."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.record import TraceRow
from steelyard.serve.traces.statistics.sharing import prefix_hits

__all__ = ["LengthModel", "PrefixModel", "SessionModel", "fit_lengths", "unit_of"]

_PER_OCTAVE = 8
_WEIGHTS = (0.02, 0.1, 0.3, 0.6, 1.0)
_MOST = 20_000
_FAR = 500
"""Prompts to either side of a moment that are looked at before the closest has to do."""
_WARM_UP = 0.2
"""Share of the rows whose prompts met a cache that was still filling."""


@dataclass(frozen=True, kw_only=True)
class LengthModel:
    """Input and output lengths in cells of an eighth of an octave.

    Attributes:
        cells: cells of input and output that occurred.
        counts: requests in each.
        alone: share of the draws in which both are drawn by themselves; 1 is independent.
        seen: shortest and longest input and output that occurred.
    """

    cells: list[tuple[int, int]]
    counts: list[int]
    alone: float
    seen: tuple[int, int, int, int]

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        """Draw input and output lengths, [count] each."""
        cells, counts = np.asarray(self.cells), np.asarray(self.counts)
        shares = counts / counts.sum()
        first = generator.choice(len(shares), count, p=shares)
        other = np.where(
            generator.random(count) < self.alone,
            generator.choice(len(shares), count, p=shares),
            first,
        )
        picked = np.stack([cells[first, 0], cells[other, 1]])
        # Cells are those of length - 1/2 and more, so that rounding stays inside.
        sizes = np.exp2((picked + generator.random((2, count))) / _PER_OCTAVE)
        low, high, least, most = self.seen
        return (
            np.clip(np.rint(sizes[0]), low, high).astype(np.int64),
            np.clip(np.rint(sizes[1]), least, most).astype(np.int64),
        )

    def log_likelihoods(
        self, inputs: NDArray[np.int64], outputs: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the logarithm of the density of each pair over both lengths in octaves."""
        asked = _cells(inputs, outputs)
        cells, counts = np.asarray(self.cells), np.asarray(self.counts)
        total = counts.sum()
        size = 26 * _PER_OCTAVE
        sides = [
            (np.bincount(cells[:, side], counts, size) + 0.5) / (total + 0.5 * size)
            for side in (0, 1)
        ]
        # Cells come sorted by input, then output, so that their numbers rise.
        keys, wanted = (part[:, 0] * size + part[:, 1] for part in (cells, asked))
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        joint = np.where(keys[place] == wanted, counts[place] / total, 0.0)
        apart = sides[0][asked[:, 0]] * sides[1][asked[:, 1]]
        return np.log(self.alone * apart + (1 - self.alone) * joint) + 2 * math.log(_PER_OCTAVE)


def _cells(inputs: NDArray[np.int64], outputs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the cells of lengths, [R, 2]."""
    logs = np.log2(np.stack([inputs, outputs], axis=1))
    return np.clip(np.floor(logs * _PER_OCTAVE), 0, 26 * _PER_OCTAVE - 1).astype(np.int64)


def fit_lengths(
    inputs: NDArray[np.int64], outputs: NDArray[np.int64], place: int
) -> tuple[LengthModel, list[dict[str, Any]]]:
    """Fit joint lengths; rows from `place` on say how much of the pairing to keep.

    Args:
        inputs: [R] prompt lengths.
        outputs: [R] output lengths.
        place: first row that is held out.

    Returns:
        The model of all rows; and what was tried, with a lognormal pair, by held-out likelihood.
    """
    cut = max(min(place, len(inputs) - 1), 1)
    held = inputs[cut:], outputs[cut:]
    tried: list[dict[str, Any]] = [
        {
            "model": "lognormal pair",
            "log_likelihood": _lognormal(inputs, outputs, cut),
            "alone": math.nan,
        }
    ]
    for alone in _WEIGHTS:
        model = _histogram(inputs[:cut], outputs[:cut], alone)
        name = "cells, input and output by themselves" if alone == 1 else "cells, paired"
        score = float(model.log_likelihoods(*held).mean()) if len(held[0]) else 0.0
        tried.append({"model": name, "log_likelihood": score, "alone": alone})
    # The pair of lognormals is the yardstick: cells come to it where it is right.
    best = max(tried[1:], key=lambda item: item["log_likelihood"])
    return _histogram(inputs, outputs, best["alone"]), tried


def _histogram(inputs: NDArray[np.int64], outputs: NDArray[np.int64], alone: float) -> LengthModel:
    """Count pairs by cell."""
    cells, counts = np.unique(_cells(inputs, outputs), axis=0, return_counts=True)
    seen = int(inputs.min()), int(inputs.max()), int(outputs.min()), int(outputs.max())
    pairs = [(one, other) for one, other in cells.tolist()]
    return LengthModel(cells=pairs, counts=counts.tolist(), alone=alone, seen=seen)


def _lognormal(inputs: NDArray[np.int64], outputs: NDArray[np.int64], cut: int) -> float:
    """Return the mean held-out log-likelihood of a lognormal pair."""
    if cut < 3:
        return 0.0
    logs = np.log2(np.stack([inputs, outputs], axis=1))
    spread = np.cov(logs[:cut].T) + 1e-4 * np.eye(2)
    apart = logs[cut:] - logs[:cut].mean(axis=0)
    squares = np.einsum("ri,ij,rj->r", apart, np.linalg.inv(spread), apart)
    constant = math.log(2 * math.pi) + 0.5 * math.log(np.linalg.det(spread))
    return float(-0.5 * squares.mean() - constant) if len(apart) else 0.0


@dataclass(frozen=True, kw_only=True)
class PrefixModel:
    """Requests whose prompts begin with blocks of earlier ones.

    Attributes:
        known: input and output tokens, leading blocks that an earlier prompt had,
            and the seconds since it, of requests that met a warm cache.
        block_tokens: tokens per block.
    """

    known: list[tuple[float, float, float, float]]
    block_tokens: int

    @classmethod
    def of(cls, columns: TraceColumns) -> "PrefixModel":
        """Take them from a trace with hashes."""
        hits = prefix_hits(columns)
        assert hits is not None
        first = int(_WARM_UP * len(hits.depth))
        rows = np.arange(len(hits.depth))
        age_s = columns.arrival_s - columns.arrival_s[np.where(hits.parent < 0, rows, hits.parent)]
        known = np.stack([columns.input_tokens, columns.output_tokens, hits.depth, age_s], axis=1)
        kept = known[first:]
        stride = -(-len(kept) // _MOST)
        tuples = [(size, answer, deep, age) for size, answer, deep, age in kept[::stride].tolist()]
        return cls(known=tuples, block_tokens=columns.block_tokens)

    def rows(
        self, times: NDArray[np.float64], generator: np.random.Generator, client: str
    ) -> list[TraceRow]:
        """Draw a request for each arrival.

        A prompt shares its leading blocks with the earlier one that has as many and is closest to
        the age that was drawn with them; its other blocks are its own.
        """
        picked = np.asarray(self.known)[generator.integers(0, len(self.known), len(times))]
        history = _Earlier()
        made: list[TraceRow] = []
        fresh = 0
        for at_s, (size, answer, depth, age_s) in zip(times.tolist(), picked.tolist(), strict=True):
            count = -(-int(size) // self.block_tokens)
            shared = history.like(at_s - age_s, int(depth)) if depth else ()
            ids = (*shared, *range(fresh, fresh + count - len(shared)))
            fresh += count - len(shared)
            history.add(at_s, ids)
            made.append(
                TraceRow(
                    arrival_s=at_s,
                    input_tokens=int(size),
                    output_tokens=int(answer),
                    client=client,
                    hash_ids=ids,
                    block_tokens=self.block_tokens,
                )
            )
        return made


class _Earlier:
    """Earlier prompts, found by time among those that are long enough."""

    def __init__(self) -> None:
        """Begin empty; prompts stand in a list for each power of two of blocks they have."""
        self._times: list[list[float]] = [[] for _ in range(24)]
        self._ids: list[list[tuple[int, ...]]] = [[] for _ in range(24)]
        self._latest: dict[int, tuple[int, ...]] = {}

    def add(self, at_s: float, ids: tuple[int, ...]) -> None:
        """Keep a prompt."""
        for level in range(len(ids).bit_length()):
            self._times[level].append(at_s)
            self._ids[level].append(ids)
        self._latest.update(dict.fromkeys(ids, ids))

    def like(self, at_s: float, depth: int) -> tuple[int, ...]:
        """Return the first blocks of the prompt closest to a time that has as many.

        It should be the latest with them, as otherwise they were used more recently than asked for;
        where none near is, the closest that is long enough.
        """
        level = depth.bit_length() - 1
        times, prompts = self._times[level], self._ids[level]
        place = bisect_left(times, at_s)
        other: tuple[int, ...] = ()
        for step in range(len(times)):
            for index in (place - step - 1, place + step):
                if not 0 <= index < len(times) or len(prompts[index]) < depth:
                    continue
                found = prompts[index]
                if self._latest[found[depth - 1]] is found:
                    return found[:depth]
                other = other or found[:depth]
            if step >= _FAR and other:
                break
        return other


@dataclass(frozen=True, kw_only=True)
class SessionModel:
    """Conversations as they were, to begin at drawn moments.

    Attributes:
        turns: turns of each conversation: seconds since its first, input and output tokens,
            pause of the sender.
    """

    turns: list[list[tuple[float, int, int, float]]]

    @classmethod
    def of(cls, columns: TraceColumns) -> "SessionModel":
        """Take them from a trace; rows of their own are conversations of one turn."""
        order = np.argsort(unit_of(columns), kind="stable")
        units = unit_of(columns)[order]
        edges = np.flatnonzero(np.diff(units)) + 1
        turns = []
        for first, last in pairwise([0, *edges.tolist(), len(order)]):
            rows = order[first:last]
            times = columns.arrival_s[rows] - columns.arrival_s[rows[0]]
            turns.append(
                list(
                    zip(
                        times.tolist(),
                        columns.input_tokens[rows].tolist(),
                        columns.output_tokens[rows].tolist(),
                        columns.think_s[rows].tolist(),
                        strict=True,
                    )
                )
            )
        return cls(turns=turns[:: -(-len(turns) // _MOST)])

    def rows(
        self,
        times: NDArray[np.float64],
        generator: np.random.Generator,
        client: str,
        *,
        duration_s: float,
    ) -> list[TraceRow]:
        """Draw a conversation for each beginning; turns past the end are left out."""
        made: list[TraceRow] = []
        picks = generator.integers(0, len(self.turns), len(times)).tolist()
        for number, (start_s, pick) in enumerate(zip(times.tolist(), picks, strict=True)):
            turns = self.turns[pick]
            name = f"{client}-{number}" if len(turns) > 1 else ""
            made += [
                TraceRow(
                    arrival_s=start_s + after_s,
                    input_tokens=size,
                    output_tokens=answer,
                    client=client,
                    session=name,
                    think_s=think_s,
                )
                for after_s, size, answer, think_s in turns
                if start_s + after_s < duration_s
            ]
        return made


def unit_of(columns: TraceColumns) -> NDArray[np.int64]:
    """Return a number for each row that rows of one conversation share."""
    alone = len(columns.sessions) + np.arange(len(columns.arrival_s))
    return np.where(columns.session >= 0, columns.session, alone)
