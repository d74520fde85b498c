"""How good blind forecasts of this package's own engine are, and step times from its access log.

Every case profiles an engine of one thread and takes five loads: a short probe scales the profile
to the machine's present speed, the load is forecast with 80 % intervals, then it is served. Shapes,
seeds and loads of the counted cases were not looked at while the intervals were chosen. Times are
processor time, so that other programs on the machine do not count; on an idle one they are the
same.

The same engine then writes an access log (arrival, lengths, latency, time to first token) of three
loads. Step times fitted to it alone are compared with those of the profile, on the steps of a load
that neither has seen.
"""

import csv
import tempfile
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.serve._forecast_pairs import TUNED, UNSEEN, EngineCase, ServedPair

from steelyard.parallel import torch_threads
from steelyard.serve.access_log import AccessLog
from steelyard.serve.log_fit import calibrate_log
from steelyard.sim.fleet.instance import ReplicaGroup

PAPER: list[str] = []

_SEED = 70
"""Seeds from here on: 50 to 52 were looked at twice, with the intervals as they are since."""
_LOG_LOADS = (0.3, 0.6, 0.8)
_PAUSE_S = 5.0


def run(quick: bool) -> list[Check]:
    """Run all cases.

    Args:
        quick: one small shape and few requests.
    """
    shapes = UNSEEN[1:2] if quick else UNSEEN
    count = 16 if quick else 40
    found: list[ServedPair] = []
    with torch_threads(1):
        for index, shape in enumerate(shapes):
            case = EngineCase(shape, seed=_SEED + index, profile_s=4.0 if quick else 8.0)
            print(
                f"{shape.name}: at most {case.most_per_s:.1f} requests/s, spread of a step "
                f"{case.steps.relative_spread:.1%}"
            )
            found += case.pairs(100 * (_SEED + index), count)
        checks = _score(found)
        for shape in (UNSEEN[1],) if quick else (TUNED[0], UNSEEN[1]):
            checks += _from_log(shape.name, EngineCase(shape, seed=3), 24 if quick else 60)
    return checks


def _score(pairs: list[ServedPair]) -> list[Check]:
    """Print every pair; judge errors and intervals."""
    print(f"{'model':8s} {'load':>5s} {'quantity':20s} {'forecast':>10s} {'interval':>23s}", end="")
    print(f" {'measured':>10s} {'error':>7s}")
    errors, widths = [], []
    for pair in pairs:
        said, seen = pair.check.forecast, pair.check.measurement.value
        errors.append(abs(pair.check.relative_error))
        widths.append((said.high - said.low) / 2 / seen)
        print(
            f"{pair.model:8s} {pair.load:5.2f} {said.quantity:20s} {said.value:10.4g} "
            f"[{said.low:10.4g} {said.high:10.4g}] {seen:10.4g} {pair.check.relative_error:+7.1%} "
            f"{'' if pair.check.covered else 'outside'}"
        )
    covered = float(np.mean([pair.check.covered for pair in pairs]))
    error, width = float(np.median(errors)), float(np.median(widths))
    print(f"median error {error:.2%}, median half-width {width:.2%}, held {covered:.0%}")
    checks = [
        Check("pairs", len(pairs), 50, "higher"),
        Check("80 % intervals hold at least", covered, 0.7, "higher"),
        Check("80 % intervals hold at most", covered, 0.9, "lower"),
        Check("median half-width over median error", width / error, 2.5, "lower"),
    ]
    for name in dict.fromkeys(pair.check.forecast.quantity for pair in pairs):
        own = [
            off
            for off, pair in zip(errors, pairs, strict=True)
            if pair.check.forecast.quantity == name
        ]
        checks.append(Check(f"median error of {name}", float(np.median(own)), 0.1, "lower"))
    return checks


def _from_log(name: str, case: EngineCase, count: int) -> list[Check]:
    """Fit step times to a log of the engine, and compare them with the profile's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "access.csv"
        _write_log(case, path, count)
        log = AccessLog.read(path)
    config = case.llm.config
    limits = ReplicaGroup(
        step_time=case.steps,
        blocks=config.num_blocks,
        block_size=config.block_size,
        token_budget=config.token_budget,
        max_num_seqs=config.max_num_seqs,
    )
    fitted = calibrate_log(log, limits)
    for step in fitted.steps:
        print(f"{name}: {step.name} {step.seconds:.4g} s [{step.low:.4g} {step.high:.4g}]")
    unseen = case.replay(0.5, seed=777, count=count)
    errors = {
        kind: np.abs(model.predict(unseen.step_features) / unseen.step_s - 1)
        for kind, model in (("profile", case.steps), ("log", fitted.step_time))
    }
    for kind, off in errors.items():
        print(
            f"{name}: {kind}'s error of {len(off)} steps: {np.median(off):.2%} in the median, "
            f"{np.percentile(off, 90):.2%} at the 90th percentile"
        )
    ratio = float(np.median(errors["log"]) / np.median(errors["profile"]))
    return [Check(f"log's error of a step over the profile's, {name}", ratio, 1.3, "lower")]


def _write_log(case: EngineCase, path: Path, count: int) -> None:
    """Serve some loads one after the other and write what a server would log."""
    begin_s = 0.0
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["arrival_s", "prompt_tokens", "output_tokens", "latency_s", "ttft_s"])
        for seed, load in enumerate(_LOG_LOADS):
            trace = case.trace(load * case.most_per_s, 200 + seed, count)
            seen = case.llm.replay(trace).timeline
            for row, item in enumerate(trace):
                latency_s = seen.last_token_s[row] - seen.arrival_s[row]
                cells = begin_s + item.arrival_s, len(item.prompt), item.output_tokens
                writer.writerow([*cells, latency_s, seen.ttft_s[row]])
            begin_s += float(seen.last_token_s.max()) + _PAUSE_S
