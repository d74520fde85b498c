"""Published points of serving beside the forecasts of `plan which` and `plan fit`.

Points of InferenceX: closed loops of clients on H100, H200 and B200, with one pool and without
parts of the batch on accelerators of their own; models of which the catalog knows the shape. Beside
them decoding steps on A100 by the step times that DistServe's authors fitted (arXiv:2401.09670).
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.cost.weights import WEIGHT_TYPES
from steelyard.plan.intervals import first_token, served_relative
from steelyard.plan.rates import Load, served_parts
from steelyard.plan.replicas import (
    BATCHES,
    ServingGoal,
    Work,
    replica_parts,
    replica_works,
    serving_machine,
)

__all__ = ["ServedPoint", "served_points"]

_FOLDER = Path(__file__).parents[3] / "shared" / "data" / "serving-measured"
_MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "moonshotai/Kimi-K2.5": "kimi-k2",
}
_CHIPS = {
    "h100_sxm": "H100-SXM5-80GB",
    "h200_sxm": "H200-SXM5-141GB",
    "b200_sxm": "B200-SXM-180GB",
}
_WEIGHTS = {"": "bf16", "bf16": "bf16", "fp8": "fp8", "int4": "int4"}
"""Weights by the precision that a point names; without one they are those of the model."""
_A100 = "A100-SXM4-80GB"
_CONTEXT = 512
_OPT = {"facebook/opt-13b": "opt-13b", "facebook/opt-66b": "opt-66b"}
_A100_BATCHES = (4, 16, 64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ServedPoint:
    """A published point with its forecast.

    Attributes:
        group: model, chip, engine and weights, whose errors are shared.
        chip: catalog name of the accelerator.
        is_fitted: whether spreads may be fitted on it, half of the points; the others are held out.
        batch: requests that decode together.
        forecast_s: forecast seconds per further token.
        measured_s: published seconds per further token.
        shares: parts of the forecast time, [parts].
        relative: half-width of the 80 % interval that a plan states.
        prompt_s: forecast seconds to the first token; NaN where none is published.
        first_s: published seconds to the first token.
        first_low_s: where the stated interval of the first token begins.
        first_high_s: where it ends.
    """

    group: tuple[str, ...]
    chip: str
    is_fitted: bool
    batch: int
    forecast_s: float
    measured_s: float
    shares: NDArray[np.float64]
    relative: float
    prompt_s: float = float("nan")
    first_s: float = float("nan")
    first_low_s: float = float("nan")
    first_high_s: float = float("nan")

    @property
    def error(self) -> float:
        """Logarithm of published over forecast time per token."""
        return float(np.log(self.measured_s / self.forecast_s))


def served_points() -> list[ServedPoint]:
    """Forecast every point that can be; nothing where the files are missing."""
    if not _FOLDER.is_dir():
        return []
    packed = gzip.decompress((_FOLDER / "inferencex_points.csv.gz").read_bytes())
    rows = csv.DictReader(io.StringIO(packed.decode()))
    found = [point for row in rows if (point := _point(row)) is not None]
    fits = csv.DictReader((_FOLDER / "distserve_a100_latency_fits.csv").read_text().splitlines())
    return found + [point for row in fits for point in _decoded(row)]


def _is_fitted(key: str) -> bool:
    return zlib.crc32(key.encode()) % 2 == 0


def _point(row: dict[str, str]) -> ServedPoint | None:
    """Forecast a point of InferenceX; None where it is of another kind."""
    known = row["model"] in _MODELS and row["system"] in _CHIPS and row["precision"] in _WEIGHTS
    if not known or row["mode"] != "agg" or row["attention_dp"] not in ("", "1"):
        return None
    batch, count = int(row["batch_size"]), int(row["tp"])
    if batch not in BATCHES or count not in (1, 2, 4, 8):
        return None
    weights = _WEIGHTS[row["precision"]]
    goal = ServingGoal(rate_per_s=1.0, prompt_tokens=int(row["isl"]), output_tokens=int(row["osl"]))
    chip = _CHIPS[row["system"]]
    machine = serving_machine(catalog.accelerator(chip), WEIGHT_TYPES[weights])
    if machine is None:
        return None
    every, prompt_s = replica_parts(
        machine, goal, _work(_MODELS[row["model"]], weights, goal, count)
    )
    parts = every.at(int(np.log2(batch)))
    relative = served_relative(machine, parts)
    first = first_token(machine, prompt_s, batch, relative=relative)
    return ServedPoint(
        group=(row["model"], chip, row["backend"], weights),
        chip=chip,
        is_fitted=_is_fitted(row["id"]),
        batch=batch,
        forecast_s=parts.time_s,
        measured_s=1e-3 * float(row["tpot_ms"]),
        shares=parts.shares[0],
        relative=relative,
        prompt_s=first.value,
        first_s=1e-3 * float(row["ttft_ms"]),
        first_low_s=first.low,
        first_high_s=first.high,
    )


@cache
def _work(model: str, weights: str, goal: ServingGoal, count: int) -> Work:
    """List a replica's work once."""
    works = replica_works(catalog.architecture_by_name(model), WEIGHT_TYPES[weights], goal)
    return next(item for item in works if item.count == count)


def _decoded(row: dict[str, str]) -> Iterator[ServedPoint]:
    """Forecast decoding steps of a fit to measured ones; none where the phase is another."""
    count = int(row["tp"])
    if row["phase"] != "decode_bs<95" or row["model"] not in _OPT or count not in (1, 2, 4, 8):
        return
    kind = WEIGHT_TYPES["bf16"]
    machine = serving_machine(catalog.accelerator(_A100), kind)
    assert machine is not None
    arch = catalog.architecture_by_name(_OPT[row["model"]])
    for batch in _A100_BATCHES:
        load = Load(use="serve", context=_CONTEXT, users=batch)
        parts = served_parts(arch, machine, kind, load, count)
        tokens = float(row["b_ms_per_token"]) * batch * _CONTEXT
        yield ServedPoint(
            group=(row["model"], _A100, row["engine"], "bf16"),
            chip=_A100,
            is_fitted=_is_fitted(f"{row['engine']} {row['model']} {count} {batch}"),
            batch=batch,
            forecast_s=float(parts.time_s),
            measured_s=1e-3 * (float(row["a_ms"]) + tokens + float(row["c"]) * batch),
            shares=parts.shares[0],
            relative=served_relative(machine, parts),
        )
