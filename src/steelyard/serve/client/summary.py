"""What a load measured: latencies and percentiles, rates, goodput, errors, what to doubt."""

import difflib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from steelyard import units
from steelyard.errors import ConfigError
from steelyard.quantity import Measurement
from steelyard.serve.client.load import LoadResult
from steelyard.serve.client.record import RequestRecord

__all__ = ["Distribution", "LoadSummary", "Slo", "summarize"]

_BUSY_CLIENT = 0.5
"""Processor share of a sending process above which its own delays are in the latencies."""

_LATE_S = 0.01
"""Delay of sending, in seconds, below which an open loop counts as punctual."""

_LEVELS = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Mean, standard deviation and percentiles of samples; NaN without any.

    Attributes:
        count: number of samples.
        mean: mean of the samples.
        spread: standard deviation.
        p50: median.
        p90: 90th percentile.
        p95: 95th percentile.
        p99: 99th percentile.
        p99_9: 99.9th percentile.
    """

    count: int
    mean: float
    spread: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float

    @classmethod
    def of(cls, samples: Iterable[float]) -> "Distribution":
        """Summarize samples; NaN among them are left out, percentiles interpolate linearly."""
        values = np.array([value for value in samples if value == value])
        if not len(values):
            return cls(
                count=0,
                **dict.fromkeys(("mean", "spread", "p50", "p90", "p95", "p99", "p99_9"), math.nan),
            )
        points = dict(
            zip(
                ("p50", "p90", "p95", "p99", "p99_9"),
                np.percentile(values, _LEVELS).tolist(),
                strict=True,
            )
        )
        return cls(
            count=len(values), mean=float(values.mean()), spread=float(values.std()), **points
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Slo:
    """What a good answer keeps, each in seconds; infinity asks for nothing.

    Attributes:
        ttft_s: longest time to first token.
        tpot_s: longest time per output token.
        e2e_s: longest time to the last token.
    """

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    e2e_s: float = math.inf

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Read such as "ttft=0.5,tpot=50ms"; an empty text asks for nothing.

        Args:
            text: names `ttft`, `tpot`, `e2e` with seconds or a time with its unit.

        Returns:
            The objective.

        Raises:
            ConfigError: a name is unknown or a time not positive.
        """
        limits: dict[str, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if name not in ("ttft", "tpot", "e2e") or not equals:
                near = difflib.get_close_matches(name, ("ttft", "tpot", "e2e"), n=1)
                raise ConfigError(
                    f"--slo: cannot read {part!r}",
                    hint=f"did you mean {near[0]}=?" if near else "write ttft=0.5,tpot=0.05,e2e=10",
                )
            limits[f"{name}_s"] = units.parse(value, "s", where=f"--slo {name}")
            if not limits[f"{name}_s"] > 0:
                raise ConfigError(f"--slo: {name} is {value}", hint="write a time above 0")
        return cls(**limits)

    def holds(self, record: RequestRecord) -> bool:
        """Whether an answer came whole and in time."""
        if not record.is_ok or not record.ttft_s <= self.ttft_s or not record.e2e_s <= self.e2e_s:
            return False
        # An answer of a single token has no time per token to miss.
        return record.output_tokens < 2 or record.tpot_s <= self.tpot_s


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadSummary:
    """A load in numbers.

    Attributes:
        requests: that came back whole.
        errors: failed ones by kind.
        retries: answers 429 after which a request was sent again.
        duration_s: first sending to last text.
        prompt_tokens: tokens of the prompts of whole answers.
        output_tokens: tokens of whole answers.
        output_tokens_per_s: output tokens over the duration.
        total_tokens_per_s: prompt and output tokens over the duration.
        requests_per_s: whole answers over the duration.
        goodput_per_s: answers that kept the objective over the duration.
        good_fraction: share of all requests sent that kept it.
        mean_in_flight: requests under way, mean over the duration (Little's law).
        ttft: sending to first text, s.
        tpot: per request, (last - first text) / (output tokens - 1), s.
        itl: gaps between pieces of text, over all requests, s; a piece may hold several tokens.
        e2e: sending to last text, s.
        late: how much later than planned requests were sent, s.
        stages: time by stage as the server reports it, s.
        client_cpu: largest processor share of a sending process.
        is_open: whether requests were sent at their arrival times.
        started_at_s: wall clock at the start.
        has_limits: whether the objective asks for anything.
    """

    requests: int
    errors: dict[str, int]
    retries: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    good_fraction: float
    mean_in_flight: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    late: Distribution
    stages: dict[str, Distribution]
    client_cpu: float
    is_open: bool
    started_at_s: float
    has_limits: bool = False

    @property
    def failed(self) -> int:
        """Requests that did not come back whole."""
        return sum(self.errors.values())

    def warnings(self) -> list[str]:
        """Say what casts doubt on the numbers."""
        found: list[str] = []
        if self.client_cpu > _BUSY_CLIENT:
            found.append(
                f"a sending process used {self.client_cpu:.0%} of a processor: latencies include "
                f"the client's; use more --processes"
            )
        if self.is_open and self.late.p99 > max(_LATE_S, 0.1 * self.ttft.p50):
            found.append(
                f"1 % of requests were sent {units.pretty_duration(self.late.p99)} late or more: "
                f"the load was easier than asked"
            )
        if self.failed:
            found.append(
                f"{self.failed} of {self.failed + self.requests} requests failed and are in no "
                f"latency: {self.error_words()}"
            )
        return found

    def error_words(self) -> str:
        """List errors as "3 timeout, 1 http 429"."""
        return ", ".join(
            f"{count} {kind}"
            for kind, count in sorted(self.errors.items(), key=lambda item: -item[1])
        )

    def measurements(self) -> list[Measurement]:
        """Return the serving quantities; those without a sample are left out."""
        rows = [
            ("serve.ttft", self.ttft.mean, self.ttft.spread, self.ttft.count),
            ("serve.ttft_p95", self.ttft.p95, 0.0, self.ttft.count),
            ("serve.tpot", self.tpot.mean, self.tpot.spread, self.tpot.count),
            ("serve.e2e_latency", self.e2e.mean, self.e2e.spread, self.e2e.count),
            ("serve.throughput", self.output_tokens_per_s, 0.0, 1),
            ("serve.request_rate", self.requests_per_s, 0.0, 1),
            ("serve.makespan", self.duration_s, 0.0, 1),
        ]
        if self.has_limits:
            count = self.requests + self.failed
            rows.append(("serve.slo_attainment", self.good_fraction, 0.0, count))
        return [
            Measurement(
                quantity=name, value=value, spread=spread, count=count, time_s=self.started_at_s
            )
            for name, value, spread, count in rows
            if math.isfinite(value)
        ]


def summarize(result: LoadResult, slo: Slo | None = None) -> LoadSummary:
    """Turn the records of a load into numbers.

    Args:
        result: records of a load.
        slo: which answers are good; all whole ones by default.

    Returns:
        The summary; rates of a load without a whole answer are 0.

    Source: definitions of TTFT and TPOT as in DistServe (arXiv 2401.09670), section 2; goodput
    likewise, section 3.
    """
    objective = slo or Slo()
    whole = [record for record in result.records if record.is_ok]
    begin_s = min((record.sent_s for record in result.records), default=0.0)
    end_s = max((record.chunk_s[-1] for record in whole if record.chunk_s), default=begin_s)
    prompt = sum(record.prompt_tokens for record in whole)
    output = sum(record.output_tokens for record in whole)
    good = sum(objective.holds(record) for record in result.records)
    rate = 1.0 / (end_s - begin_s) if end_s > begin_s else 0.0
    stages = dict.fromkeys(name for record in whole for name in record.stages)
    return LoadSummary(
        requests=len(whole),
        errors=dict(Counter(record.error for record in result.records if record.error)),
        retries=sum(record.retries for record in result.records),
        duration_s=end_s - begin_s,
        prompt_tokens=prompt,
        output_tokens=output,
        output_tokens_per_s=output * rate,
        total_tokens_per_s=(prompt + output) * rate,
        requests_per_s=len(whole) * rate,
        goodput_per_s=good * rate,
        good_fraction=good / max(len(result.records), 1),
        mean_in_flight=float(np.nansum([record.e2e_s for record in whole])) * rate,
        ttft=Distribution.of(record.ttft_s for record in whole),
        tpot=Distribution.of(record.tpot_s for record in whole),
        itl=Distribution.of(gap for record in whole for gap in np.diff(record.chunk_s).tolist()),
        e2e=Distribution.of(record.e2e_s for record in whole),
        late=Distribution.of(record.late_s for record in result.records),
        stages={
            name: Distribution.of(record.stages.get(name, math.nan) for record in whole)
            for name in stages
        },
        client_cpu=max(result.cpu_shares, default=0.0),
        is_open=result.is_open,
        started_at_s=result.started_at_s,
        has_limits=objective != Slo(),
    )
