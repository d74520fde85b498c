"""Step times of a server that nobody may profile, from the access log it writes anyway."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import relative_nnls, step_features
from steelyard.errors import FitError
from steelyard.files import write_json
from steelyard.quantity import Z80
from steelyard.serve.access_log import AccessLog
from steelyard.serve.log_steps import LogSteps
from steelyard.sim.fleet.instance import ReplicaGroup

__all__ = ["LogCalibration", "LogStep", "calibrate_log"]

_ROUNDS = 12
"""Fits, each on the steps that were simulated with the one before."""
_BLOCKS = 10
"""Parts of the log that are left out in turn for the intervals."""
_REWEIGHTED = 5
_FAR = 2.0
"""Times the median error from which on a request counts less: other work had the machine."""
_SHOWN_STEPS = 3000
"""Simulated steps from which the model takes its form."""
_TEST_SHARE = 0.3

Array = NDArray[np.float64]
Kept = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogStep:
    """What the fit says of one step, typical of the log.

    Attributes:
        name: what the step holds.
        seconds: its time.
        low: lower end of the 80 % interval.
        high: upper end.
    """

    name: str
    seconds: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LogCalibration:
    """Step times fitted to an access log.

    Attributes:
        step_time: the model; its `relative_spread` is the half-width of the widest of `steps`.
        steps: typical steps with intervals.
        rows: requests of the log.
        test_rows: requests at the log's end that a first fit did not see.
        test_error: median over these of |simulated / logged - 1| of the latency.
        test_error_p90: 90th percentile of the same.
        test_ttft_error: median of the same of the time to the first token; 0 where the log has
            none.
    """

    step_time: PhaseStepTime
    steps: tuple[LogStep, ...]
    rows: int
    test_rows: int
    test_error: float
    test_error_p90: float
    test_ttft_error: float

    def save(self, path: Path) -> None:
        """Write it as JSON, atomically; `PhaseStepTime.load` reads the model."""
        write_json(path, self)


def calibrate_log(
    log: AccessLog, limits: ReplicaGroup, *, source: str = "an access log"
) -> LogCalibration:
    """Find the step times with which a simulated server answers as the log says.

    The log's requests are sent to one simulated replica at their times. It tells which steps lie
    between the arrival, the first token and the last token of each request, so that logged times
    are sums over steps, and what a step's time is made of follows by least squares. New step times
    move the steps; some rounds settle both. Intervals come from fits that lack a tenth of the log
    each.

    Args:
        log: requests that one server answered, all of them: others that are missing would look like
            slower steps.
        limits: limits of the server; its step time is not read.
        source: name of the log.

    Returns:
        The step times, their intervals, and the error on the last requests when fitted without
        them.

    Raises:
        FitError: no step times explain the log.
        CapacityError: the limits cannot hold a request of the log.
    """
    count = len(log.arrival_s)
    everyone = np.ones(count, dtype=bool)
    early = np.arange(count) < round((1 - _TEST_SHARE) * count)
    trained, _ = _settle(log, limits, _first_guess(log, source), early)
    tested = LogSteps.simulate(log, limits, trained)
    found, steps = _settle(log, limits, trained, everyone)
    blocks = np.arange(count) * _BLOCKS // count
    others = [_solve(steps, blocks != block, source) for block in range(_BLOCKS)]
    typical = _typical(log, found, others)
    widest = max(step.high / step.seconds - 1 for step in typical)
    return LogCalibration(
        step_time=replace(found, relative_spread=widest),
        steps=typical,
        rows=count,
        test_rows=int((~early).sum()),
        **_errors(log, tested, ~early),
    )


def _first_guess(log: AccessLog, source: str) -> PhaseStepTime:
    """Return step times that are right within a factor of a few."""
    further = np.maximum(log.output_tokens - 1, 1)
    if np.isfinite(log.ttft_s).any():
        step_s = float(np.nanpercentile(log.decode_s / further, 20))
        prompt_s = float(np.nanpercentile(log.ttft_s / log.input_tokens, 20))
    else:
        tokens = log.output_tokens + log.input_tokens / 20
        step_s = float(np.percentile(log.latency_s / tokens, 20))
        prompt_s = step_s / 20
    return PhaseStepTime.from_fits(
        prefill=(step_s, 0.7 * prompt_s, 0.0), decode=(step_s, 0.0, 0.05 * step_s), source=source
    )


def _settle(
    log: AccessLog, limits: ReplicaGroup, start: PhaseStepTime, kept: Kept
) -> tuple[PhaseStepTime, LogSteps]:
    """Fit and simulate in turn; return the model that came nearest to the log, and its steps."""
    model, best, least = start, None, np.inf
    for _ in range(_ROUNDS):
        steps = LogSteps.simulate(log, limits, model)
        distance = steps.distance(kept)
        if distance < least:
            best, least = (model, steps), distance
        model = _solve(steps, kept, start.source)
    if best is None:
        raise FitError("no step times explain the log", hint="check the units of its columns")
    return best


def _solve(steps: LogSteps, kept: Kept, source: str) -> PhaseStepTime:
    """Fit what steps are made of to the kept rows."""
    rows, measured_s = steps.sums(kept)
    weights = np.ones(len(measured_s))
    terms = np.zeros(rows.shape[1])
    # Least squares in which requests far off count by their distance and not by its square.
    for _ in range(_REWEIGHTED):
        terms = relative_nnls(rows, measured_s, weights)
        off = np.abs(rows @ terms / measured_s - 1)
        most = _FAR * max(float(np.median(off)), 0.01)
        weights = np.sqrt(np.minimum(1.0, most / np.maximum(off, 1e-9)))
    seconds = steps.table @ terms
    shown = np.linspace(0, len(seconds) - 1, min(len(seconds), _SHOWN_STEPS)).astype(int)
    shown = shown[seconds[shown] > 0]
    return PhaseStepTime.fit(steps.features[shown], seconds[shown], source=source)


def _typical(
    log: AccessLog, found: PhaseStepTime, others: list[PhaseStepTime]
) -> tuple[LogStep, ...]:
    """Return steps as the log has them in the mean, with intervals from fits that lack a part."""
    prompt, output = float(log.input_tokens.mean()), float(log.output_tokens.mean())
    length_s = float((log.arrival_s + log.latency_s).max())
    batch = max(round(float(log.latency_s.sum()) / length_s), 1)
    context = prompt + output / 2
    steps = {f"{count} decoding": (count, 0.0) for count in sorted({1, batch, 2 * batch})}
    steps[f"{batch} decoding and a prompt of {prompt:.0f} tokens"] = (batch, prompt)
    features = np.array(
        [
            step_features(
                sequences=count + (tokens > 0),
                prefill_tokens=tokens,
                prefill_kv=tokens * (tokens + 1) / 2,
                decode_tokens=count,
                decode_kv=count * context,
            )
            for count, tokens in steps.values()
        ]
    )
    middle = found.predict(features)
    off = np.array([item.predict(features) / middle - 1 for item in others])
    # The jackknife: fits that lack one of n parts differ by less than samples would.
    parts = len(off)
    widths = Z80 * np.sqrt((parts - 1) / parts * ((off - off.mean(axis=0)) ** 2).sum(axis=0))
    return tuple(
        LogStep(name=name, seconds=seconds, low=seconds / (1 + width), high=seconds * (1 + width))
        for name, seconds, width in zip(steps, middle.tolist(), widths.tolist(), strict=True)
    )


def _errors(log: AccessLog, tested: LogSteps, rows: Kept) -> dict[str, float]:
    """Return how far simulated times of some rows are off."""
    seen = tested.timeline
    off = np.abs((seen.last_token_s - seen.arrival_s) / log.latency_s - 1)[rows]
    first = np.abs(seen.ttft_s / log.ttft_s - 1)[rows & np.isfinite(log.ttft_s)]
    return {
        "test_error": float(np.median(off)),
        "test_error_p90": float(np.percentile(off, 90)),
        "test_ttft_error": float(np.median(first)) if len(first) else 0.0,
    }
