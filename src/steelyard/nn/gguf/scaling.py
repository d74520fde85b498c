"""Scaling of the rotary wavelengths as GGUF files state it."""

import math

import numpy as np

from steelyard.errors import ConfigError
from steelyard.nn.gguf.header import GgufHeader
from steelyard.nn.rotary import RotaryScaling

__all__ = ["FACTORS", "read_scaling", "recovered"]

_DIVISORS = "rope_freqs.weight"
"""Tensor with the divisor of each frequency, which Llama 3.1 and later have."""
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
"""Tensors with the factor of each wavelength, which Phi-3 for long contexts has."""
FACTORS = (_DIVISORS, _LONG, _SHORT)
"""Tensors of the rotation, float32 [R / 2] each; no parameters of ours."""

_ORIGINAL_POSITIONS = 8192
"""Assumed where the file does not say it: only its ratio to the limits matters."""


def read_scaling(
    header: GgufHeader, factors: dict[str, np.ndarray], positions: int
) -> RotaryScaling | None:
    """Read the rotary scaling of a model.

    Args:
        header: header of its file.
        factors: what those of the tensors `FACTORS` hold that the file has, float32 [R / 2].
        positions: longest sequence of the model, in tokens.

    Returns:
        The scaling, or None.

    Raises:
        ConfigError: it is of a kind that is not supported.
        DataError: a field is of another type.
    """
    family = header.get("general.architecture", str)
    kind = header.get(f"{family}.rope.scaling.type", str, "none")
    if _LONG in factors and _SHORT in factors and kind in ("none", "longrope", ""):
        return _long_rope(header, family, factors, positions)
    if kind not in ("none", "linear", "") or _LONG in factors or _SHORT in factors:
        raise ConfigError(
            f"{header.path}: rotary scaling {kind!r} is not supported with the tensors "
            f"{sorted(factors)}",
            hint="supported: linear, Llama 3's, longrope with both its tensors, or none",
        )
    divisors = factors.get(_DIVISORS)
    if divisors is not None:
        theta = float(header.get(f"{family}.rope.freq_base", float, 10000.0))
        found = recovered(divisors, theta) if kind != "linear" else None
        if found is None:
            raise ConfigError(
                f"{header.path}: the divisors in {_DIVISORS} are not those of Llama 3's scaling",
                hint="supported: linear, Llama 3's, or none",
            )
        return None if found.factor == 1 else found
    # Older files carry the factor of a linear scaling under a key of its own.
    scale = header.get(f"{family}.rope.scale_linear", float, 1.0)
    factor = float(header.get(f"{family}.rope.scaling.factor", float, scale))
    if not (math.isfinite(factor) and factor >= 0):
        raise ConfigError(
            f"{header.path}: a rotary scaling by {factor}", hint="factors are at least 1"
        )
    scaled = kind == "linear" and factor not in (0.0, 1.0)
    return RotaryScaling(factor=factor) if scaled else None


def _long_rope(
    header: GgufHeader, family: str, factors: dict[str, np.ndarray], positions: int
) -> RotaryScaling:
    """Read the factors of Phi-3: one for each wavelength, for short and for long contexts."""
    original = header.get(f"{family}.rope.scaling.original_context_length", int)
    magnitude = float(header.get(f"{family}.rope.scaling.attn_factor", float, 1.0))
    stretches = [tuple(float(factor) for factor in factors[name]) for name in (_SHORT, _LONG)]
    numbers = (float(original), magnitude, *stretches[0], *stretches[1])
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ConfigError(
            f"{header.path}: rotary factors of {min(numbers)} to {max(numbers)}",
            hint="factors, attn_factor and original_context_length are positive",
        )
    return RotaryScaling(
        factor=max(positions / original, 1.0),
        original_positions=original,
        stretches=stretches[0],
        long_stretches=stretches[1],
        magnitude=magnitude,
    )


def recovered(divisors: np.ndarray, theta: float) -> RotaryScaling | None:
    """Find the scaling of Llama 3's form that has these divisors.

    Between its limits the share of a frequency that is kept is a linear function of the frequency,
    so that two of them determine the limits.

    Args:
        divisors: divisor of each frequency, [D / 2].
        theta: base of the wavelengths.

    Returns:
        The scaling, or None where there is none that gives each divisor to 1e-5.
    """
    wanted = divisors.astype(np.float64)
    if wanted.size == 0 or not (np.isfinite(wanted).all() and (wanted >= 1).all()):
        return None
    half = wanted.size
    frequencies = theta ** (-np.arange(half) / half)
    factor = float(wanted.max())
    if factor == 1:
        return RotaryScaling(factor=1.0)
    kept = (1 / wanted - 1 / factor) / (1 - 1 / factor)
    between = (kept > 1e-6) & (kept < 1 - 1e-6)
    if between.sum() < 2:
        return None
    slope, offset = np.polyfit(frequencies[between], kept[between], 1)
    if not (slope > 0 and offset < 0):
        return None
    span = _ORIGINAL_POSITIONS / (2 * math.pi * slope)
    low, high = -offset * span, span - offset * span
    # Files state the divisors in float32; limits such as 1 and 4 come back with its rounding.
    for digits in (3, 12):
        found = RotaryScaling(
            factor=factor,
            low=round(low, digits),
            high=round(high, digits),
            original_positions=_ORIGINAL_POSITIONS,
        )
        if _largest_error(found, wanted, frequencies) < 1e-5:
            return found
    return None


def _largest_error(scaling: RotaryScaling, wanted: np.ndarray, frequencies: np.ndarray) -> float:
    """Return the largest relative error of the divisors of a scaling."""
    import torch

    if scaling.low >= scaling.high:
        return math.inf
    given = frequencies / scaling.apply(torch.from_numpy(frequencies)).numpy()
    return float(np.abs(given / wanted - 1).max())
