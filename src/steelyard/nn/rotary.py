"""Rotary positions: queries and keys are turned by an angle that grows with their position."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["RotaryScaling", "rotary_tables", "rotate", "spread", "yarn_magnitude"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryScaling:
    """Slower rotation for contexts longer than those trained first.

    Wavelengths above `original_positions / low` are stretched by `factor`, those below
    `original_positions / high` stay, and those between are blended. Linear interpolation stretches
    all of them: `low` and `high` infinite. With `stretches` each wavelength has a factor of its
    own, and the others are not used.

    Attributes:
        factor: stretch of the longest wavelengths, at least 1.
        low: turns within the original context below which a wavelength is stretched in full.
        high: turns above which it stays.
        original_positions: context trained first, in tokens.
        is_yarn: wavelengths between are blended evenly by their number, not by their turns, and
            queries and keys are multiplied by `magnitude`.
        score_weight: m of the factor (0.1 m ln(factor) + 1)^2 of all scores; 0 for none.
        stretches: factor of every wavelength, the shortest first; empty without.
        long_stretches: the same for models built for more positions than `original_positions`.
        magnitude: factor of the turned columns of queries and keys.

    Source: Grattafiori et al. 2024 (arXiv 2407.21783), section 3.4.3, in the form of
        `transformers`' "llama3"; Chen et al. 2023 (arXiv 2306.15595), equation 4 (linear); Ding et
        al. 2024 (arXiv 2402.13753), section 3 (LongRoPE), in the form of Phi-3; Peng et al. 2023
        (arXiv 2309.00071), section 3 (YaRN), in the form of DeepSeek.
    """

    factor: float
    low: float = math.inf
    high: float = math.inf
    original_positions: int = 0
    is_yarn: bool = False
    score_weight: float = 0.0
    stretches: tuple[float, ...] = ()
    long_stretches: tuple[float, ...] = ()
    magnitude: float = 1.0

    @property
    def score_factor(self) -> float:
        """Factor of all scores beside the usual one."""
        return yarn_magnitude(self.factor, self.score_weight) ** 2

    def apply(self, frequencies: Tensor, num_positions: int = 0) -> Tensor:
        """Return the scaled angles per position.

        Args:
            frequencies: the original ones [R / 2].
            num_positions: positions the model is built for; only `stretches` depend on them.

        Returns:
            The scaled ones [R / 2].
        """
        if self.stretches:
            is_long = num_positions > self.original_positions
            chosen = self.long_stretches if is_long else self.stretches
            return frequencies / torch.tensor(chosen, dtype=frequencies.dtype)
        if math.isinf(self.high):
            return frequencies / self.factor
        if self.is_yarn:
            kept = self._kept_by_number(frequencies)
            return frequencies * (kept + (1 - kept) / self.factor)
        turns = self.original_positions * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return frequencies * (kept + (1 - kept) / self.factor)

    def _kept_by_number(self, frequencies: Tensor) -> Tensor:
        """Return the share of each frequency that stays, falling evenly between two whole numbers.

        These are the numbers of the wavelengths that make `high` and `low` turns, rounded away
        from each other.
        """
        step = math.log(float(frequencies[0] / frequencies[1]))
        first, last = (
            math.log(self.original_positions / (turns * 2 * math.pi)) / step
            for turns in (self.high, self.low)
        )
        begin, end = max(math.floor(first), 0), min(math.ceil(last), 2 * len(frequencies) - 1)
        numbers = torch.arange(len(frequencies), dtype=frequencies.dtype)
        return 1 - ((numbers - begin) / max(end - begin, 0.001)).clamp(0.0, 1.0)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Return what YaRN multiplies queries and keys by, so that scores of long contexts stay sharp.

    Args:
        factor: stretch of the longest wavelengths.
        weight: m of 0.1 m ln(factor) + 1.

    Returns:
        At least 1.

    Source: Peng et al. 2023 (arXiv 2309.00071), equation 22.
    """
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotary_tables(
    num_positions: int, width: int, theta: float, scaling: RotaryScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the cosine and sine of every position's angles.

    Args:
        num_positions: rows P.
        width: columns R of a head that are turned; even.
        theta: base of the geometric series of wavelengths.
        scaling: scaling of the wavelengths, or None.

    Returns:
        Cosines and sines, each float32 [P, R / 2]; times the scaling's magnitude.

    Source: Su et al. 2021 (arXiv 2104.09864), section 3.2.2.
    """
    # In float64 and rounded once: at position 100,000 a float32 angle is off by 0.004 radians.
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if scaling is not None:
        frequencies = scaling.apply(frequencies, num_positions)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    magnitude = 1.0 if scaling is None else scaling.magnitude
    return (magnitude * angles.cos()).float(), (magnitude * angles.sin()).float()


def spread(cosines: Tensor, sines: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Widen table rows to whole heads, once per step instead of once per layer.

    Args:
        cosines: table rows [..., R / 2].
        sines: table rows of the same shape.
        dtype: type of the heads they will turn.

    Returns:
        Cosines and sines [..., 1, R] that broadcast over heads; the first half of the sines is
        negated, as `rotate` needs it.
    """
    wide_cosines = torch.cat((cosines, cosines), dim=-1).unsqueeze(-2).to(dtype)
    wide_sines = torch.cat((-sines, sines), dim=-1).unsqueeze(-2).to(dtype)
    return wide_cosines, wide_sines


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each head; its halves are the two coordinates, as in Hugging Face's Llama.

    Args:
        heads: [..., H, D].
        cosines: [..., 1, R] from `spread`; columns from R on, if any, stay as they are.
        sines: [..., 1, R] from `spread`.

    Returns:
        The turned heads [..., H, D].
    """
    width = cosines.shape[-1]
    turned: Tensor = _Rotation.apply(heads[..., :width], cosines, sines)  # pyright: ignore[reportAssignmentType]
    return turned if width == heads.shape[-1] else torch.cat((turned, heads[..., width:]), dim=-1)


class _Rotation(torch.autograd.Function):
    """A rotation whose gradient is the opposite rotation, so that no activation is kept for it."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Turn by the angle."""
        ctx.save_for_backward(cosines, sines)
        return torch.addcmul(heads * cosines, _swap(heads), sines)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Turn back by the angle."""
        cosines, sines = ctx.saved_tensors
        return (
            torch.addcmul(gradients[0] * cosines, _swap(gradients[0]), sines, value=-1),
            None,
            None,
        )


def _swap(heads: Tensor) -> Tensor:
    """Exchange the halves of each head."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((second, first), dim=-1)
