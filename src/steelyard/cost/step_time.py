"""Seconds of one serving step as a non-negative linear model of what the step holds.

Fitted, or made from a roofline.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.config import convert
from steelyard.cost.operators import operators
from steelyard.cost.roofline import Machine, roofline_time_s
from steelyard.errors import FitError
from steelyard.files import read_json, write_json

__all__ = ["FEATURES", "FIRST_TOKENS", "ServeStepTime", "step_features"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeStepTime:
    """Step time = features times coefficients.

    Attributes:
        coefficients: seconds per unit of each of `FEATURES`, none negative.
        relative_spread: root mean square of the fit's relative residuals.
        count: steps it was fitted on.
        source: how it was made.
    """

    coefficients: tuple[float, ...]
    relative_spread: float
    count: int
    source: str = "fitted on measured steps"

    @classmethod
    def fit(
        cls, features: ArrayLike, seconds: ArrayLike, *, source: str = "fitted on measured steps"
    ) -> "ServeStepTime":
        """Fit by non-negative least squares on relative error, then once more without steps slowed by interference.

        Args:
            features: in the order of `FEATURES`, [n, 7].
            seconds: measured times, positive, [n].
            source: what the times are from.

        Returns:
            The fitted model. Steps whose residual is beyond three times the median absolute one are
            left out of the second fit.

        Raises:
            FitError: fewer than 7 steps, wrong shapes, or times that are not positive and finite.
        """
        matrix, times = np.asarray(features, dtype=float), np.asarray(seconds, dtype=float)
        if (
            matrix.ndim != 2
            or matrix.shape[1] != len(FEATURES)
            or times.shape != matrix.shape[:1]
            or len(times) < len(FEATURES)
        ):
            message = (
                f"step times need features [n, {len(FEATURES)}] and seconds [n] with n >= "
                f"{len(FEATURES)}"
            )
            raise FitError(
                f"{message}, got {matrix.shape} and {times.shape}",
                hint="replay more requests before fitting",
            )
        if not (np.isfinite(times).all() and (times > 0).all() and np.isfinite(matrix).all()):
            raise FitError(
                "step times must be positive and finite", hint="drop steps that were not timed"
            )
        coefficients = _relative_nnls(matrix, times)
        residual = matrix @ coefficients / times - 1
        limit = 3 * max(float(np.median(np.abs(residual))), 0.02)
        kept = np.abs(residual) <= limit
        if kept.sum() >= len(FEATURES):
            coefficients = _relative_nnls(matrix[kept], times[kept])
        spread = (
            float(np.sqrt(np.mean((matrix[kept] @ coefficients / times[kept] - 1) ** 2)))
            if kept.any()
            else 1.0
        )
        return cls(
            coefficients=tuple(map(float, coefficients)),
            relative_spread=spread,
            count=len(times),
            source=source,
        )

    @classmethod
    def from_roofline(
        cls, arch: Architecture, machine: Machine, *, dtype_bytes: float | None = None
    ) -> "ServeStepTime":
        """Fit the same linear form to roofline times of a grid of prefill, decode and mixed steps.

        Args:
            arch: the model served.
            machine: where.
            dtype_bytes: of weights and cache; the machine's dtype when not given.

        Returns:
            The model; its spread says how far the roofline is from linear.
        """
        rows, times = [], []
        limit = max(arch.max_positions, 64)
        contexts = [context for context in (32, 128, 512, 2048, 8192) if context <= limit]
        for sequences in (0, 1, 4, 16, 64):
            for prompt in (0, 16, 64, 256, 512, 2048):
                for context in contexts:
                    if sequences or prompt:
                        rows.append(
                            step_features(
                                sequences=sequences + (prompt > 0),
                                prefill_tokens=prompt,
                                prefill_kv=prompt * (max(context - prompt, 0) + (prompt + 1) / 2),
                                decode_tokens=sequences,
                                decode_kv=sequences * context,
                            )
                        )
                        times.append(
                            _mixed_step_s(
                                arch, machine, rows[-1], dtype_bytes or machine.dtype_bytes
                            )
                        )
        matrix, seconds = np.array(rows), np.array(times)
        coefficients = _relative_nnls(matrix, seconds)
        spread = float(np.sqrt(np.mean((matrix @ coefficients / seconds - 1) ** 2)))
        source = f"roofline of {arch.name} on {machine.name}"
        return cls(
            coefficients=tuple(map(float, coefficients)),
            relative_spread=spread,
            count=len(times),
            source=source,
        )

    def predict(self, features: ArrayLike) -> NDArray[np.float64]:
        """Return seconds of steps; features [..., 7] in the order of `FEATURES`, answer [...]."""
        return np.asarray(features, dtype=float) @ np.array(self.coefficients)

    def scaled(self, factor: float) -> "ServeStepTime":
        """Return the same model with every step `factor` times as long."""
        return replace(self, coefficients=tuple(factor * item for item in self.coefficients))

    def save(self, path: Path) -> None:
        """Write the model as JSON, atomically."""
        write_json(path, self)

    @classmethod
    def load(cls, path: Path) -> "ServeStepTime":
        """Read a model that `save` wrote, or that of a step-time table; a missing or broken file raises DataError or ConfigError."""
        raw = read_json(path)
        return convert(
            raw.get("step_time", raw) if isinstance(raw, dict) else raw, cls, where=str(path)
        )


def _mixed_step_s(
    arch: Architecture, machine: Machine, row: NDArray[np.float64], dtype_bytes: float
) -> float:
    """Time a step: its tokens share the matrix products, attention adds up over the two kinds, the head runs per sequence."""
    _, sequences, prompt, pairs, decoding, keys, _ = row.tolist()
    shared = operators(
        arch,
        phase="prefill",
        tokens=1,
        context=1,
        batch=prompt + decoding,
        dtype_bytes=dtype_bytes,
        fused=machine.fused,
    )
    per_token_head_s = 0.0
    times_s = float(roofline_time_s(shared, machine))
    if sequences < prompt + decoding:
        head = operators(
            arch,
            phase="prefill",
            tokens=prompt + decoding,
            batch=1,
            dtype_bytes=dtype_bytes,
            fused=machine.fused,
        )
        attention = head.mask("attention")
        single_s = float(roofline_time_s(head, machine))
        spent = (
            head.count[attention]
            * head.flops[attention]
            / (machine.peak_flops_per_s * machine.efficiencies.attention)
        )
        times_s = single_s - float(spent.sum())
    width = arch.num_heads * arch.head_dim
    score_s = (
        4.0
        * arch.num_layers
        * width
        * pairs
        / (machine.peak_flops_per_s * machine.efficiencies.attention)
    )
    cache = 2.0 * arch.num_layers * arch.num_kv_heads * arch.head_dim * dtype_bytes * keys
    return max(times_s, 0.0) + per_token_head_s + score_s + cache / float(machine.bandwidth(cache))


def _relative_nnls(
    matrix: NDArray[np.float64], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Minimize the sum of squared relative errors with coefficients at least 0; columns are scaled for conditioning."""
    from scipy.optimize import nnls

    scaled = matrix / seconds[:, None]
    norms = np.maximum(np.linalg.norm(scaled, axis=0), 1e-300)
    return nnls(scaled / norms, np.ones(len(seconds)))[0] / norms
