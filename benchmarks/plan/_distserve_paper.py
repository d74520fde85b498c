"""The published measurements of DistServe: step times, room for keys and values, attainment."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from benchmarks.laws._shared import shared
from numpy.typing import NDArray
from scipy.optimize import minimize

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.plan.service.options import EngineOption

__all__ = [
    "ROWS",
    "CurvePoint",
    "PaperRow",
    "curve_points",
    "drawn_lengths",
    "published_fits",
    "published_options",
]

_LONGEST = 2048
"""Positions of OPT."""
_NVLINK_BYTES_PER_S = 300e9
"""One-way rate of an A100 to the others of its node."""
LARGE_BATCH = 95


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's evaluation.

    Attributes:
        model: catalog name.
        lengths: name of the data set.
        ttft_s: limit of the first token.
        tpot_s: limit per further token.
        prefill: (tensor, pipeline) of the paper's prefill replicas.
        decode: the same of those that decode.
        vllm_tensor: accelerators of the baseline.
    """

    model: str
    lengths: str
    ttft_s: float
    tpot_s: float
    prefill: tuple[int, int]
    decode: tuple[int, int]
    vllm_tensor: int

    @property
    def num_devices(self) -> int:
        """Accelerators of the paper's placement."""
        return math.prod(self.prefill) + math.prod(self.decode)


ROWS = (
    PaperRow("opt-13b", "sharegpt", 0.25, 0.1, (2, 1), (1, 1), 1),
    PaperRow("opt-66b", "sharegpt", 2.5, 0.15, (4, 1), (2, 2), 4),
    PaperRow("opt-175b", "sharegpt", 4.0, 0.2, (3, 3), (4, 3), 8),
    PaperRow("opt-66b", "humaneval", 0.125, 0.2, (4, 1), (2, 2), 4),
    PaperRow("opt-66b", "longbench", 15.0, 0.15, (4, 1), (2, 2), 4),
)

_MEANS = {"sharegpt": (755.5, 200.3), "humaneval": (171.3, 98.2), "longbench": (1738.3, 90.7)}
"""Mean prompt and output tokens of the paper's data sets (figure 7), quoted from memory."""


_MEAN_PAIRS = 60.0
"""Mean question and answer pairs of a dialogue: with fewer, prompts fall further short of the
paper's mean."""


@cache
def drawn_lengths(name: str, count: int = 20_000) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw requests like those of one of the paper's data sets.

    ShareGPT: a prompt is the first turns of a dialogue, the answer its next turn, together at most
    2,048 tokens; turns are drawn from published lengths, and requests are then drawn with weights
    exp(a prompt + b answer), the least change that gives both of the paper's means. Lengths of the
    other two are not public: they are lognormal with the paper's means and assumed spreads.

    Args:
        name: "sharegpt", "humaneval" or "longbench".
        count: requests.

    Returns:
        Prompt and output tokens, int64 [count] each.
    """
    generator = np.random.default_rng(0)
    if name == "sharegpt":
        lengths = _dialogues(generator, count)
        rows = generator.choice(count, size=count, p=_tilt(lengths, np.array(_MEANS[name])))
        return lengths[rows, 0], lengths[rows, 1]
    spreads = {"humaneval": (0.5, 0.6), "longbench": (0.25, 0.8)}[name]
    drawn = [
        np.clip(np.rint(generator.lognormal(math.log(mean) - s**2 / 2, s, count)), 1, None)
        for mean, s in zip(_MEANS[name], spreads, strict=True)
    ]
    prompts = np.minimum(drawn[0], _LONGEST - 64)
    return prompts.astype(np.int64), np.minimum(drawn[1], _LONGEST - prompts).astype(np.int64)


def _dialogues(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Cut dialogues at random turns; prompts and answers [count, 2]."""
    pairs = np.loadtxt(
        shared("llm-traces") / "sharegpt_lengths.csv.gz", delimiter=",", skiprows=1, dtype=np.int64
    )
    lengths = []
    while len(lengths) < count:
        length = 2 * generator.geometric(1 / _MEAN_PAIRS)
        turns = pairs[generator.integers(len(pairs), size=length // 2)].ravel()
        cut = int(generator.integers(1, length))
        prompt, output = int(turns[:cut].sum()), int(turns[cut])
        if prompt >= 4 and output >= 4 and prompt + output <= _LONGEST:
            lengths.append((prompt, output))
    return np.array(lengths)


def _tilt(lengths: NDArray[np.int64], means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights exp(a x + b y) under which two columns have given means."""
    scaled = lengths / means - 1.0

    def log_sum(slopes: NDArray[np.float64]) -> float:
        # Its minimum is where the weighted means of the scaled columns are 0.
        return float(np.log(np.exp(scaled @ slopes).mean()))

    slopes = minimize(log_sum, np.zeros(2)).x
    weights = np.exp(scaled @ slopes)
    return weights / weights.sum()


@dataclass(frozen=True)
class CurvePoint:
    """A published attainment.

    Attributes:
        model: catalog name.
        system: "DistServe" or "vLLM".
        rate_per_device: requests per second and accelerator.
        scale: factor on both limits.
        percent: requests that kept both.
        axis: "rate_per_gpu" or "slo_scale".
    """

    model: str
    system: str
    rate_per_device: float
    scale: float
    percent: float
    axis: str


_SCALE_RATES = {"opt-13b": 1.5, "opt-66b": 0.75, "opt-175b": 0.125}
"""Rates per accelerator at which the paper varies the limits."""


def curve_points() -> list[CurvePoint]:
    """Return the points of figure 8 that are not hidden behind others."""
    points = []
    for row in _csv("distserve_fig8_slo_attainment.csv"):
        if not row["slo_attainment_pct"] or row["system"] not in ("DistServe", "vLLM"):
            continue
        is_rate, x = row["x_axis"] == "rate_per_gpu", float(row["x"])
        points.append(
            CurvePoint(
                model=row["model"],
                system=row["system"],
                rate_per_device=x if is_rate else _SCALE_RATES[row["model"]],
                scale=1.0 if is_rate else x,
                percent=float(row["slo_attainment_pct"]),
                axis=row["x_axis"],
            )
        )
    return points


def published_options(model: str, engine: str) -> list[EngineOption]:
    """Return the splits of a model with the published fits and room for keys and values.

    There are no fits of OPT-175B: those of OPT-66B are scaled, what each token and step takes by
    the parameters, and what each pair of tokens takes by layers times width.

    Args:
        model: catalog name.
        engine: "distserve" or "vllm".
    """
    rooms = {
        (int(row["tp"]), int(row["pp"])): int(row["max_num_tokens"])
        for row in _csv("distserve_a100_kv_capacity.csv")
        if row["model"].endswith(model)
    }
    fits = published_fits("opt-66b" if model == "opt-175b" else model, engine)
    if model == "opt-175b":
        fits = {tensor: _scaled(fit) for tensor, fit in fits.items()}
    return [
        EngineOption(
            tensor=tensor,
            pipeline=pipeline,
            step_time=PhaseStepTime.from_fits(
                prefill=fits[tensor]["prefill"],
                decode=fits[tensor]["decode"],
                large_decode=fits[tensor]["large_decode"],
                large_batch=LARGE_BATCH,
                source=f"fits of {engine}, {model}",
            ),
            kv_tokens=tokens,
        )
        for (tensor, pipeline), tokens in sorted(rooms.items())
        if tensor in fits
    ]


def transfer_s_per_token(arch: Architecture) -> float:
    """Return the seconds in which a token's keys and values pass over one NVLink."""
    return kv_bytes_per_token(arch, 2.0) / _NVLINK_BYTES_PER_S


def published_fits(model: str, engine: str) -> dict[int, dict[str, tuple[float, float, float]]]:
    """Return the fits of each number of accelerators, in seconds."""
    names = {"prefill": "prefill", "decode_bs<95": "decode", "decode_bs>=95": "large_decode"}
    found: dict[int, dict[str, tuple[float, float, float]]] = {}
    for row in _csv("distserve_a100_latency_fits.csv"):
        if row["engine"] == engine and row["model"].endswith(model):
            terms = (row["a_ms"], row["b_ms_per_token"], row["c"])
            a, b, c = (float(term) / 1e3 for term in terms)
            found.setdefault(int(row["tp"]), {})[names[row["phase"]]] = (a, b, c)
    return found


def _scaled(
    fit: dict[str, tuple[float, float, float]],
) -> dict[str, tuple[float, float, float]]:
    """Scale fits of OPT-66B to OPT-175B."""
    small, large = (catalog.architecture_by_name(f"opt-{size}") for size in ("66b", "175b"))
    weights = _matrix_weights(large) / _matrix_weights(small)
    pairs = (large.num_layers * large.hidden_size) / (small.num_layers * small.hidden_size)
    made = {}
    for name, (a, b, c) in fit.items():
        per_token, per_pair = (b, c) if name == "prefill" else (c, b)
        token, pair = per_token * weights, per_pair * pairs
        made[name] = (a * weights, *((token, pair) if name == "prefill" else (pair, token)))
    return made


def _matrix_weights(arch: Architecture) -> float:
    """Return the weights of the layers' products, 12 h^2 each."""
    return 12.0 * arch.num_layers * arch.hidden_size**2


def _csv(name: str) -> Iterator[dict[str, str]]:
    """Read a table of the published measurements."""
    with (shared("serving-measured") / name).open(newline="") as stream:
        yield from csv.DictReader(stream)
