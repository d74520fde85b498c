"""The compiled platform beside SimPy and SimFaaS on the same requests."""

import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks import peers
from benchmarks.common import Check, median_spread
from benchmarks.serve._json_process import JsonProcess, peer_environment

from steelyard.errors import BackendError
from steelyard.operate.coldstart import FixedKeepAlive
from steelyard.sim.serverless import (
    CloudFunction,
    EmpiricalQuantiles,
    Platform,
    ServerlessResult,
    StartUp,
    Workload,
    run,
)
from steelyard.sim.serverless.published import published_start_ups

__all__ = ["speed_checks", "steady_checks", "warm_up"]

_KEEP_S = 60.0
_FUNCTIONS = 400


def busy_workload(requests: int, seed: int) -> Workload:
    """Return Poisson requests of 400 functions with Zipf rates, 500 a second in all."""
    rng = np.random.default_rng(seed)
    runtimes = list(published_start_ups())
    functions = [
        CloudFunction(name=str(at), runtime=runtimes[at % len(runtimes)])
        for at in range(_FUNCTIONS)
    ]
    weights = np.arange(1, _FUNCTIONS + 1) ** -1.1
    time_s = np.cumsum(rng.exponential(1 / 500, requests))
    function = rng.choice(_FUNCTIONS, requests, p=weights / weights.sum())
    return Workload(functions, time_s, function, rng.lognormal(-1.5, 1.0, requests))


def _peer(name: str) -> JsonProcess | None:
    """Start a peer; None, said, where it is not installed."""
    program = str(Path(__file__).with_name(f"_{name}_program.py"))
    hint = f"python -m benchmarks peers install {name}"
    try:
        return JsonProcess([str(peers.python(name)), program], {}, peer_environment(), hint)
    except BackendError as error:
        print(f"left out: {error}; {error.hint}")
        return None


def warm_up() -> None:
    """Run a few requests, so that nothing is compiled while anything is timed."""
    run(
        Platform(start_ups=published_start_ups(), keep_alive=FixedKeepAlive()),
        busy_workload(100, 0),
        0,
    )


def speed_checks(*, quick: bool) -> list[Check]:
    """Time requests per second on one core, in turn with SimPy on the first part of them."""
    ours_count, theirs_count = (400_000, 40_000) if quick else (2_000_000, 100_000)
    platform = Platform(start_ups=published_start_ups(), keep_alive=FixedKeepAlive())
    work, part = busy_workload(ours_count, 0), busy_workload(theirs_count, 0)
    peer = _peer("simpy")
    ours, theirs, found = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        path = _simpy_trace(Path(folder), platform, part)
        for _ in range(3 if quick else 5):
            begin = time.perf_counter()
            result = run(platform, work, 0)
            ours.append(ours_count / (time.perf_counter() - begin))
            if peer:
                found = peer.ask({"trace": path})
                theirs.append(theirs_count / found["seconds"])
    rate = median_spread(ours)
    print(f"ours {rate.median:.3g} requests/s [{rate.low:.3g}, {rate.high:.3g}], two events each")
    print(f"  {result.num_cold_starts:,} cold starts; the calls include laying out tables")
    checks = [Check("5 requests per second, one core", rate.median, 1e6, "higher")]
    if peer:
        spread = median_spread(theirs)
        print(f"{peer.name} {spread.median:.3g} [{spread.low:.3g}, {spread.high:.3g}]")
        mine = run(platform, part, 0)
        away = abs(mine.num_cold_starts / found["cold_starts"] - 1)
        print(f"  cold starts {found['cold_starts']:,}, ours {mine.num_cold_starts:,}")
        gain = float(np.median(np.array(ours) / np.array(theirs)))
        checks.append(Check("5 requests per second over SimPy's", gain, 5.0, "higher"))
        checks.append(Check("5 cold starts, away from SimPy's", away, 0.02, "lower"))
        peer.close()
    return checks


def _simpy_trace(folder: Path, platform: Platform, work: Workload) -> str:
    """Write what SimPy simulates."""
    names = list(platform.start_ups)
    curves = [
        [
            np.where(np.linspace(0, 1, 201) < 1 - item.share, 0.0, _stretched(item))
            for item in start_up.parts.values()
        ]
        for start_up in platform.start_ups.values()
    ]
    path = folder / "simpy.npz"
    np.savez(
        path,
        time_s=work.time_s,
        function=work.function,
        duration_s=work.duration_s,
        runtime=[names.index(item.runtime) for item in work.functions],
        curves=np.array(curves),
        keep_s=_KEEP_S,
        horizon_s=work.horizon_s,
    )
    return str(path)


def _stretched(part: EmpiricalQuantiles) -> np.ndarray:
    """Return the curve of a part with its share of zeros, which SimPy draws as one."""
    levels = np.linspace(0, 1, 201)
    inside = np.clip((levels - 1 + part.share) / max(part.share, 1e-9), 0, 1)
    return np.interp(inside, levels, part.values_s)


def steady_checks(*, quick: bool) -> list[Check]:
    """Compare cold-start probability and mean pods with SimFaaS, one function, Poisson calls."""
    peer = _peer("simfaas")
    if not peer:
        return []
    start_s, keep_s, count = 0.4, 12.0, 20_000 if quick else 80_000
    rng = np.random.default_rng(3)
    gaps_s, duration_s = rng.exponential(1 / 0.9, count), rng.exponential(2.0, count)
    time_s = np.cumsum(gaps_s)
    horizon_s = float(time_s[-1])
    platform = Platform(
        start_ups={"one": StartUp({"start": EmpiricalQuantiles.constant(start_s)})},
        keep_alive=FixedKeepAlive(default_s=keep_s),
    )
    function = [CloudFunction(name="f", runtime="one")]
    zeros = np.zeros(count, dtype=np.int64)
    result: ServerlessResult = run(
        platform, Workload(function, time_s, zeros, duration_s, horizon_s), 0
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "simfaas.npz"
        np.savez(
            path,
            gaps_s=gaps_s,
            duration_s=duration_s,
            start_s=start_s,
            keep_s=keep_s,
            horizon_s=horizon_s,
        )
        found = peer.ask({"trace": str(path)})
    peer.close()
    ours = result.num_cold_starts / count, result.pod_s / horizon_s
    theirs = found["cold_probability"], found["mean_pods"]
    print(f"{peer.name}: {found['requests'] / found['seconds']:,.0f} requests/s")
    print(f"  cold-start probability {theirs[0]:.5f}, ours {ours[0]:.5f}; mean pods", end=" ")
    print(f"{theirs[1]:.4f}, ours {ours[1]:.4f}")
    return [
        Check(
            "5 cold-start probability, away from SimFaaS",
            abs(ours[0] / theirs[0] - 1),
            0.02,
            "lower",
        ),
        Check("5 mean pods, away from SimFaaS", abs(ours[1] / theirs[1] - 1), 0.02, "lower"),
    ]
