"""Which matrix is stored in which type, for a budget of bytes or of loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steelyard.errors import InfeasibleError
from steelyard.units import pretty

__all__ = ["Choice", "choose_types"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to store a part.

    Attributes:
        num_bytes: bytes that it takes.
        loss: how much the loss rises.
    """

    num_bytes: int
    loss: float


def choose_types(
    parts: Sequence[Mapping[str, Choice]],
    *,
    most_bytes: float = math.inf,
    most_loss: float = math.inf,
) -> list[str]:
    """Choose a type for each part: the least loss within a budget of bytes, or the fewest bytes.

    Losses of parts are taken to add up. All parts begin with their fewest bytes; then the one whose
    loss falls most per byte is widened, again and again, until the bytes are spent or the loss is
    small enough. Only what lies on the convex hull of a part's choices is ever taken.

    Args:
        parts: choices of each part by type.
        most_bytes: budget of bytes of all parts; infinite when the loss is given.
        most_loss: largest loss of all parts; infinite when the bytes are given.

    Returns:
        The type of each part.

    Raises:
        InfeasibleError: even the fewest bytes are too many.

    Source: Shoham and Gersho 1988 (IEEE TASSP 36(9), efficient bit allocation for an arbitrary set
        of quantizers); sensitivities as in Dong et al. 2019 (arXiv 1911.03852), measured here.
    """
    chosen = [min(part, key=lambda name: part[name].num_bytes) for part in parts]
    used = sum(part[name].num_bytes for part, name in zip(parts, chosen, strict=True))
    if used > most_bytes:
        raise InfeasibleError(
            f"the fewest bytes are {pretty(used, 'byte')}, and {pretty(most_bytes, 'byte')} are "
            "allowed",
            hint="allow more, or take a smaller model",
        )
    loss = sum(part[name].loss for part, name in zip(parts, chosen, strict=True))
    while most_loss == math.inf or loss > most_loss:
        left = math.inf if most_bytes == math.inf else most_bytes - used
        step = max(
            (
                (*_gain(part, chosen[place], name, left), place, name)
                for place, part in enumerate(parts)
                for name in part
            ),
            default=(0.0, 0, 0, ""),
        )
        rate, _, place, name = step
        if rate <= 0:
            return chosen
        before, after = parts[place][chosen[place]], parts[place][name]
        used += after.num_bytes - before.num_bytes
        loss += after.loss - before.loss
        chosen[place] = name
    return chosen


def _gain(part: Mapping[str, Choice], now: str, name: str, left: float) -> tuple[float, int]:
    """Return by how much the loss falls per byte, 0 where it does not, and the bytes it takes."""
    more = part[name].num_bytes - part[now].num_bytes
    less = part[now].loss - part[name].loss
    if more <= 0 or more > left or less <= 0:
        return 0.0, -more
    return less / more, -more
