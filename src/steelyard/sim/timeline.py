"""Arrival, first and last token of each request of a trace, and the metrics that follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = ["RequestLike", "Timeline"]


class RequestLike(Protocol):
    """The part of a finished request that a timeline reads."""

    arrival_s: float
    first_token_s: float
    last_token_s: float
    output: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Times of R requests and S steps of one replay, real or simulated.

    Attributes:
        arrival_s: [R] seconds from the start of the replay to each arrival.
        first_token_s: [R] seconds to the first token, at least the arrival.
        last_token_s: [R] seconds to the last token.
        output_tokens: [R] tokens generated, at least 1.
        step_features: [S, F] features of each step.
        step_s: [S] seconds of each step.
        kv_utilization: [S] token states held over pool slots reserved.
    """

    arrival_s: np.ndarray
    first_token_s: np.ndarray
    last_token_s: np.ndarray
    output_tokens: np.ndarray
    step_features: np.ndarray
    step_s: np.ndarray
    kv_utilization: np.ndarray

    @classmethod
    def of(
        cls,
        requests: Sequence[RequestLike],
        step_features: Sequence[np.ndarray],
        step_s: Sequence[float],
        kv_utilization: Sequence[float],
    ) -> "Timeline":
        """Collect what a replay saw.

        Args:
            requests: finished requests.
            step_features: features of each step, [F].
            step_s: seconds of each step.
            kv_utilization: token states held over pool slots reserved, after each step.

        Returns:
            The timeline, requests and steps in the order given.
        """
        return cls(
            arrival_s=np.array([request.arrival_s for request in requests]),
            first_token_s=np.array([request.first_token_s for request in requests]),
            last_token_s=np.array([request.last_token_s for request in requests]),
            output_tokens=np.array([len(request.output) for request in requests]),
            step_features=np.array(step_features),
            step_s=np.array(step_s),
            kv_utilization=np.array(kv_utilization),
        )

    @property
    def ttft_s(self) -> np.ndarray:
        """Time to the first token of each request, [R] seconds."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> np.ndarray:
        """Mean seconds per output token after the first, one value per request that has several."""
        several = self.output_tokens > 1
        return (self.last_token_s - self.first_token_s)[several] / (self.output_tokens[several] - 1)

    def within(self, ttft_s: float, tpot_s: float) -> np.ndarray:
        """Say which requests keep both limits; a lone token has no time per token.

        Args:
            ttft_s: longest time to the first token.
            tpot_s: longest mean time per further token of a request.

        Returns:
            Bool [R].
        """
        # A lone token has spent nothing after the first, and keeps any limit.
        further = np.maximum(self.output_tokens - 1, 1)
        spent_s = self.last_token_s - self.first_token_s
        return (self.ttft_s <= ttft_s) & (spent_s <= tpot_s * further)

    def samples(self) -> dict[str, np.ndarray]:
        """Return each serving quantity with its samples; totals over the trace are single samples.

        Returns:
            Names of `steelyard.quantity.QUANTITIES` to arrays in SI units; empty when no request
            finished.
        """
        if not len(self.arrival_s):
            return {}
        makespan_s = float(self.last_token_s.max() - self.arrival_s.min())
        table = {
            "serve.ttft": self.ttft_s,
            "serve.ttft_p95": np.array([np.percentile(self.ttft_s, 95)]),
            "serve.tpot": self.tpot_s,
            "serve.throughput": np.array([self.output_tokens.sum() / makespan_s])
            if makespan_s > 0
            else np.empty(0),
            "serve.request_rate": np.array([len(self.arrival_s) / makespan_s])
            if makespan_s > 0
            else np.empty(0),
            "serve.e2e_latency": self.last_token_s - self.arrival_s,
            "serve.makespan": np.array([makespan_s]),
            "serve.kv_utilization": self.kv_utilization,
        }
        return {name: values for name, values in table.items() if values.size}

    def summary(self) -> dict[str, float]:
        """Return the mean of each quantity's samples."""
        return {name: float(values.mean()) for name, values in self.samples().items()}
