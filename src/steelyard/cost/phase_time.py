"""Seconds of a serving step where prompts, decoding and large batches have times of their own."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.config import convert
from steelyard.cost.step_time import FEATURES, ServeStepTime, checked_steps, robust_nnls
from steelyard.errors import FitError
from steelyard.files import read_json, write_json
from steelyard.jit import njit

__all__ = ["PHASES", "PhaseStepTime", "phase_step_s"]

PHASES = ("prompts", "decode", "large decode", "mixed", "large mixed")
"""What a step may hold: prompts alone, one token of each sequence, or both; the latter two also at
batches from `large_batch` on."""

_LEAST_ROWS = 8
"""Steps that a phase needs for coefficients of its own."""
_NEVER = 1e12
"""A batch that no engine runs; infinity cannot be written as JSON."""

Array = NDArray[np.float64]
Terms = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseStepTime:
    """Step time = features times the coefficients of the step's phase.

    Attributes:
        coefficients: seconds per unit of each of `cost.FEATURES`, for each of `PHASES`.
        large_batch: decoding sequences from which on a batch is large.
        relative_spread: relative error that is expected of a step.
        source: what it was made from.
    """

    coefficients: tuple[tuple[float, ...], ...]
    large_batch: float
    relative_spread: float
    source: str

    def __post_init__(self) -> None:
        """Refuse a table of the wrong shape.

        Raises:
            FitError: it does not hold every phase and feature.
        """
        shape = np.shape(np.asarray(self.coefficients))
        if shape != (len(PHASES), len(FEATURES)):
            raise FitError(
                f"step times by phase need coefficients {len(PHASES)} x {len(FEATURES)}, got "
                f"{shape}",
                hint="make them with PhaseStepTime.of or PhaseStepTime.from_fits",
            )

    @classmethod
    def of(cls, model: ServeStepTime) -> "PhaseStepTime":
        """Take a model that is the same in all phases."""
        return cls(
            coefficients=(model.coefficients,) * len(PHASES),
            large_batch=_NEVER,
            relative_spread=model.relative_spread,
            source=model.source,
        )

    @classmethod
    def from_fits(
        cls,
        *,
        prefill: Terms,
        decode: Terms,
        large_decode: Terms | None = None,
        large_batch: float = 95,
        relative_spread: float = 0.05,
        source: str,
    ) -> "PhaseStepTime":
        """Take separate fits of prefill and decode steps.

        A mixed step reads the weights once: it has the larger of the two constants, and the other
        terms of both.

        Args:
            prefill: a, b, c of a + b sum(length) + c sum(length**2), seconds.
            decode: a, b, c of a + b sum(context) + c batch, seconds.
            large_decode: the same for batches from `large_batch` on; as `decode` when not given.
            large_batch: sequences from which on a batch is large.
            relative_spread: relative error of the fits.
            source: where they are from.

        Returns:
            The model.

        Source: Zhong et al. 2024 (arXiv 2401.09670), appendix A, in the form of its artifact.
        """
        prompts = _prompt_row(*prefill)
        decodes = [_decode_row(*decode), _decode_row(*(large_decode or decode))]
        mixed = [np.append(max(prompts[0], row[0]), prompts[1:] + row[1:]) for row in decodes]
        return cls(
            coefficients=tuple(tuple(map(float, row)) for row in (prompts, *decodes, *mixed)),
            large_batch=float(large_batch),
            relative_spread=relative_spread,
            source=source,
        )

    @classmethod
    def fit(
        cls, features: ArrayLike, seconds: ArrayLike, *, source: str = "fitted on measured steps"
    ) -> "PhaseStepTime":
        """Fit each phase on its own steps, and find the batch from which on decoding is slower.

        A small batch waits for the weights and a large one for the multipliers, so the time of a
        decoding step over the batch is flat first and rises then; one line through both is off by
        a third in between. A phase with few steps takes the fit of all steps.

        Args:
            features: what each step holds, in the order of `FEATURES`, [n, 7].
            seconds: measured times, positive, [n].
            source: runs the times are from.

        Returns:
            The fitted model; steps far off their phase's fit are left out of a second one.

        Raises:
            FitError: fewer than 7 steps, wrong shapes, or times that are not positive and finite.
        """
        matrix, times = checked_steps(features, seconds)
        prompts, decodes = matrix[:, 2], matrix[:, 4]
        pure = prompts == 0
        large_batch = _break(matrix[pure], times[pure])
        members = (
            decodes == 0,
            pure & (decodes < large_batch),
            pure & (decodes >= large_batch),
            ~pure & (decodes > 0),
        )
        whole = _fit_rows(matrix, times)
        rows = [
            _fit_rows(matrix[own], times[own]) if own.sum() >= _LEAST_ROWS else whole
            for own in members
        ]
        model = cls(
            coefficients=tuple(tuple(map(float, row)) for row in (*rows, rows[-1])),
            large_batch=large_batch,
            relative_spread=0.0,
            source=source,
        )
        residual = model.predict(matrix) / times - 1
        kept = np.abs(residual) <= 3 * max(float(np.median(np.abs(residual))), 0.02)
        return replace(model, relative_spread=float(np.sqrt(np.mean(residual[kept] ** 2))))

    @property
    def table(self) -> Array:
        """Coefficients, float64 [phases, features]."""
        return np.array(self.coefficients, dtype=np.float64)

    def predict(self, features: ArrayLike) -> Array:
        """Return the seconds [...] of steps with features [..., 7] in the order of `FEATURES`."""
        values = np.asarray(features, dtype=np.float64)
        flat = values.reshape(-1, len(FEATURES))
        return _predict(self.table, self.large_batch, flat).reshape(values.shape[:-1])

    def scaled(self, factor: float, prefill: float | None = None) -> "PhaseStepTime":
        """Return the same model with every step `factor` times as long.

        Args:
            factor: number that multiplies every step.
            prefill: number that multiplies what prompts add to a step, in place of `factor`.

        Returns:
            The scaled model.
        """
        prompts = factor if prefill is None else prefill
        factors = [prompts if name.startswith("prefill") else factor for name in FEATURES]
        rows = tuple(
            tuple(part * item for part, item in zip(factors, row, strict=True))
            for row in self.coefficients
        )
        return replace(self, coefficients=rows)

    def save(self, path: Path) -> None:
        """Write the model as JSON, atomically."""
        write_json(path, self)

    @classmethod
    def load(cls, path: Path) -> "PhaseStepTime":
        """Read a model that `save` wrote, or the one in a step-time table.

        Args:
            path: JSON file.

        Returns:
            The model; older tables hold one that is the same in all phases.

        Raises:
            DataError: the file is missing or not JSON.
            ConfigError: the file holds no such model.
        """
        raw = read_json(path)
        return cls.of_plain(raw.get("step_time", raw) if isinstance(raw, dict) else raw, str(path))

    @classmethod
    def of_plain(cls, raw: object, where: str) -> "PhaseStepTime":
        """Convert plain JSON data of this model, or of a `ServeStepTime`.

        Args:
            raw: what the file holds.
            where: file, for messages.

        Returns:
            The model.

        Raises:
            ConfigError: it is neither.
        """
        if isinstance(raw, dict) and "large_batch" not in raw and "count" in raw:
            return cls.of(convert(raw, ServeStepTime, where=where))
        return convert(raw, cls, where=where)


def _break(matrix: Array, seconds: Array) -> float:
    """Return the batch that parts decoding steps best, `_NEVER` where one fit does as well."""
    batches = matrix[:, 4]
    best, least = _NEVER, np.inf
    for batch in (_NEVER, *np.unique(batches)[1:].tolist()):
        sides = [side for side in (batches < batch, batches >= batch) if side.any()]
        if min((side.sum() for side in sides), default=0) < _LEAST_ROWS:
            continue
        off = np.concatenate(
            [
                matrix[side] @ _fit_rows(matrix[side], seconds[side]) / seconds[side]
                for side in sides
            ]
        )
        # Absolute values: a step that other work slowed down must not choose the break.
        error = float(np.abs(off - 1).mean())
        if error < least:
            best, least = float(batch), error
    return best


def _fit_rows(matrix: Array, seconds: Array) -> Array:
    """Fit coefficients of which only that of the first tokens may be negative.

    Tokens beyond the first ones count as a term of their own, so that the first may cost less than
    the others as well as more; no step gets shorter with more tokens in it.
    """
    first, beyond = FEATURES.index("first_tokens"), matrix[:, 2] + matrix[:, 4] - matrix[:, 6]
    found = robust_nnls(np.column_stack([matrix, beyond]), seconds)[0]
    row = found[:-1].copy()
    row[[FEATURES.index("prefill_tokens"), FEATURES.index("decode_tokens")]] += found[-1]
    row[first] -= found[-1]
    return row


def _prompt_row(constant: float, per_token: float, per_square: float) -> Array:
    """Return coefficients of prompts; n**2 is twice the pairs n (n + 1) / 2 less n."""
    row = dict.fromkeys(FEATURES, 0.0)
    row |= {"steps": constant, "prefill_tokens": per_token - per_square}
    return np.array([*(row | {"prefill_kv": 2 * per_square}).values()])


def _decode_row(constant: float, per_context: float, per_sequence: float) -> Array:
    """Return coefficients of decoding sequences."""
    row = dict.fromkeys(FEATURES, 0.0)
    row |= {"steps": constant, "decode_tokens": per_sequence, "decode_kv": per_context}
    return np.array([*row.values()])


@njit()
def phase_step_s(table: Array, large_batch: float, features: Array) -> float:
    """Return the seconds of one step.

    Args:
        table: coefficients [phases, features].
        large_batch: decoding sequences from which on a batch is large.
        features: what the step holds, in the order of `cost.FEATURES`, [7].

    Returns:
        Seconds.
    """
    prompts, decodes = features[2], features[4]
    row = 0
    if decodes > 0:
        row = (3 if prompts > 0 else 1) + (1 if decodes >= large_batch else 0)
    # In a fixed order, so that every simulator gets the same number to the last bit.
    total = 0.0
    for column in range(features.shape[0]):
        total += table[row, column] * features[column]
    return total


@njit()
def _predict(table: Array, large_batch: float, features: Array) -> Array:
    """Return the seconds of steps [n] with features [n, 7]."""
    seconds = np.empty(features.shape[0])
    for index in range(features.shape[0]):
        seconds[index] = phase_step_s(table, large_batch, features[index])
    return seconds
