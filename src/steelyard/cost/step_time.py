"""Seconds of one serving step as a non-negative linear model of what the step holds."""

import itertools
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.operators import operators
from steelyard.cost.roofline import Machine, roofline_time_s
from steelyard.cost.windows import windowed
from steelyard.errors import FitError

__all__ = [
    "FEATURES",
    "FIRST_TOKENS",
    "ServeStepTime",
    "Shortened",
    "checked_steps",
    "relative_nnls",
    "robust_nnls",
    "step_features",
]

FEATURES = (
    "steps",
    "sequences",
    "prefill_tokens",
    "prefill_kv",
    "decode_tokens",
    "decode_kv",
    "first_tokens",
)
"""What a step's time depends on, summed over its sequences.

1 per step; sequences in it; prompt tokens processed; pairs of prompt token and attended token;
sequences that decode one token; tokens these attend; all tokens of the step up to `FIRST_TOKENS`,
as products of few rows reach a small part of the processor's rate and cost more per row.
"""

FIRST_TOKENS = 8
Array = NDArray[np.float64]


def step_features(
    *,
    sequences: float,
    prefill_tokens: float,
    prefill_kv: float,
    decode_tokens: float,
    decode_kv: float,
) -> NDArray[np.float64]:
    """Return what a step's time depends on, in the order of `FEATURES`.

    Args:
        sequences: sequences in the step.
        prefill_tokens: prompt tokens processed.
        prefill_kv: pairs of prompt token and attended token.
        decode_tokens: sequences that decode one token.
        decode_kv: tokens these attend.

    Returns:
        float64 [7].
    """
    first_tokens = min(prefill_tokens + decode_tokens, FIRST_TOKENS)
    return np.array(
        [1.0, sequences, prefill_tokens, prefill_kv, decode_tokens, decode_kv, first_tokens]
    )


class Shortened(Protocol):
    """What shortens a step, such as a schedule of `plan.overlap`."""

    @property
    def gain(self) -> float:
        """Time of operations one after the other over the time with it, at least 1."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeStepTime:
    """Step time = features times coefficients.

    Attributes:
        coefficients: seconds per unit of each of `FEATURES`, none negative.
        relative_spread: root mean square of the fit's relative residuals.
        count: steps it was fitted on.
        source: runs or roofline it was made from.
    """

    coefficients: tuple[float, ...]
    relative_spread: float
    count: int
    source: str = "fitted on measured steps"

    @classmethod
    def fit(
        cls, features: ArrayLike, seconds: ArrayLike, *, source: str = "fitted on measured steps"
    ) -> "ServeStepTime":
        """Fit by non-negative least squares on relative error.

        A second fit leaves out steps that other work on the machine slowed down.

        Args:
            features: what each step holds, in the order of `FEATURES`, [n, 7].
            seconds: measured times, positive, [n].
            source: runs the times are from.

        Returns:
            The fitted model. Steps whose residual is beyond three times the median absolute one are
            left out of the second fit.

        Raises:
            FitError: fewer than 7 steps, wrong shapes, or times that are not positive and finite.
        """
        matrix, times = checked_steps(features, seconds)
        coefficients, kept = robust_nnls(matrix, times)
        return cls._fitted(coefficients, matrix[kept], times[kept], len(times), source)

    @classmethod
    def from_roofline(
        cls,
        arch: Architecture,
        machine: Machine,
        *,
        dtype_bytes: float | None = None,
        nano: "Shortened | None" = None,
    ) -> "ServeStepTime":
        """Fit the same linear form to roofline times of prefill, decode and mixed steps.

        Args:
            arch: model that is served.
            machine: accelerator it is served on.
            dtype_bytes: bytes of one element of weights and cache; by the machine's dtype when not
                given.
            nano: schedule of overlapping pieces; every step is as much shorter as the batch that it
                was found for, so that small steps come out too short.

        Returns:
            The model; its spread says how far the roofline is from linear.
        """
        limit = max(arch.max_positions, 64)
        contexts = [context for context in (32, 128, 512, 2048, 8192) if context <= limit]
        steps = itertools.product((0, 1, 4, 16, 64), (0, 16, 64, 256, 512, 2048), contexts)
        rows = [
            _features(sequences, context, prompt)
            for sequences, prompt, context in steps
            if sequences or prompt
        ]
        width = dtype_bytes or machine.dtype_bytes
        times = np.array([_mixed_step_s(arch, machine, row, width) for row in rows])
        matrix = np.array(rows)
        source = f"roofline of {arch.name} on {machine.name}"
        if nano is not None:
            times, source = times / nano.gain, f"{source}, overlapped"
        return cls._fitted(relative_nnls(matrix, times), matrix, times, len(rows), source)

    @classmethod
    def _fitted(
        cls, coefficients: Array, matrix: Array, seconds: Array, count: int, source: str
    ) -> "ServeStepTime":
        """Make the model of fitted coefficients, with the spread over the steps that it kept."""
        squares = (matrix @ coefficients / seconds - 1) ** 2
        return cls(
            coefficients=tuple(map(float, coefficients)),
            relative_spread=float(np.sqrt(np.mean(squares))) if len(squares) else 1.0,
            count=count,
            source=source,
        )

    def predict(self, features: ArrayLike) -> Array:
        """Return the seconds [...] of steps with features [..., 7] in the order of `FEATURES`."""
        return np.asarray(features, dtype=float) @ np.array(self.coefficients)

    def scaled(self, factor: float, prefill: float | None = None) -> "ServeStepTime":
        """Return the same model with every step `factor` times as long.

        Args:
            factor: number that multiplies every step.
            prefill: number that multiplies what prompts add to a step, in place of `factor`.

        Returns:
            The scaled model.
        """
        prompts = factor if prefill is None else prefill
        return replace(
            self,
            coefficients=tuple(
                (prompts if name.startswith("prefill") else factor) * item
                for name, item in zip(FEATURES, self.coefficients, strict=True)
            ),
        )


def _features(sequences: int, context: int, prompt: int) -> Array:
    """Make the features of a step: some sequences decode, one chunk of a prompt is processed.

    All of them attend `context` tokens; the tokens of the chunk itself attend each other causally.
    """
    return step_features(
        sequences=sequences + (prompt > 0),
        prefill_tokens=prompt,
        prefill_kv=prompt * (max(context - prompt, 0) + (prompt + 1) / 2),
        decode_tokens=sequences,
        decode_kv=sequences * context,
    )


def _mixed_step_s(arch: Architecture, machine: Machine, row: Array, dtype_bytes: float) -> float:
    """Time a step: its tokens share the products, attention adds up, the head runs per sequence."""
    _, sequences, prompt, pairs, decoding, keys, _ = row.tolist()
    pairs, keys = windowed(arch, prompt, pairs), windowed(arch, decoding, keys)
    tokens = prompt + decoding
    attention_rate = machine.peak_flops_per_s * machine.efficiencies.attention
    shape: dict[str, Any] = {
        "phase": "prefill",
        "dtype_bytes": dtype_bytes,
        "fused": machine.fused,
    }
    if sequences < tokens:
        # One sequence of all tokens runs the head once. Its attention is taken off again, because
        # it counts pairs between sequences; the step's own pairs are added below.
        table = operators(arch, tokens=tokens, batch=1, **shape)
        own = table.mask("attention")
        spent = table.count[own] * table.flops[own] / attention_rate
        times_s = float(roofline_time_s(table, machine)) - float(spent.sum())
    else:
        table = operators(arch, tokens=1, context=1, batch=tokens, **shape)
        times_s = float(roofline_time_s(table, machine))
    width = arch.num_heads * arch.head_dim
    score_s = 4.0 * arch.num_layers * width * pairs / attention_rate
    cache = 2.0 * arch.num_layers * arch.num_kv_heads * arch.head_dim * dtype_bytes * keys
    return max(times_s, 0.0) + score_s + cache / float(machine.bandwidth(cache))


def checked_steps(features: ArrayLike, seconds: ArrayLike) -> tuple[Array, Array]:
    """Return measured steps as arrays.

    Args:
        features: what each step holds, in the order of `FEATURES`, [n, 7].
        seconds: measured times, positive, [n].

    Returns:
        Features [n, 7] and seconds [n].

    Raises:
        FitError: fewer than 7 steps, wrong shapes, or times that are not positive and finite.
    """
    matrix = np.asarray(features, dtype=float)
    times = np.asarray(seconds, dtype=float)
    width = len(FEATURES)
    if matrix.shape != (*times.shape, width) or times.ndim != 1 or len(times) < width:
        raise FitError(
            f"step times need features [n, {width}] and seconds [n] with n >= {width}, got "
            f"{matrix.shape} and {times.shape}",
            hint="replay more requests before fitting",
        )
    if not (np.isfinite(times).all() and (times > 0).all() and np.isfinite(matrix).all()):
        raise FitError(
            "step times must be positive and finite", hint="drop steps that were not timed"
        )
    return matrix, times


def robust_nnls(matrix: Array, seconds: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Fit by `relative_nnls` twice, the second time without steps that other work slowed down.

    Args:
        matrix: what each sample holds, [n, terms].
        seconds: measured, positive, [n].

    Returns:
        Coefficients [terms], and which samples the second fit kept, bool [n].
    """
    coefficients = relative_nnls(matrix, seconds)
    residual = np.abs(matrix @ coefficients / seconds - 1)
    # The floor of 2 % keeps a nearly exact fit from calling its own rounding interference.
    kept = residual <= 3 * max(float(np.median(residual)), 0.02)
    if kept.sum() >= matrix.shape[1]:
        coefficients = relative_nnls(matrix[kept], seconds[kept])
    return coefficients, kept


def relative_nnls(matrix: Array, seconds: Array, weights: Array | None = None) -> Array:
    """Minimize the sum of squared relative errors with coefficients of at least 0.

    Args:
        matrix: what each sample holds, [n, terms].
        seconds: measured, positive, [n].
        weights: factor on the error of each sample, [n]; 1 when not given.

    Returns:
        Coefficients [terms].
    """
    from scipy.optimize import nnls

    aims = np.ones(len(seconds)) if weights is None else weights
    scaled = matrix * (aims / seconds)[:, None]
    # Features differ by many decades; unit columns keep the solver's tolerance meaningful.
    norms = np.maximum(np.linalg.norm(scaled, axis=0), 1e-300)
    return nnls(scaled / norms, aims)[0] / norms
