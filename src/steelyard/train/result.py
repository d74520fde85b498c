"""What a finished training run returns; kept as JSON in its folder."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from steelyard import files
from steelyard.config import convert, to_plain
from steelyard.errors import ConfigError, DataError
from steelyard.quantity import Measurement

__all__ = ["RESULT_FILE", "EstimatorResult", "OnStep", "Progress", "TrainResult", "spread_of"]

RESULT_FILE = "result.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """One finished optimizer step.

    Attributes:
        step: steps done, 1 for the first.
        steps: steps of the whole run.
        loss: training loss of the step, nats per token for decoders.
        step_time_s: wall time of the step.
        tokens_per_s: tokens of the step over its time; examples where an example is no sequence.
        learning_rate: rate the step used.
        eval_loss: held-out loss when this step evaluated it, else None.
        duration_s: wall time of the run so far, earlier calls included.
    """

    step: int
    steps: int
    loss: float
    step_time_s: float
    tokens_per_s: float
    learning_rate: float
    eval_loss: float | None = None
    duration_s: float = 0.0


OnStep = Callable[[Progress], None]
"""Called after each step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimatorResult:
    """A finished run of any module and what was measured on it.

    Times and tokens cover all `steps`, also those a start checkpoint brought along; `tokens_run`
    only this folder's own. Where an example is no sequence, examples stand in for tokens.

    Attributes:
        eval_loss: held-out loss at the end; nats per token for decoders; None when nothing was
            evaluated.
        losses: training loss of every step from step 0.
        eval_losses: (steps done, held-out loss) pairs, the last one at the end.
        steps: optimizer steps.
        first_step: step this folder's own training began at; 0 unless it started from a checkpoint.
        step_time_s: median wall time of a step, the first steps after a start left out.
        step_time_spread_s: robust standard deviation of the same steps (interquartile range /
            1.349).
        total_time_s: wall time of all steps.
        peak_memory_bytes: largest memory the run needed beyond what the process held before the
            model was built.
        resident_peak_bytes: the same peak with freed blocks that the C library kept for speed.
        tokens: tokens trained on.
        tokens_run: tokens trained on in this folder.
        tokens_per_s: tokens of a step over `step_time_s`.
        parameters: parameters of the model.
        seed: seed of weights and data order.
        checkpoint: tensors file of the last checkpoint.
        duration_s: wall time of all calls, from start to result, work lost by kills left out; 0 in
            results of before it was measured.
        energy_j: electric energy of the machine meanwhile; None where it could not be read.
        average_losses: (steps done, held-out loss) pairs of each average of the weights, by name.
        reports: what each callback found, by its name.
    """

    eval_loss: float | None
    losses: list[float]
    eval_losses: list[tuple[int, float]]
    steps: int
    first_step: int
    step_time_s: float
    step_time_spread_s: float
    total_time_s: float
    peak_memory_bytes: float
    resident_peak_bytes: float
    tokens: int
    tokens_run: int
    tokens_per_s: float
    parameters: int
    seed: int
    checkpoint: Path
    duration_s: float = 0.0
    energy_j: float | None = None
    average_losses: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)

    def measurements(self, machine: str = "this-machine", time_s: float = 0.0) -> list[Measurement]:
        """Return what was measured under the shared quantity names."""
        return [
            Measurement(
                quantity=name,
                value=value,
                spread=self.step_time_spread_s if name == "train.step_time" else 0.0,
                count=self.steps if name == "train.step_time" else 1,
                machine=machine,
                time_s=time_s,
            )
            for name, value in self.quantities().items()
            if value is not None
        ]

    def quantities(self) -> dict[str, float | None]:
        """Return measured values by quantity; None where one was not measured."""
        scales = [
            report["value"]
            for name, report in self.reports.items()
            if name.startswith("noise-scale") and not report["is_lower_bound"]
        ]
        return {
            "eval.loss": self.eval_loss,
            "train.step_time": self.step_time_s,
            "train.total_time": self.total_time_s,
            "train.throughput": self.tokens_per_s,
            "train.peak_memory": self.peak_memory_bytes,
            "train.tokens": self.tokens,
            "run.duration": self.duration_s or None,
            "run.energy": self.energy_j,
            "train.noise_scale": scales[0] if scales else None,
        }

    def to_plain(self) -> dict[str, Any]:
        """Return scalars and lists that JSON can hold; paths become text."""
        return to_plain(self)

    @classmethod
    def from_plain(cls, value: dict[str, Any]) -> Self:
        """Rebuild a result.

        Args:
            value: what `to_plain` returned.

        Returns:
            The result.

        Raises:
            DataError: a field is missing or unknown.
        """
        try:
            return convert(value, cls, where="not a stored training result")
        except ConfigError as error:
            raise DataError(str(error), hint="delete result.json and train again") from error

    def store(self, directory: Path) -> None:
        """Write the result into its run folder; its paths are relative, so the folder may move."""
        # Names only: `load` puts the folder before them again, wherever it lies by then.
        plain = self.to_plain()
        plain |= {name: getattr(self, name).name for name in _paths(type(self))}
        files.write_json(directory / RESULT_FILE, plain)

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Read the result of a run folder.

        Args:
            directory: the run's folder.

        Returns:
            The result, or None when the run is not finished.

        Raises:
            DataError: the stored result is damaged.
        """
        path = directory / RESULT_FILE
        if not path.exists():
            return None
        plain = files.read_json(path)
        if not isinstance(plain, dict):
            raise DataError(
                f"{path} is not a stored training result", hint="delete it and train again"
            )
        for name in _paths(cls):
            plain[name] = str(directory / str(plain.get(name, "")))
        return cls.from_plain(plain)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult(EstimatorResult):
    """A finished run of a decoder and what was measured on it.

    Attributes:
        eval_loss: held-out loss at the end, nats per token.
        bits_per_byte: held-out loss in bits per UTF-8 byte.
        flops: model FLOPs of `tokens`.
        mfu: model FLOP/s over peak FLOP/s; None when no peak was given.
        model: folder with the final weights in Hugging Face layout.
    """

    eval_loss: float
    bits_per_byte: float
    flops: float
    mfu: float | None
    model: Path

    def quantities(self) -> dict[str, float | None]:
        """Return measured values by quantity; None where one was not measured."""
        return EstimatorResult.quantities(self) | {
            "eval.bits_per_byte": self.bits_per_byte,
            "train.flops": self.flops,
            "train.mfu": self.mfu,
            "model.parameters": self.parameters,
        }


def _paths(kind: type[EstimatorResult]) -> list[str]:
    """List the fields that are paths inside the run's folder."""
    return [item.name for item in fields(kind) if item.type is Path]


def spread_of(samples: list[float]) -> float:
    """Estimate the standard deviation from the interquartile range; 0 for fewer than 4 samples."""
    if len(samples) < 4:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4)
    return (high - low) / 1.349  # interquartile range of a normal distribution of deviation 1
