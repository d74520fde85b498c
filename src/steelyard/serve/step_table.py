"""The step-time table of one engine on one machine: measured steps, the fit and its error."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import stdtrit

from steelyard.catalog.architecture import Architecture
from steelyard.config import convert, to_plain
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import FEATURES
from steelyard.errors import ConfigError
from steelyard.files import read_json, write_json
from steelyard.runs.host import describe_machine, package_versions
from steelyard.serve.engine import LLM
from steelyard.serve.scheduling.config import SchedulerConfig

__all__ = ["StepSamples", "StepTable", "TableMachine"]

_HICCUP = 4.0
"""Most that a single step counts for, as a multiple of its prediction: one that waited for another
program would else move the scale of the whole table."""
_LEAST_DRIFT = 0.03
"""How far replays differ from profiles even where rounds agree, relative; chosen on a few replays
of two models on a shared machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableMachine:
    """What must be equal for a table to hold.

    Attributes:
        processor: name of the processor or GPU, as the system reports it.
        cores: processors the process might use.
        threads: threads of torch.
    """

    processor: str
    cores: int
    threads: int

    @classmethod
    def here(cls, device: str = "cpu") -> "TableMachine":
        """Describe this machine and the process's threads."""
        found = describe_machine()
        name = (
            torch.cuda.get_device_name(device)
            if device.startswith("cuda")
            else str(found["processor"])
        )
        return cls(processor=name, cores=int(found["cores"]), threads=torch.get_num_threads())


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSamples:
    """Measured steps.

    Attributes:
        features: [n, F] features in the order of `steelyard.cost.step_time.FEATURES`.
        round_seconds: [n, rounds] seconds of each step in each round.
    """

    features: np.ndarray
    round_seconds: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """Median of each step over the rounds, [n]."""
        return np.median(self.round_seconds, axis=1)

    @property
    def relative_spread(self) -> np.ndarray:
        """(Largest - smallest) / median of each step over the rounds, [n]."""
        return np.ptp(self.round_seconds, axis=1) / self.seconds

    def fit(self) -> PhaseStepTime:
        """Fit a step-time model to the medians, then scale it to the mean of all rounds.

        A median leaves out what other work on the machine costs now and then, but a trace of
        thousands of steps pays it on average.
        """
        return self.anchor(PhaseStepTime.fit(self.features, self.seconds))

    def anchor(self, model: PhaseStepTime) -> PhaseStepTime:
        """Return a model that was fitted at another time, scaled to the mean of all rounds."""
        return model.scaled(float(self._scales(model).mean()))

    def drift(self, model: PhaseStepTime) -> float:
        """Return how far the machine's speed is to be expected to move until a replay.

        Args:
            model: the fit of these samples, or an older one, anchored to them.

        Returns:
            80 % half-width, relative, from what the rounds differ by; at least 3 %.
        """
        scales = self._scales(model)
        rounds = len(scales)
        if rounds < 2:
            return _LEAST_DRIFT
        # A later run differs from the mean of these rounds as one more round would.
        spread = float(np.std(scales, ddof=1)) * np.sqrt(1 + 1 / rounds)
        # Three rounds hardly tell a spread: of a normal law's quantile two thirds would be inside.
        return max(float(stdtrit(rounds - 1, 0.9)) * spread, _LEAST_DRIFT)

    def _scales(self, model: PhaseStepTime) -> np.ndarray:
        """Return by how much each round was slower than a model says, [rounds]."""
        ratios = self.round_seconds / model.predict(self.features)[:, None]
        return np.minimum(ratios, _HICCUP).mean(axis=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTable:
    """Steps of one engine on one machine and the model fitted to them.

    Attributes:
        schema: version of the file's form.
        machine: where it was measured.
        versions: versions of Python and of the packages that shape times.
        model: the architecture served.
        dtype: type of its weights, such as "float32".
        kv_dtype: type of keys and values.
        kernel: kernels that run a step, such as "native" or "torch".
        config: the engine's limits.
        columns: names of the features.
        features: [n, F] features of each step.
        seconds: [n] median seconds of each step over rounds.
        relative_spread: [n] (largest - smallest) / median of each step over rounds.
        step_time: the fitted model.
        test_steps: steps of requests the fit has not seen.
        test_error: median over them of |predicted / measured - 1|.
        test_error_p90: 90th percentile of the same.
        created_s: seconds since 1970 (UTC).
    """

    schema: Literal[2] = 2
    machine: TableMachine
    versions: dict[str, str]
    model: Architecture
    dtype: str
    kv_dtype: str
    kernel: str
    config: SchedulerConfig
    columns: tuple[str, ...] = FEATURES
    features: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]
    relative_spread: tuple[float, ...]
    step_time: PhaseStepTime
    test_steps: int
    test_error: float
    test_error_p90: float
    created_s: float

    @classmethod
    def of(
        cls, llm: LLM, samples: StepSamples, *, test_features: np.ndarray, test_seconds: np.ndarray
    ) -> "StepTable":
        """Fit the samples and compare the fit with steps it has not seen.

        Args:
            llm: the engine they were measured on.
            samples: measured steps to fit.
            test_features: [m, F] features of other steps, m at least 1.
            test_seconds: [m] seconds of the same steps.

        Returns:
            The table.
        """
        weight = next(llm.model.parameters())
        machine = TableMachine.here(str(weight.device))
        kinds = _kinds(llm)
        source = (
            f"fitted on {len(samples.seconds)} steps of {llm.model.architecture.name} on "
            f"{machine.processor}, {machine.threads} threads"
        )
        step_time = replace(samples.fit(), source=source)
        errors = np.abs(step_time.predict(test_features) / test_seconds - 1)
        return cls(
            machine=machine,
            versions=package_versions(),
            model=llm.model.architecture,
            dtype=kinds["dtype"],
            kv_dtype=kinds["kv_dtype"],
            kernel=kinds["kernel"],
            config=llm.config,
            features=tuple(map(tuple, samples.features.tolist())),
            seconds=tuple(samples.seconds.tolist()),
            relative_spread=tuple(samples.relative_spread.tolist()),
            step_time=step_time,
            test_steps=len(errors),
            test_error=float(np.median(errors)),
            test_error_p90=float(np.percentile(errors, 90)),
            created_s=time.time(),
        )

    def save(self, path: Path) -> None:
        """Write the table as JSON, atomically."""
        write_json(path, self)

    @classmethod
    def load(cls, path: Path) -> "StepTable":
        """Read a table and refuse one that is not whole; machine and model are left to `check`.

        Args:
            path: JSON file of `save`.

        Returns:
            The table.

        Raises:
            DataError: the file is missing or not JSON.
            ConfigError: a field is missing, unknown or out of range.
        """
        table = convert(_upgraded(read_json(path), str(path)), cls, where=str(path))
        rows, width = len(table.seconds), len(FEATURES)
        columns = all(len(row) == width for row in table.features)
        if (
            table.columns != FEATURES
            or not columns
            or not len(table.features) == len(table.relative_spread) == rows
        ):
            message = (
                f"{path}: features, seconds and spreads must be one row per step with the "
                f"columns {', '.join(FEATURES)}"
            )
            raise ConfigError(message, hint="write the table anew with `steelyard serve profile`")
        if (
            not all(0 < second < float("inf") for second in table.seconds)
            or not (table.step_time.predict(table.features) > 0).all()
        ):
            raise ConfigError(
                f"{path}: seconds and what the model says of the steps must be positive",
                hint="write the table anew",
            )
        return table

    def check(self, llm: LLM | None, *, where: str = "table") -> None:
        """Refuse use on another machine or, given an engine, for another model or block size.

        Args:
            llm: the engine the table must be of, or None.
            where: name of the table in the message.

        Raises:
            ConfigError: the table is of another machine, model or block size; the message names
                both sides.
        """
        hint = "write a table here with `steelyard serve profile`, or accept it with foreign=True"
        device = "cpu" if llm is None else str(next(llm.model.parameters()).device)
        here = TableMachine.here(device)
        if self.machine != here:
            raise ConfigError(
                f"{where} is of {_words(self.machine)}, but this is {_words(here)}", hint=hint
            )
        if llm is None:
            return
        if _shape(self.model) != _shape(llm.model.architecture):
            raise ConfigError(
                f"{where} is of model {self.model.name}, but {llm.model.architecture.name} has "
                f"another shape",
                hint=hint,
            )
        pairs = [(name, getattr(self, name), now) for name, now in _kinds(llm).items()]
        for name, there, now in (
            *pairs,
            ("block_size", self.config.block_size, llm.config.block_size),
        ):
            if there != now:
                raise ConfigError(
                    f"{where} was measured with {name} {there}, but the engine has {now}", hint=hint
                )


def _upgraded(raw: Any, where: str) -> Any:
    """Turn the plain data of a table of schema 1, whose model is the same in all phases, into 2."""
    if isinstance(raw, dict) and raw.get("schema") == 1 and isinstance(raw.get("step_time"), dict):
        model = PhaseStepTime.of_plain(raw["step_time"], f"{where}, step_time")
        return raw | {"schema": 2, "step_time": to_plain(model)}
    return raw


def _kinds(llm: LLM) -> dict[str, str]:
    """Name the types and the kernel of an engine."""
    stored, cache = (
        str(item.dtype).removeprefix("torch.")
        for item in (next(llm.model.parameters()), llm.runner.kv)
    )
    # Tables of before there were types name float32 as PyTorch does.
    weights = stored if llm.runner.weights in (None, "fp32") else llm.runner.weights
    return {"dtype": weights, "kv_dtype": cache, "kernel": llm.runner.kernel}


def _words(machine: TableMachine) -> str:
    """Name a machine."""
    return f"{machine.processor} ({machine.cores} cores, {machine.threads} threads)"


def _shape(arch: Architecture) -> Architecture:
    """Leave out of an architecture what does not change the time of a step."""
    return replace(
        arch, name="", source="", confidence="", published_parameters=0.0, max_positions=0
    )
