"""Days of a service's load, cut to what shows whether a fleet holds them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import TraceError
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.shared import SharedPrompts
from steelyard.serve.client.summary import Slo
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.statistics.local import local_variation
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

__all__ = ["DayLoad", "days_of"]

_DAY_S = 86_400.0
_WHOLE = 0.9
"""Share of a day that a trace has to cover for it to count as one."""
_LEAST_REQUESTS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class DayLoad:
    """A day as short pieces of its parts, each run into a fleet without requests.

    Replicas keep what the prompts of earlier pieces left in their caches.

    Attributes:
        name: which day.
        arrival_s: float64 [R] seconds since the beginning of the request's piece.
        input_tokens: int64 [R] prompt lengths.
        output_tokens: int64 [R] output lengths.
        part: int64 [R] part of the day, not falling.
        weights: float64 [P] requests of each part of the day.
        piece_s: seconds of each piece, of which the first fifth only fills the fleet.
        duration_s: seconds of the day.
        shared: what the prompts share.
    """

    name: str
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    part: NDArray[np.int64]
    weights: NDArray[np.float64]
    piece_s: float
    duration_s: float = _DAY_S
    shared: SharedPrompts = field(default_factory=SharedPrompts)

    @property
    def rate_per_s(self) -> float:
        """Mean requests per second."""
        return float(self.weights.sum()) / self.duration_s

    @property
    def peak_per_s(self) -> float:
        """Requests per second of the fullest part."""
        return float(self.weights.max()) * len(self.weights) / self.duration_s

    @classmethod
    def of(
        cls,
        name: str,
        columns: TraceColumns,
        generator: np.random.Generator,
        *,
        parts: int = 24,
        piece_s: float = 60.0,
    ) -> "DayLoad":
        """Cut a day into parts, and take one piece of each at a random moment.

        Args:
            name: which day.
            columns: its requests.
            generator: source of the moments.
            parts: parts of equal length.
            piece_s: seconds of each piece; at most a part's.

        Returns:
            The day.

        Raises:
            TraceError: it has too few requests to say anything.
        """
        if columns.span_s <= 0 or len(columns.arrival_s) < _LEAST_REQUESTS:
            raise TraceError(
                f"{name} has {len(columns.arrival_s)} requests in {columns.span_s:g} s",
                hint=f"a day needs {_LEAST_REQUESTS} and more, with arrivals",
            )
        length_s = columns.span_s / parts
        piece_s = min(piece_s, length_s)
        starts = (np.arange(parts) + generator.random(parts) * (1 - piece_s / length_s)) * length_s
        edges = np.searchsorted(columns.arrival_s, np.stack([starts, starts + piece_s], axis=1))
        places = np.concatenate([np.arange(first, last) for first, last in edges])
        part = np.repeat(np.arange(parts), edges[:, 1] - edges[:, 0])
        of_part = np.minimum(columns.arrival_s // length_s, parts - 1).astype(np.int64)
        return cls(
            name=name,
            arrival_s=columns.arrival_s[places] - starts[part],
            input_tokens=columns.input_tokens[places],
            output_tokens=columns.output_tokens[places],
            part=part,
            weights=np.bincount(of_part, minlength=parts).astype(float),
            piece_s=piece_s,
            duration_s=columns.span_s,
            shared=_shared(columns, edges),
        )

    def faster(self, factor: float) -> "DayLoad":
        """Return the same requests in a day that has `factor` times as many per second."""
        return replace(
            self,
            arrival_s=self.arrival_s / factor,
            piece_s=self.piece_s / factor,
            weights=self.weights * factor,
        )

    def attainment(self, groups: Sequence[ReplicaGroup], slo: Slo) -> float:
        """Simulate the pieces on a fleet.

        Args:
            groups: the fleet.
            slo: limits of the first and of further tokens.

        Returns:
            Share of the day's requests that keep both limits, parts weighted by their requests.

        Raises:
            CapacityError: a request is larger than the room for its keys and values.
        """
        # Pieces are so far apart that the longest of them is over before the next begins.
        apart_s = 50.0 * self.piece_s + 7200.0
        longest = int((self.input_tokens + self.output_tokens).max())
        run = simulate_fleet(
            self.shared.groups(groups, longest),
            self.arrival_s + self.part * apart_s,
            self.input_tokens,
            self.output_tokens,
            block_ids=self.shared.block_ids,
        )
        kept = run.timeline.within(slo.ttft_s, slo.tpot_s)
        judged = self.arrival_s >= 0.2 * self.piece_s
        size = len(self.weights)
        seen = np.bincount(self.part[judged], minlength=size)
        good = np.bincount(self.part[judged], kept[judged], size)
        shares = good[seen > 0] / seen[seen > 0]
        return float(np.average(shares, weights=self.weights[seen > 0]))

    def load(self, generator: np.random.Generator, count: int) -> ServiceLoad:
        """Return requests of all parts, for the search of arrangements."""
        # Each piece has a rate of its own: gaps are compared with those of the same piece.
        inside = np.diff(self.part) == 0
        spread = local_variation(np.diff(self.arrival_s)[inside], self.part[1:][inside])
        variation = float(np.clip(spread, 0.05, 8.0))
        if self.shared.block_ids:
            count = min(count, len(self.input_tokens))
        drawn = ServiceLoad.drawn(
            self.input_tokens, self.output_tokens, generator, count=count, variation=variation
        )
        if not self.shared.block_ids:
            return drawn
        # Prompts share with those that came just before: these are taken as they follow.
        return replace(
            drawn,
            input_tokens=self.input_tokens[:count],
            output_tokens=self.output_tokens[:count],
            block_ids=self.shared.finest(count),
        )


def _shared(columns: TraceColumns, edges: NDArray[np.int64]) -> SharedPrompts:
    """Return what the prompts of all pieces share."""
    if not columns.has_hashes and not columns.sessions:
        return SharedPrompts()
    pieces = (columns.part(int(first), int(last)) for first, last in edges if last > first)
    return SharedPrompts.of_rows([row for piece in pieces for row in piece.rows()])


def days_of(
    name: str, columns: TraceColumns, generator: np.random.Generator, *, piece_s: float = 60.0
) -> list[DayLoad]:
    """Divide a trace into its days.

    Args:
        name: name of the trace.
        columns: its requests.
        generator: source of the pieces' moments.
        piece_s: seconds of each piece.

    Returns:
        Whole days, by midnight of the trace's clock; the trace as one day where it has none.
    """
    offset_s = columns.first_s % _DAY_S
    last = int((columns.span_s + offset_s) // _DAY_S)
    found = []
    for day in range(last + 1):
        begin_s = day * _DAY_S - offset_s
        first, end = np.searchsorted(columns.arrival_s, [max(begin_s, 0.0), begin_s + _DAY_S])
        own = columns.part(int(first), int(end)) if end > first else None
        if own is not None and own.span_s >= _WHOLE * _DAY_S:
            found.append(DayLoad.of(f"{name}, day {day + 1}", own, generator, piece_s=piece_s))
    return found or [DayLoad.of(name, columns, generator, piece_s=piece_s)]
