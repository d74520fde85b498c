"""Time per output token of every type of weights: forecast before it runs, then measured.

Three forecasts of each: by the calibrated parts of a step alone (`cost.EngineStepTime`), by the
same in the simulator, and by the simulator with a table of this engine's own steps. The shape
called _ASIDE was looked at by nobody who chose anything in them. Files of float16 and of blocks are
forecast by the rates of the products that read them, which were not measured on such files.
"""

import itertools
import math
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from benchmarks.common import Check
from benchmarks.serve._coded_folder import write_blocks
from benchmarks.serve._shapes import llama_shape

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.engine_rates import EngineRates
from steelyard.contention import LoadMeter
from steelyard.cost.engine_step import EngineStepTime, decode_features
from steelyard.errors import BackendError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import Transformer, build
from steelyard.serve import SchedulerConfig, TraceRequest
from steelyard.serve.account import step_time_of
from steelyard.serve.build import load_model
from steelyard.serve.engine import LLM
from steelyard.serve.engine_rates import measure_engine
from steelyard.serve.forecast import StepTimes, forecast_replay
from steelyard.serve.options import EngineOptions
from steelyard.serve.profile import profile
from steelyard.serve.step_parts import own_core

PAPER: list[str] = []

_KINDS = ("fp32", "bf16", "int8", "int4")
_FILES = {"fp16": 1, "Q8_0": 32, "Q4_K": 256}
"""Types of files, and the weights of a block, which divide the rows of matrices."""
_BATCHES = (1, 8)
_PROMPT, _OUTPUT = 64, 33
_BAR = 0.15
_SHAPES = ("8x512", "16x1024", "35M", "10x640")
_ASIDE = "10x640"
"""Nothing was tuned on it."""


def run(quick: bool) -> list[Check]:
    """Calibrate, then forecast and measure every case.

    Raises:
        BackendError: the native kernels do not run here.
    """
    rates = measure_engine(quick=quick)
    if rates is None:
        raise BackendError("no rates without native kernels", hint="install g++")
    print(f"calibrated in {rates.duration_s:.0f} s")
    meter = LoadMeter()
    cases = [
        case
        for name in (["8x512"] if quick else _SHAPES)
        for case in _Shape(name, quick).cases(rates, with_table=not quick)
    ]
    print(f"other work took {meter.read().lost:.0%} of the processor time")
    return [*_error_checks(cases), *([] if quick else _interval_checks(cases))]


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One type at one batch.

    Attributes:
        shape: name of the shape.
        words: type and batch.
        by: who forecast it.
        value: forecast seconds per token, with its 80 % interval.
        low: its lower end.
        high: its upper end.
        measured: median over rounds.
        quietest: that of the quickest round: others only ever slow one down.
    """

    shape: str
    words: str
    by: str
    value: float
    low: float
    high: float
    measured: float
    quietest: float

    @property
    def error(self) -> float:
        """Relative error against the quietest round."""
        return self.value / self.quietest - 1

    @property
    def usual_error(self) -> float:
        """Relative error against the median round."""
        return self.value / self.measured - 1


class _Shape:
    """A model of random weights and its engines, one for each type of weights."""

    def __init__(self, name: str, quick: bool) -> None:
        """Build the model once and pack it in every type."""
        self.name = name
        self._rounds = 5 if quick else 9
        self._table_s = 4.0
        self._model: Transformer = build(llama_shape(name))
        self._config = SchedulerConfig(
            num_blocks=256, max_model_len=1024, token_budget=512, max_num_seqs=16
        )

    def cases(self, rates: EngineRates, *, with_table: bool) -> Iterator[_Case]:
        """Forecast every case, then measure them all in turn, round after round."""
        caches = (None, torch.bfloat16) if with_table else (None,)
        engines = {
            (kind, cache): LLM(self._model, self._config, weights=kind, kv_dtype=cache)
            for kind in _KINDS
            for cache in caches
        }
        arch = self._model.architecture
        for kind, block in _FILES.items():
            if arch.hidden_size % block == arch.intermediate_size % block == 0:
                engines[kind, None] = LLM(_from_file(arch, kind), self._config, weights="auto")
        forecasts = {
            (key, batch, by): found
            for key, llm in engines.items()
            for batch, by, found in self._forecasts(
                llm, rates, with_table=with_table and key[1] is None
            )
        }
        measured = self._measured(engines)
        for ((kind, cache), batch, by), (value, low, high) in forecasts.items():
            rounds = measured[(kind, cache), batch]
            held = engines[kind, cache].runner.kv.dtype
            words = f"{kind}, {str(held).removeprefix('torch.')} keys, batch {batch}"
            case = _Case(
                shape=self.name,
                words=words,
                by=by,
                value=value,
                low=low,
                high=high,
                measured=statistics.median(rounds),
                quietest=min(rounds),
            )
            print(
                f"{self.name:10s} {words}: {1e3 * case.quietest:.2f} ms measured (median round "
                f"{1e3 * case.measured:.2f}), {by} {1e3 * value:.2f} ({case.error:+.0%})"
            )
            yield case

    def _forecasts(
        self, llm: LLM, rates: EngineRates, *, with_table: bool
    ) -> Iterator[tuple[int, str, tuple[float, float, float]]]:
        """Forecast the time per token of each batch in every way."""
        parts = step_time_of(llm, rates)
        for batch in _BATCHES:
            yield batch, "cost", _alone(parts, batch)
            yield batch, "simulator", self._simulated(llm, batch, parts)
        if with_table:
            generator = np.random.default_rng(0)
            table = profile(llm, generator=generator, limit_s=self._table_s).fit()
            for batch in _BATCHES:
                yield batch, "table", self._simulated(llm, batch, table)

    def _simulated(self, llm: LLM, batch: int, model: StepTimes) -> tuple[float, float, float]:
        """Replay the requests in virtual time."""
        found = forecast_replay(llm, _requests(batch), model)
        item = next(item for item in found if item.quantity == "serve.tpot")
        return item.value, item.low, item.high

    def _measured(self, engines: dict) -> dict:
        """Replay the requests for real, with a core for each thread, as in the calibration."""
        seconds: dict = {}
        cases = list(itertools.product(range(self._rounds + 1), engines.items(), _BATCHES))
        with own_core():
            for turn, (key, llm), batch in cases:
                found = llm.replay(_requests(batch)).summary()["serve.tpot"]
                if turn:  # the first one warms up
                    seconds.setdefault((key, batch), []).append(found)
        return seconds


def _from_file(arch: Architecture, kind: str) -> Transformer:
    """Write a model of random weights to a file, and load it as the engine does."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / ("model" if kind == "fp16" else "model.gguf")
        if kind == "fp16":
            checkpoint.save(build(arch, dtype=torch.float16), path)
        else:
            write_blocks(path, arch, kind)
        # What is mapped stays when its file is removed.
        return load_model(path, EngineOptions())


def _alone(model: EngineStepTime, batch: int) -> tuple[float, float, float]:
    """Forecast from one step in the middle of the answers."""
    seconds = float(model.predict(decode_features(batch, _PROMPT + _OUTPUT / 2)))
    width = 1 + model.relative_spread
    return seconds, seconds / width, seconds * width


def _requests(batch: int) -> list[TraceRequest]:
    """Send equal requests at once."""
    draw = np.random.default_rng(1)
    return [
        TraceRequest(
            arrival_s=0.0,
            prompt=draw.integers(0, 8192, _PROMPT).tolist(),
            output_tokens=_OUTPUT,
        )
        for _ in range(batch)
    ]


def _error_checks(cases: list[_Case]) -> list[Check]:
    """Check the largest error of each way on each shape; print the medians."""
    found = []
    for shape, by in dict.fromkeys((case.shape, case.by) for case in cases):
        errors = [abs(case.error) for case in cases if (case.shape, case.by) == (shape, by)]
        print(f"{shape}, {by}: median error {statistics.median(errors):.1%} of {len(errors)}")
        found.append(Check(f"1 {shape}: largest error by {by}", max(errors), _BAR, "lower"))
    return found


def _interval_checks(cases: list[_Case]) -> list[Check]:
    """Check that intervals cover, and are no wider than they have to be."""
    found = []
    for by in dict.fromkeys(case.by for case in cases):
        mine = [case for case in cases if case.by == by]
        covered = statistics.mean(case.low <= case.measured <= case.high for case in mine)
        half = statistics.median(math.sqrt(case.high / case.low) - 1 for case in mine)
        errors = statistics.median(abs(case.usual_error) for case in mine)
        print(f"{by}: {len(mine)} cases, half-width {half:.1%}, median error {errors:.1%}")
        found += [
            Check(f"2 {by}: share of 80 % intervals that hold, at least", covered, 0.7, "higher"),
            Check(f"2 {by}: the same, at most", covered, 0.9, "lower"),
            Check(f"2 {by}: half-width over the median error", half / errors, 2.5, "lower"),
        ]
    return found
