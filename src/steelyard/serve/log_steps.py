"""The steps between arrival, first and last token of the requests of an access log."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import FEATURES, FIRST_TOKENS
from steelyard.serve.access_log import AccessLog
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet
from steelyard.sim.timeline import Timeline

__all__ = ["LogSteps"]

_KNOTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
"""Batches at which a decoding step may begin to rise faster."""

Array = NDArray[np.float64]
Kept = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSteps:
    """S simulated steps that serve the R requests of a log.

    Attributes:
        log: the requests.
        timeline: when the simulated server answered them.
        start_s: [S] start of each step.
        end_s: [S] its end.
        features: [S, 7] what it holds, in the order of `cost.FEATURES`.
        table: [S, terms] what its time is a sum of, with coefficients of at least 0.
    """

    log: AccessLog
    timeline: Timeline
    start_s: Array
    end_s: Array
    features: Array
    table: Array

    @classmethod
    def simulate(cls, log: AccessLog, limits: ReplicaGroup, model: PhaseStepTime) -> "LogSteps":
        """Serve the log's requests in virtual time.

        Args:
            log: the requests.
            limits: limits of the server, one replica of one stage; its step time is not read.
            model: seconds of its steps.

        Returns:
            The steps.

        Raises:
            CapacityError: the limits cannot hold a request of the log.
        """
        group = replace(limits, step_time=model)
        chunks = log.input_tokens // limits.token_budget + 2
        # Recomputation after preemption makes more; steps beyond are few then, and are not kept.
        most = 2 * int((log.output_tokens + chunks).sum())
        run = simulate_fleet(
            [group], log.arrival_s, log.input_tokens, log.output_tokens, keep_steps=most
        )
        features = _features(log, run.timeline, run.steps)
        return cls(
            log=log,
            timeline=run.timeline,
            start_s=np.array(run.steps["start_s"]),
            end_s=np.array(run.steps["end_s"]),
            features=features,
            table=_terms(features),
        )

    def sums(self, kept: Kept) -> tuple[Array, Array]:
        """Return what logged times are sums of, and the times.

        Args:
            kept: requests to use, bool [R].

        Returns:
            Terms [n, terms] and seconds [n]: of each kept request the time to its first token and
            the time from there to its last, or its latency where the log has no first token.
        """
        log, seen, ends = self.log, self.timeline, self.end_s
        total = np.vstack([np.zeros(self.table.shape[1]), np.cumsum(self.table, axis=0)])
        first = np.searchsorted(ends, seen.first_token_s).clip(max=len(ends) - 1)
        last = np.searchsorted(ends, seen.last_token_s).clip(max=len(ends) - 1)
        # Of the step that runs when a request comes only the rest is waited for.
        at = np.searchsorted(ends, log.arrival_s, side="right").clip(max=len(ends) - 1)
        begin = np.maximum(self.start_s[at], log.arrival_s)
        rest = np.clip((ends[at] - begin) / (ends[at] - self.start_s[at]), 0.0, 1.0)
        to_first = rest[:, None] * self.table[at] + total[first + 1] - total[at + 1]
        to_last = total[last + 1] - total[first + 1]
        knows = np.isfinite(log.ttft_s)
        several = kept & knows & (log.output_tokens > 1) & (log.decode_s > 0)
        parts = (
            (to_first, log.ttft_s, kept & knows),
            (to_last, log.decode_s, several),
            (to_first + to_last, log.latency_s, kept & ~knows),
        )
        rows = np.concatenate([terms[own] for terms, _, own in parts])
        return rows, np.concatenate([seconds[own] for _, seconds, own in parts])

    def distance(self, kept: Kept) -> float:
        """Return the mean |log(simulated / logged)| of the kept requests, bool [R]."""
        log, seen = self.log, self.timeline
        knows = kept & np.isfinite(log.ttft_s)
        latency = np.abs(np.log((seen.last_token_s - seen.arrival_s) / log.latency_s))[kept]
        first = np.abs(np.log(seen.ttft_s / log.ttft_s))[knows]
        return float(np.concatenate([latency, first]).mean())


def _features(log: AccessLog, seen: Timeline, steps: np.ndarray) -> Array:
    """Return the features of steps; pairs of a divided prompt count in its last step."""
    count = len(steps)
    first = np.searchsorted(steps["end_s"], seen.first_token_s).clip(max=count - 1)
    last = np.searchsorted(steps["end_s"], seen.last_token_s).clip(max=count - 1)
    # From the step after its first token on a request attends one token more in each step.
    constant, slope = np.zeros(count + 1), np.zeros(count + 1)
    for where, sign in ((first + 1, 1.0), (last + 1, -1.0)):
        np.add.at(constant, where, sign * (log.input_tokens - first))
        np.add.at(slope, where, sign)
    index = np.arange(count)
    attended = np.cumsum(constant)[:-1] + np.cumsum(slope)[:-1] * index
    pairs, ending = np.zeros(count), np.zeros(count)
    np.add.at(pairs, first, log.input_tokens * (log.input_tokens + 1) / 2)
    np.add.at(ending, first, 1.0)
    prompts, decodes = (steps[name].astype(np.float64) for name in ("prompt_tokens", "decodes"))
    table = {
        "steps": np.ones(count),
        "sequences": decodes + np.maximum(ending, prompts > 0),
        "prefill_tokens": prompts,
        "prefill_kv": pairs,
        "decode_tokens": decodes,
        "decode_kv": np.maximum(attended, 0.0),
        "first_tokens": np.minimum(prompts + decodes, FIRST_TOKENS),
    }
    return np.column_stack([table[name] for name in FEATURES])


def _terms(features: Array) -> Array:
    """Return what the time of steps is a sum of; that of decoding bends up with the batch."""
    step = dict(zip(FEATURES, features.T, strict=True))
    alone = step["prefill_tokens"] == 0
    batch = step["decode_tokens"]
    return np.column_stack(
        [
            alone,
            *(alone * np.maximum(batch - knot, 0.0) for knot in _KNOTS),
            ~alone,
            step["prefill_tokens"],
            step["prefill_kv"],
            ~alone * batch,
            step["decode_kv"],
        ]
    ).astype(np.float64)
