"""All that `steelyard trace show` says of a trace, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.statistics.bursts import Burstiness, burstiness
from steelyard.serve.traces.statistics.sharing import PrefixSharing, prefix_sharing

__all__ = ["ClientUse", "RateCurve", "TraceDescription", "describe_trace", "length_quantiles"]

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_POINTS = 120
_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400)
_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RateCurve:
    """Arrivals per second over time.

    Attributes:
        step_s: length of a step.
        at_s: middle of each step, from the first row.
        rate_per_s: arrivals of it per second.
    """

    step_s: float
    at_s: list[float]
    rate_per_s: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientUse:
    """What one client sends.

    Attributes:
        client: its name.
        share: share of the requests.
        cv: coefficient of variation of its own gaps, not a number below three requests.
        input_tokens: mean prompt.
        output_tokens: mean output.
    """

    client: str
    share: float
    cv: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceDescription:
    """What a trace is like.

    Attributes:
        requests: rows.
        span_s: seconds from the first to the last.
        rates: arrivals over time.
        arrivals: how uneven they are.
        lengths: mean, quantiles and maximum of input, output and both, by name.
        length_correlation: rank correlation of input and output.
        sharing: what a prefix cache would have; None where the trace does not say.
        sessions: conversations.
        clients: names that are told apart.
        top_tenth: share of the requests that the most active tenth of the clients sends.
        largest: the most active clients.
    """

    requests: int
    span_s: float
    rates: RateCurve | None
    arrivals: Burstiness | None
    lengths: dict[str, dict[str, float]]
    length_correlation: float
    sharing: PrefixSharing | None
    sessions: int
    clients: int
    top_tenth: float
    largest: list[ClientUse]


def describe_trace(columns: TraceColumns, cache_tokens: Sequence[int]) -> TraceDescription:
    """Describe a trace.

    Args:
        columns: the trace.
        cache_tokens: sizes of prefix caches to try.

    Returns:
        The description; without rates where all rows arrive at once.
    """
    counts = np.bincount(columns.client, minlength=len(columns.clients))
    tenth = max(-(-len(counts) // 10), 1)
    both = columns.input_tokens + columns.output_tokens
    has_times = columns.span_s > 0
    return TraceDescription(
        requests=len(both),
        span_s=columns.span_s,
        rates=_rates(columns) if has_times else None,
        arrivals=burstiness(columns.arrival_s, columns.first_s) if has_times else None,
        lengths={
            "input": length_quantiles(columns.input_tokens),
            "output": length_quantiles(columns.output_tokens),
            "both": length_quantiles(both),
        },
        length_correlation=_rank_correlation(columns.input_tokens, columns.output_tokens),
        sharing=prefix_sharing(columns, cache_tokens),
        sessions=len(columns.sessions),
        clients=len(counts),
        top_tenth=float(np.sort(counts)[::-1][:tenth].sum() / len(both)),
        largest=[_use(columns, place) for place in np.argsort(-counts, kind="stable")[:_SHOWN]],
    )


def length_quantiles(tokens: NDArray[np.int64]) -> dict[str, float]:
    """Return mean, quantiles and maximum of lengths, by name."""
    found = np.quantile(tokens, _LEVELS)
    named = {f"p{level * 100:g}": float(value) for level, value in zip(_LEVELS, found, strict=True)}
    return {"mean": float(tokens.mean()), **named, "max": float(tokens.max())}


def _rates(columns: TraceColumns) -> RateCurve:
    """Count arrivals in steps, a hundred or so over the trace."""
    step_s = next((step for step in _STEPS_S if columns.span_s <= step * _POINTS), _STEPS_S[-1])
    counts = np.bincount((columns.arrival_s // step_s).astype(np.int64)).astype(float)
    # The last step is cut by the trace's end.
    widths = np.full(len(counts), float(step_s))
    widths[-1] = max(columns.span_s - (len(counts) - 1) * step_s, 1e-9)
    kept = widths > step_s / 2
    return RateCurve(
        step_s=float(step_s),
        at_s=(np.arange(len(counts)) * step_s + widths / 2)[kept].tolist(),
        rate_per_s=(counts / widths)[kept].tolist(),
    )


def _rank_correlation(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return Spearman's correlation, 0 where either is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(item) for item in (one, other)]
    if not ranks[0].std() or not ranks[1].std():
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def _use(columns: TraceColumns, place: int) -> ClientUse:
    """Describe one client."""
    own = columns.client == place
    gaps = np.diff(columns.arrival_s[own])
    varies = len(gaps) > 1 and gaps.mean() > 0
    return ClientUse(
        client=columns.clients[place],
        share=float(own.mean()),
        cv=float(gaps.std() / gaps.mean()) if varies else float("nan"),
        input_tokens=float(columns.input_tokens[own].mean()),
        output_tokens=float(columns.output_tokens[own].mean()),
    )
