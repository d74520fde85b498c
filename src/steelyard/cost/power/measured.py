"""Measured power and latency of serving, and the models that are fitted to them."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.power.curve import PowerCurve
from steelyard.cost.power.energy_model import EnergyModel, prompt_features, token_features
from steelyard.cost.step_time import ServeStepTime, relative_nnls
from steelyard.errors import DataError, FitError

__all__ = ["PowerRow", "fit_curve", "fit_times", "measured_model", "measured_rows", "read_rows"]

Array = NDArray[np.float64]
_A100 = Path(__file__).with_name("a100.csv")
_ARTEFACT = 0.2
"""A mean below the idle power of the chip is one of the measuring window, not of the request."""
_IDLE = 0.15
"""Idle over rated power where a record has none: 60 W of an A100 (arXiv 2308.12908, figure 3)."""
_COLUMNS = (
    "model",
    "tensor_parallel",
    "prompt_tokens",
    "batch_size",
    "output_tokens",
    "peak_power_per_tdp",
    "average_power_per_tdp",
    "prefill_ms",
    "decode_ms_per_token",
    "end_to_end_ms",
)
_NAMES = {"llama2-70b": "llama-2-70b"}


@dataclass(frozen=True, slots=True)
class PowerRow:
    """One measured batch of equal requests.

    Attributes:
        model: catalog name.
        tensor_parallel: accelerators.
        prompt_tokens: length of each prompt.
        batch: requests.
        output_tokens: tokens of each answer.
        peak: highest power over the rating, mean of the accelerators.
        mean: mean power over the rating.
        prompt_s: seconds until the first token.
        token_s: mean seconds of each further one.
        request_s: seconds in all.
    """

    model: str
    tensor_parallel: int
    prompt_tokens: int
    batch: int
    output_tokens: int
    peak: float
    mean: float
    prompt_s: float
    token_s: float
    request_s: float

    @property
    def setting(self) -> tuple[str, int, int, int, int]:
        """What was set: repeats of a measurement share it."""
        return (
            self.model,
            self.tensor_parallel,
            self.prompt_tokens,
            self.batch,
            self.output_tokens,
        )

    @property
    def features(self) -> Array:
        """What the request's steps hold together, in the order of `cost.FEATURES`."""
        context = self.prompt_tokens + self.output_tokens / 2
        further = (self.output_tokens - 1) * token_features(context, self.batch)
        return prompt_features(self.prompt_tokens, self.batch) + further


def read_rows(path: Path) -> list[PowerRow]:
    """Read measurements of power; rows without power, or with that of a window, are left out.

    Args:
        path: CSV file with a column for each attribute of `PowerRow`, times in milliseconds.

    Returns:
        Rows in the order of the file.

    Raises:
        DataError: a column is missing, a value is no number, or no row has power.
    """
    with path.open() as stream:
        raw = list(csv.DictReader(stream))
    missing = [name for name in _COLUMNS if not raw or name not in raw[0]]
    if missing:
        raise DataError(
            f"{path} lacks {', '.join(missing)}", hint=f"its columns are {', '.join(_COLUMNS)}"
        )
    found = [_row(path, number, item) for number, item in enumerate(raw, 2)]
    kept = [row for row in found if row.mean > _ARTEFACT]
    if not kept:
        raise DataError(f"{path} has no row with power", hint="measure average_power_per_tdp")
    return kept


def _row(path: Path, number: int, item: dict[str, str]) -> PowerRow:
    """Read one row; an empty power is 0."""
    try:
        counts = [int(item[name]) for name in _COLUMNS[1:5]]
        values = [float(item[name] or 0) for name in _COLUMNS[5:]]
    except ValueError as error:
        raise DataError(f"{path} line {number}: {error}", hint="give plain numbers") from error
    if min(counts) < 1 or not all(math.isfinite(value) and value >= 0 for value in values):
        raise DataError(
            f"{path} line {number}: counts must be 1 or more, and power and times 0 or more",
            hint="drop the row",
        )
    model = _NAMES.get(item["model"], item["model"])
    width, prompt, batch, output = counts
    peak, mean, prompt_ms, token_ms, request_ms = values
    return PowerRow(
        model,
        width,
        prompt,
        batch,
        output,
        peak,
        mean,
        prompt_ms / 1e3,
        token_ms / 1e3,
        request_ms / 1e3,
    )


@cache
def measured_rows() -> tuple[PowerRow, ...]:
    """Return the rows that come with the package: Llama 2 70B and BLOOM on A100s with 80 GB.

    Source: data/perf_model.csv of github.com/Mutinifni/splitwise-sim (MIT), by the authors of arXiv
    2308.12908; prompts of 8,192 tokens of Llama 2 have a mean below idle and are left out.
    """
    return tuple(read_rows(_A100))


def fit_times(rows: Sequence[PowerRow]) -> ServeStepTime:
    """Fit step times to the prompts and tokens of measured requests of one model and width.

    Args:
        rows: four settings or more.

    Returns:
        The fitted times.

    Raises:
        FitError: rows of several models or widths, or too few.
    """
    kinds = {(row.model, row.tensor_parallel) for row in rows}
    if len(kinds) != 1:
        raise FitError(
            f"step times are fitted to one model on one number of accelerators, not {len(kinds)}",
            hint="choose the rows of one",
        )
    prompts = [prompt_features(row.prompt_tokens, row.batch) for row in rows]
    tokens = [
        token_features(row.prompt_tokens + row.output_tokens / 2, row.batch)
        for row in rows
        if row.output_tokens > 1
    ]
    seconds = [row.prompt_s for row in rows]
    seconds += [row.token_s for row in rows if row.output_tokens > 1]
    model, width = next(iter(kinds))
    source = f"measured requests of {model} on {width} accelerators"
    return ServeStepTime.fit(np.array(prompts + tokens), seconds, source=source)


def fit_curve(rows: Sequence[PowerRow], accelerator: Accelerator) -> PowerCurve:
    """Fit a power curve: means by non-negative least squares, then peaks, on relative errors.

    Args:
        rows: measured requests of any models and widths on this accelerator.
        accelerator: record with its rating, peaks and bandwidth.

    Returns:
        The curve.

    Raises:
        FitError: fewer than six settings.
    """
    if len({row.setting for row in rows}) < 6:
        raise FitError(
            "a power curve needs six settings or more", hint="measure more batches and prompts"
        )
    means = np.array([row.mean for row in rows])
    columns = np.column_stack([np.ones(len(rows)), _uses(rows, accelerator)])
    static, compute, memory = map(float, relative_nnls(columns, means))
    errors = columns @ np.array([static, compute, memory]) / means - 1
    # A chip with kernels resident draws no less than an idle one, whatever the record says.
    idle = accelerator.idle_w / accelerator.tdp_w if accelerator.idle_w else _IDLE
    flat = PowerCurve(
        rated_w=accelerator.tdp_w,
        idle=min(idle, static),
        static=static,
        compute=compute,
        memory=memory,
        top=1.0,
        ramp_tokens=100.0,
        ramp_power=1.0,
        relative_spread=float(np.sqrt(np.mean(errors**2))),
        source=f"{len(rows)} measured requests on {accelerator.name}",
    )
    return _with_peaks(flat, rows, accelerator)


def _with_peaks(
    curve: PowerCurve, rows: Sequence[PowerRow], accelerator: Accelerator
) -> PowerCurve:
    """Fit how peaks rise with the prompt tokens in flight; single odd peaks count less."""
    from scipy.optimize import least_squares

    peaks = np.array([row.peak for row in rows])
    tokens = np.array([row.prompt_tokens * row.batch / row.tensor_parallel for row in rows])
    floors = curve.mean_w(*_uses(rows, accelerator, only_tokens=True).T)

    def shaped(values: Array) -> PowerCurve:
        top, ramp, power = map(float, values)
        return replace(curve, top=top, ramp_tokens=ramp, ramp_power=power)

    def errors(values: Array) -> Array:
        return shaped(values).peak_w(tokens, floors) / curve.rated_w / peaks - 1

    bounds = ([0.5, 1.0, 0.3], [2.0, 1e4, 4.0])
    found = least_squares(errors, [1.02, 80.0, 1.0], bounds=bounds, loss="soft_l1", f_scale=0.05)
    return shaped(found.x)


def _uses(
    rows: Sequence[PowerRow], accelerator: Accelerator, *, only_tokens: bool = False
) -> Array:
    """Return how busy products and memory were, over whole requests or their tokens alone."""
    counters = {row.setting[:2]: _counter(row, accelerator) for row in rows}
    found = []
    for row in rows:
        context = row.prompt_tokens + row.output_tokens / 2
        features = token_features(context, row.batch) if only_tokens else row.features
        seconds = row.token_s if only_tokens else row.request_s
        found.append(counters[row.setting[:2]].uses(features, seconds))
    return np.array(found)


def _counter(row: PowerRow, accelerator: Accelerator) -> EnergyModel:
    """Return a model that counts FLOPs and bytes; its times are not asked."""
    blank = ServeStepTime(coefficients=(1.0,) * 7, relative_spread=0.0, count=0)
    curve = PowerCurve(
        rated_w=1, idle=0, static=0, compute=0, memory=0, top=1, ramp_tokens=1, ramp_power=1
    )
    return EnergyModel(
        arch=catalog.architecture_by_name(row.model),
        accelerator=accelerator,
        tensor_parallel=row.tensor_parallel,
        step_time=blank,
        curve=curve,
    )


@cache
def measured_model(model: str, tensor_parallel: int) -> EnergyModel:
    """Return the energy model of a measured model on A100s with 80 GB.

    Args:
        model: "llama-2-70b" (on 2, 4 or 8) or "bloom-176b" (on 8).
        tensor_parallel: accelerators.

    Returns:
        Times fitted to this model on this many, the curve to all measured rows.

    Raises:
        FitError: it was not measured.
    """
    accelerator = catalog.accelerator("A100-SXM4-80GB")
    rows = [row for row in measured_rows() if row.setting[:2] == (model, tensor_parallel)]
    if not rows:
        known = sorted({f"{row.model} on {row.tensor_parallel}" for row in measured_rows()})
        raise FitError(
            f"{model} on {tensor_parallel} accelerators was not measured",
            hint=f"measured are {', '.join(known)}; an EnergyModel of others needs its own times",
        )
    return EnergyModel(
        arch=catalog.architecture_by_name(model),
        accelerator=accelerator,
        tensor_parallel=tensor_parallel,
        step_time=fit_times(rows),
        curve=fit_curve(measured_rows(), accelerator),
    )
