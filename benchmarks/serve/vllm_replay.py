"""The simulator against vLLM 0.19: 300 ShareGPT requests on two GPUs.

Our scheduler runs in virtual time under the same limits.

Step times come from two places, named in each check. "fitted": coefficients from every second
second of the engine's own counters (prompt and output tokens, running sequences, cache in use);
times of requests are not looked at. "roofline": the datasheet of the GPU with the package's default
efficiencies, nothing fitted. Compared are the means over requests of what the real engine recorded.

LLMServingSim, whose authors measured these runs, reports with operator profiles of the GPUs: TTFT
+0.6 %, TPOT +0.2 %, latency +0.5 % (RTX 4090) and -4.0 %, -1.0 %, -1.8 % (RTX PRO 6000). Content of
the prompts is not published, so no prefix is shared here. The third published run, two
data-parallel ranks with expert parallelism, needs a router and is left out.
"""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._shared import shared

from steelyard import catalog
from steelyard.cost import Machine, ServeStepTime
from steelyard.serve import Scheduler, SchedulerConfig, TraceRequest
from steelyard.serve.simulate import simulate
from steelyard.sim.timeline import Timeline

PAPER = ["87-pagedattention"]

_BARS = {"fitted": 0.10, "roofline": 0.35}
"""Largest relative errors of the means; no paper sets one. A capacity plan needs the first, and the
second is the interval of forecasts from a datasheet."""
_FITTED_AWAY = 50.0
"""Seconds with fewer output tokens are left out of the fit, as the engine idled in part of them."""


@dataclass(frozen=True)
class Rig:
    """One published run and the limits of its engine.

    Attributes:
        name: in the check.
        file: part of the data file's name.
        kv_tokens: slots of the pool; what 90 % of the memory leaves beside the weights where it is
            not published.
        max_num_seqs: sequences at once.
        publishes_cache: whether the counters say how full the pool is.
        accelerator: catalog name for the roofline, empty for none.
    """

    name: str
    file: str
    kv_tokens: int
    max_num_seqs: int
    publishes_cache: bool
    accelerator: str


RIGS = (
    Rig("RTX 4090", "rtx4090_llama31-8b_tp1", 41_408, 256, True, "RTX-4090"),
    Rig("RTX PRO 6000", "rtxpro6000_llama31-8b_tp1", 530_000, 128, False, ""),
)


def run(quick: bool) -> list[Check]:
    """Replay both runs."""
    checks = []
    print(
        f"{'run':13s} {'step times':10s} {'metric':8s} {'measured':>10s} {'simulated':>10s} "
        f"{'error':>8s}"
    )
    for rig in RIGS:
        requests = read_columns(rig, "requests")
        step_times = {"fitted": _fitted(rig, requests)}
        if rig.accelerator and not quick:
            machine = Machine.from_accelerator(catalog.accelerator(rig.accelerator))
            step_times["roofline"] = ServeStepTime.from_roofline(
                catalog.architecture_by_name("llama-3-8b"), machine
            )
        for source, model in step_times.items():
            timeline = _replay(rig, requests, model)
            for metric, (real, simulated) in _means(requests, timeline).items():
                error = simulated / real - 1
                print(
                    f"{rig.name:13s} {source:10s} {metric:8s} {real:10.4g} {simulated:10.4g} "
                    f"{error:+8.1%}"
                )
                checks.append(
                    Check(
                        f"{rig.name}, {source} step times: error of mean {metric}",
                        abs(error),
                        _BARS[source],
                        "lower",
                    )
                )
    return checks


def read_columns(rig: Rig, kind: str) -> dict[str, np.ndarray]:
    """Read one file of a run into columns."""
    path: Path = shared("serving-measured") / f"vllm019_{rig.file}_{kind}.csv.gz"
    with gzip.open(path, "rt") as stream:
        rows = list(csv.DictReader(stream))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def _fitted(rig: Rig, requests: dict[str, np.ndarray]) -> ServeStepTime:
    """Fit step times to the counters: every second lasts one second, whatever steps it held.

    Seconds in which sequences came in without a counted prompt hold prompts computed again, which
    the counters leave out.
    """
    counters = read_columns(rig, "timeseries")
    prompt, output = counters["prompt_throughput"], counters["gen_throughput"]
    running = np.concatenate([[0], counters["running"]])
    steps = output / np.maximum((running[1:] + running[:-1]) / 2, 1)
    attended = steps * _cached_tokens(rig, requests, counters)
    none = np.zeros(len(steps))
    features = np.stack([steps, none, prompt, none, output, attended, none], axis=1)
    usable = (
        (output > _FITTED_AWAY)
        & ~((prompt == 0) & (np.diff(running) > 0))
        & (np.arange(len(steps)) % 2 == 0)
    )
    model = ServeStepTime.fit(
        features[usable], np.ones(int(usable.sum())), source="fitted on per-second counters"
    )
    step, token, cached = model.coefficients[0], model.coefficients[2], model.coefficients[5]
    print(
        f"{rig.name}: {step * 1e3:.1f} ms per step, {token * 1e6:.0f} us per prompt token, "
        f"{cached * 1e9:.0f} ns per attended token"
    )
    return model


def _cached_tokens(
    rig: Rig, requests: dict[str, np.ndarray], counters: dict[str, np.ndarray]
) -> np.ndarray:
    """Return the tokens in the cache in the middle of each second."""
    if rig.publishes_cache:
        used = np.concatenate([[0], counters["kv_cache_pct"]]) / 100 * rig.kv_tokens
        return (used[1:] + used[:-1]) / 2
    first, last = requests["first_token_s"], requests["last_token_s"]
    done = (counters["t"][:, None] - 0.5 - first) / (last - first)
    held = requests["input_tokens"] + done * requests["output_tokens"]
    return np.where((done >= 0) & (done < 1), held, 0.0).sum(axis=1)


def _replay(rig: Rig, requests: dict[str, np.ndarray], model: ServeStepTime) -> Timeline:
    """Drive our scheduler in virtual time; every prompt has contents of its own."""
    sizes = zip(
        requests["arrival_s"].tolist(),
        requests["input_tokens"].astype(int),
        requests["output_tokens"].astype(int),
        strict=True,
    )
    trace = [
        TraceRequest(arrival_s=at, prompt=[row] * int(size), output_tokens=int(count))
        for row, (at, size, count) in enumerate(sizes)
    ]
    config = SchedulerConfig(
        num_blocks=rig.kv_tokens // 16,
        token_budget=2048,
        max_num_seqs=rig.max_num_seqs,
        max_model_len=8192,
        prefix_caching=False,
    )
    coefficients = np.array(model.coefficients)
    step_time_s: Callable[..., float] = lambda plan: float(plan.features() @ coefficients)  # noqa: E731
    return simulate(Scheduler(config), trace, step_time_s, source=model.source).timeline


def _means(requests: dict[str, np.ndarray], simulated: Timeline) -> dict[str, tuple[float, float]]:
    """Return (measured, simulated) means over requests."""
    arrival, first, last = (
        requests["arrival_s"],
        requests["first_token_s"],
        requests["last_token_s"],
    )
    count = requests["output_tokens"]
    real = {
        "TTFT": first - arrival,
        "TPOT": (last - first) / (count - 1),
        "latency": last - arrival,
    }
    summary = simulated.summary()
    names = {"TTFT": "serve.ttft", "TPOT": "serve.tpot", "latency": "serve.e2e_latency"}
    return {
        metric: (float(values.mean()), summary[names[metric]]) for metric, values in real.items()
    }
