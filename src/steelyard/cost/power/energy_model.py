"""Energy of serving: seconds, watts and joules of a step, from what the step holds."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.flops import active_matrix_parameters
from steelyard.cost.held import parameter_count
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.power.curve import PowerCurve
from steelyard.cost.step_time import FEATURES, FIRST_TOKENS, ServeStepTime
from steelyard.errors import CatalogError, require

__all__ = ["EnergyModel", "PhaseCost", "prompt_features", "token_features"]

Array = NDArray[np.float64]
_PROMPT = np.array([name.startswith("prefill") for name in FEATURES])


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """What a step or a request takes.

    Attributes:
        time_s: seconds.
        power_w: mean power of all accelerators together, hosts left out.
        energy_j: their product.
    """

    time_s: float
    power_w: float
    energy_j: float


def prompt_features(prompt_tokens: ArrayLike, batch: float = 1.0) -> Array:
    """Return what a step holds that processes whole prompts, in the order of `cost.FEATURES`.

    Args:
        prompt_tokens: length of each prompt, [...].
        batch: prompts.

    Returns:
        float64 [..., 7].
    """
    size = np.asarray(prompt_tokens, float)
    tokens = batch * size
    return _features(batch, tokens, tokens * (size + 1) / 2, 0.0 * size, 0.0 * size)


def token_features(context_tokens: ArrayLike, batch: float = 1.0) -> Array:
    """Return what a step holds that generates one token per sequence.

    Args:
        context_tokens: tokens that each sequence attends, [...].
        batch: sequences.

    Returns:
        float64 [..., 7].
    """
    context = np.asarray(context_tokens, float)
    return _features(batch, 0.0 * context, 0.0 * context, batch + 0.0 * context, batch * context)


def _features(
    batch: float, prefill_tokens: Array, prefill_kv: Array, decode_tokens: Array, decode_kv: Array
) -> Array:
    """Stack features of many steps, each as `cost.step_time.step_features` makes those of one."""
    first = np.minimum(prefill_tokens + decode_tokens, FIRST_TOKENS)
    ones = np.ones_like(first)
    parts = (ones, batch * ones, prefill_tokens, prefill_kv, decode_tokens, decode_kv, first)
    return np.stack(parts, axis=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyModel:
    """A model on some accelerators: time by `ServeStepTime`, power by `PowerCurve`.

    How busy products and memory are follows from the FLOPs and bytes of a step over its time, so
    that a slow engine draws less and yet takes more energy.

    Source: arXiv 2403.20306 (what energy depends on); arXiv 2308.12908.

    Attributes:
        arch: model that is served.
        accelerator: record with peaks.
        tensor_parallel: accelerators that hold one copy.
        step_time: seconds of a step at the full clock.
        curve: power of one accelerator.
        token_clocked: share of the time outside of prompts that lengthens as the clock falls; what
            prompts add does so in whole. 1.05 of the time at .79 of the clock is published for
            BLOOM.
        dtype_bytes: bytes of a weight and of a cached element.
        peak_flops_per_s: peak of one accelerator for that type.
    """

    arch: Architecture
    accelerator: Accelerator
    tensor_parallel: int
    step_time: ServeStepTime
    curve: PowerCurve
    token_clocked: float = 0.2
    dtype_bytes: float = 2.0
    peak_flops_per_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range; look the peak up."""
        require(
            self,
            tensor_parallel=(self.tensor_parallel >= 1, "1 or more"),
            token_clocked=(0 <= self.token_clocked <= 1, "in [0, 1]"),
        )
        peaks = self.accelerator.peak_flops_per_s
        peak = self.peak_flops_per_s or peaks.get("bf16") or peaks.get("fp16") or 0.0
        if not peak:
            raise CatalogError(
                f"no 16-bit peak is known for {self.accelerator.name}",
                hint="add peak_flops_per_s to a record in the user catalog",
            )
        object.__setattr__(self, "peak_flops_per_s", peak)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return _counts(self.arch)[1] * self.dtype_bytes

    def flops(self, features: ArrayLike) -> Array:
        """Return the FLOPs of steps with features [..., 7], [...]."""
        values = _by_name(features)
        width = self.arch.num_heads * (self.arch.head_dim + self.arch.value_dim)
        pairs = values["prefill_kv"] + values["decode_kv"]
        tokens = values["prefill_tokens"] + values["decode_tokens"]
        dense = 2.0 * _counts(self.arch)[0] * tokens
        return dense + 2.0 * self.arch.num_layers * width * pairs

    def read_bytes(self, features: ArrayLike) -> Array:
        """Return the bytes of weights and cache that steps with features [..., 7] move, [...]."""
        values = _by_name(features)
        kept = kv_bytes_per_token(self.arch, self.dtype_bytes)
        return self.weight_bytes * values["steps"] + kept * (
            values["decode_kv"] + values["prefill_tokens"]
        )

    def uses(self, features: ArrayLike, seconds: ArrayLike) -> tuple[Array, Array]:
        """Return how busy products and memory are during a time.

        Args:
            features: what the time holds, summed over its steps, [..., 7].
            seconds: how long it takes at the full clock, [...].

        Returns:
            Reached over peak rates, [...] each.
        """
        spent = np.asarray(seconds, float) * self.tensor_parallel
        bandwidth = self.accelerator.memory_bytes_per_s
        return (
            self.flops(features) / (self.peak_flops_per_s * spent),
            self.read_bytes(features) / (bandwidth * spent),
        )

    def time_s(self, features: ArrayLike, clock: float = 1.0) -> Array:
        """Return the seconds of steps with features [..., 7] at a clock over the highest, [...]."""
        parts = np.asarray(features, float) * np.array(self.step_time.coefficients)
        prompt, rest = parts[..., _PROMPT].sum(-1), parts[..., ~_PROMPT].sum(-1)
        longer = 1.0 / clock - 1.0
        return prompt * (1 + longer) + rest * (1 + self.token_clocked * longer)

    def power_w(self, features: ArrayLike, clock: float = 1.0) -> Array:
        """Return the mean watts of all accelerators in steps with features [..., 7], [...]."""
        # Rates at the full clock: the curve itself says what a lower clock leaves of the power.
        uses = self.uses(features, self.time_s(features))
        return self.curve.mean_w(*uses, clock) * self.tensor_parallel

    def step(self, features: ArrayLike, clock: float = 1.0) -> PhaseCost:
        """Return what a step takes.

        Args:
            features: what it holds, in the order of `cost.FEATURES`, [7].
            clock: clock over the highest, in (0, 1].

        Returns:
            Seconds, watts and joules of all accelerators together.
        """
        seconds, watts = float(self.time_s(features, clock)), float(self.power_w(features, clock))
        return PhaseCost(seconds, watts, seconds * watts)

    def prompt(self, prompt_tokens: float, batch: float = 1.0, clock: float = 1.0) -> PhaseCost:
        """Return what the prompts of a batch take."""
        return self.step(prompt_features(prompt_tokens, batch), clock)

    def token(self, context_tokens: float, batch: float = 1.0, clock: float = 1.0) -> PhaseCost:
        """Return what one token for each sequence of a batch takes."""
        return self.step(token_features(context_tokens, batch), clock)

    def prompt_peak_w(
        self, prompt_tokens: ArrayLike, batch: float = 1.0, clock: float = 1.0
    ) -> Array:
        """Return the highest watts of all accelerators while prompts are processed, [...]."""
        width = self.tensor_parallel
        floor = self.power_w(token_features(prompt_tokens, batch)) / width
        in_flight = np.asarray(prompt_tokens, float) * batch / width
        return self.curve.peak_w(in_flight, floor, clock) * width

    def request(
        self, prompt_tokens: float, output_tokens: float, batch: float = 1.0, clock: float = 1.0
    ) -> PhaseCost:
        """Return what a batch of equal requests takes from prompt to last token.

        The first token comes with the prompt; the others attend to what stands before them.

        Args:
            prompt_tokens: length of each prompt.
            output_tokens: tokens to generate, 1 or more.
            batch: requests that run together.
            clock: clock over the highest.

        Returns:
            Seconds of the batch, mean watts and joules of all its requests together.
        """
        first = self.prompt(prompt_tokens, batch, clock)
        context = prompt_tokens + output_tokens / 2
        one = self.token(context, batch, clock)
        seconds = first.time_s + (output_tokens - 1) * one.time_s
        joules = first.energy_j + (output_tokens - 1) * one.energy_j
        return PhaseCost(seconds, joules / seconds, joules)

    def draw(self, cost: PhaseCost) -> float:
        """Return a power over the rating of all accelerators, as `cost.bill` takes it."""
        return cost.power_w / (self.curve.rated_w * self.tensor_parallel)


@cache
def _counts(arch: Architecture) -> tuple[float, float]:
    """Return the parameters that a token meets, and all of them."""
    return float(active_matrix_parameters(arch)), sum(parameter_count(arch))


def _by_name(features: ArrayLike) -> dict[str, Array]:
    """Return features by their names."""
    values = np.asarray(features, float)
    return {name: values[..., place] for place, name in enumerate(FEATURES)}
