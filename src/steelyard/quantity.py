"""The named quantities, and what can be said of one: a Forecast before, a Measurement after.

Planner, simulator, engine and benchmark use the same names, so a forecast and a measurement of one
name are comparable.
"""

import difflib
import math
from dataclasses import dataclass, field
from typing import Literal

from steelyard.errors import ConfigError

__all__ = [
    "QUANTITIES",
    "Check",
    "Forecast",
    "Measurement",
    "Provenance",
    "Quantity",
    "check",
    "quantity",
]

Provenance = Literal["measured", "fitted", "simulated", "derived", "published", "assumed"]
_PROVENANCES = ("measured", "fitted", "simulated", "derived", "published", "assumed")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A defined, unit-bearing metric.

    Attributes:
        name: dotted, `room.metric`.
        unit: SI base unit, one of `steelyard.units.UNITS`.
        better: which direction is good; "neither" for plain sizes.
        definition: one sentence.
    """

    name: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    definition: str


_ROWS: tuple[tuple[str, str, Literal["lower", "higher", "neither"], str], ...] = (
    (
        "eval.loss",
        "nat/token",
        "lower",
        "Mean cross-entropy per predicted token on held-out documents.",
    ),
    (
        "eval.bits_per_byte",
        "bit/byte",
        "lower",
        "Held-out cross-entropy in bits divided by the UTF-8 bytes it predicts.",
    ),
    (
        "train.loss",
        "nat/token",
        "lower",
        "Mean cross-entropy per predicted token of a training batch, before its update.",
    ),
    (
        "train.step_time",
        "s",
        "lower",
        "Wall time of one optimizer step, data loading included, evaluation and checkpoints "
        "excluded.",
    ),
    (
        "train.total_time",
        "s",
        "lower",
        "Wall time of all optimizer steps of a run, evaluation and checkpoints excluded.",
    ),
    ("train.throughput", "token/s", "higher", "Tokens trained on per second of step time."),
    (
        "train.mfu",
        "fraction",
        "higher",
        "Model FLOPs (6N plus attention) per second over the peak dense FLOP/s of the dtype used.",
    ),
    (
        "train.peak_memory",
        "byte",
        "lower",
        "Largest memory held for the run beyond what the process held before the model was built.",
    ),
    (
        "train.flops",
        "FLOP",
        "neither",
        "Model FLOPs of the run: 6 per matrix parameter and token plus attention.",
    ),
    ("train.tokens", "token", "neither", "Tokens trained on, repeats counted."),
    (
        "model.parameters",
        "parameter",
        "neither",
        "All parameters, embeddings and head counted once when tied.",
    ),
    (
        "model.parameters_non_embedding",
        "parameter",
        "neither",
        "Parameters without token and position embeddings and without the head.",
    ),
    ("model.weights_memory", "byte", "lower", "Bytes of all weights in their stored dtype."),
    (
        "serve.ttft",
        "s",
        "lower",
        "Time from a request's arrival to its first output token, mean over requests.",
    ),
    (
        "serve.ttft_p95",
        "s",
        "lower",
        "95th percentile over requests of arrival to first output token.",
    ),
    (
        "serve.tpot",
        "s/token",
        "lower",
        "(Last - first token time) / (output tokens - 1) per request, mean over requests.",
    ),
    (
        "serve.throughput",
        "token/s",
        "higher",
        "Output tokens per second from the first arrival to the last token.",
    ),
    (
        "serve.optimal_throughput",
        "token/s",
        "higher",
        "Prompt and output tokens per second and device if the bottleneck never idles.",
    ),
    (
        "serve.request_rate",
        "request/s",
        "higher",
        "Finished requests per second from the first arrival to the last token.",
    ),
    (
        "serve.e2e_latency",
        "s",
        "lower",
        "Time from a request's arrival to its last token, mean over requests.",
    ),
    (
        "serve.kv_utilization",
        "fraction",
        "higher",
        "Token states held over pool slots reserved, mean over steps with work.",
    ),
    (
        "serve.kv_bytes_per_token",
        "byte",
        "lower",
        "Key and value bytes kept per token over all layers.",
    ),
    ("serve.makespan", "s", "lower", "Time from the first arrival to the last token of a trace."),
    (
        "run.energy",
        "J",
        "lower",
        "Electric energy of all machines for the run, facility overhead included.",
    ),
    (
        "run.cost",
        "USD",
        "lower",
        "Money for the run: machine hours times price, or amortized hardware plus energy, as its "
        "source says.",
    ),
    ("run.carbon", "g", "lower", "Operational carbon dioxide equivalent of the run's energy."),
    ("run.duration", "s", "lower", "Wall time from a run's start to its end, everything included."),
    ("plan.num_accelerators", "count", "lower", "Accelerators the plan occupies."),
    (
        "plan.memory_per_accelerator",
        "byte",
        "lower",
        "Largest memory one accelerator of the plan holds.",
    ),
    ("machine.matmul", "FLOP/s", "higher", "Rate of a large square matrix product."),
    (
        "machine.attention",
        "FLOP/s",
        "higher",
        "Rate of fused causal attention, forward and backward; masked pairs are not counted.",
    ),
    (
        "machine.elementwise",
        "byte/s",
        "higher",
        "Bytes read and written per second by activation and softmax, forward and backward.",
    ),
    (
        "machine.stream",
        "byte/s",
        "higher",
        "Memory bandwidth of a stream over a working set far beyond the caches.",
    ),
    (
        "machine.gather",
        "byte/s",
        "higher",
        "Useful bytes per second of random row gathers from a table beyond the caches.",
    ),
    (
        "machine.disk_read",
        "byte/s",
        "higher",
        "Sequential read rate of a file, page cache bypassed where possible.",
    ),
    (
        "machine.disk_write",
        "byte/s",
        "higher",
        "Sequential write rate to a file, flushed to the device.",
    ),
    (
        "machine.link_latency",
        "s",
        "lower",
        "One-way time of a minimal message between two processes of this machine.",
    ),
    (
        "machine.link_bandwidth",
        "byte/s",
        "higher",
        "Rate of large messages between two processes of this machine.",
    ),
    ("machine.launch", "s", "lower", "Time to dispatch one small tensor operation."),
    ("data.documents", "count", "neither", "Documents kept after cleaning and deduplication."),
    ("data.tokens", "token", "neither", "Tokens in the training shards."),
    (
        "data.duplicate_fraction",
        "fraction",
        "lower",
        "Clean documents dropped as exact or near duplicates.",
    ),
)

QUANTITIES: dict[str, Quantity] = {row[0]: Quantity(*row) for row in _ROWS}
"""Every quantity by name."""


def quantity(name: str) -> Quantity:
    """Look a quantity up by its name.

    Args:
        name: dotted, such as "train.step_time".

    Returns:
        Its definition, unit and direction.

    Raises:
        ConfigError: no quantity has this name; near names are listed.
    """
    if name not in QUANTITIES:
        near = difflib.get_close_matches(name, QUANTITIES, n=3, cutoff=0.4)
        raise ConfigError(
            f"unknown quantity {name!r}", hint=f"near names: {', '.join(near) or 'none'}"
        )
    return QUANTITIES[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """A quantity forecast before it is measured, with an 80 % interval.

    Attributes:
        quantity: name from `QUANTITIES`.
        value: central value in the quantity's unit.
        low: lower end of the 80 % interval, at most `value`.
        high: upper end, at least `value`.
        provenance: how the number came to be.
        source: model, fit, record or paper that it comes from.
    """

    quantity: str
    value: float
    low: float
    high: float
    provenance: Provenance
    source: str

    def __post_init__(self) -> None:
        """Refuse unknown names, unknown provenance and intervals that miss their own value."""
        quantity(self.quantity)
        if self.provenance not in _PROVENANCES:
            raise ConfigError(
                f"{self.quantity}: provenance {self.provenance!r} is not one of "
                f"{', '.join(_PROVENANCES)}"
            )
        if not (math.isfinite(self.value) and self.low <= self.value <= self.high):
            raise ConfigError(
                f"{self.quantity}: interval [{self.low}, {self.high}] must hold the finite value "
                f"{self.value}"
            )

    @property
    def unit(self) -> str:
        """SI base unit of the value."""
        return QUANTITIES[self.quantity].unit

    @classmethod
    def about(
        cls, name: str, value: float, *, relative: float, provenance: Provenance, source: str
    ) -> "Forecast":
        """Make a forecast whose 80 % interval is `value` times or divided by (1 + relative).

        Args:
            name: quantity.
            value: central value; an interval about 0 is empty.
            relative: half-width of the interval as a fraction of the value, 0 or more.
            provenance: how the number came to be.
            source: model, fit, record or paper that it comes from.

        Returns:
            The forecast.

        Raises:
            ConfigError: `relative` is negative or not finite, or the forecast itself is refused.
        """
        if not (math.isfinite(relative) and relative >= 0):
            raise ConfigError(
                f"{name}: relative half-width {relative} must be finite and 0 or more"
            )
        low, high = sorted((value / (1 + relative), value * (1 + relative)))
        return cls(
            quantity=name, value=value, low=low, high=high, provenance=provenance, source=source
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A quantity measured on a real run; simulations never make one.

    Attributes:
        quantity: name from `QUANTITIES`.
        value: central value in the quantity's unit, a median or mean as its definition says.
        spread: standard deviation of the samples, 0 for a single one.
        count: number of samples.
        machine: name of the machine it was taken on.
        time_s: when, seconds since 1970 (UTC).
    """

    quantity: str
    value: float
    spread: float = 0.0
    count: int = 1
    machine: str = field(default="this-machine")
    time_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse unknown names and values that are not finite."""
        quantity(self.quantity)
        if not math.isfinite(self.value):
            raise ConfigError(f"{self.quantity}: measured value {self.value} is not finite")

    @property
    def unit(self) -> str:
        """SI base unit of the value."""
        return QUANTITIES[self.quantity].unit


@dataclass(frozen=True, slots=True)
class Check:
    """A forecast beside the measurement of the same quantity."""

    forecast: Forecast
    measurement: Measurement

    @property
    def relative_error(self) -> float:
        """(forecast - measured) / |measured|; infinite when only the measured value is 0."""
        difference = self.forecast.value - self.measurement.value
        if self.measurement.value == 0:
            return 0.0 if difference == 0 else math.copysign(math.inf, difference)
        return difference / abs(self.measurement.value)

    @property
    def covered(self) -> bool:
        """Whether the 80 % interval holds the measured value."""
        return self.forecast.low <= self.measurement.value <= self.forecast.high


def check(forecasts: list[Forecast], measurements: list[Measurement]) -> list[Check]:
    """Pair forecasts and measurements by quantity name, in the order of the forecasts.

    A forecast without a measurement, or the reverse, is left out.
    """
    # A run that was resumed measures anew: of two measurements of a name the dict keeps the last.
    measured = {item.quantity: item for item in measurements}
    return [Check(item, measured[item.quantity]) for item in forecasts if item.quantity in measured]
