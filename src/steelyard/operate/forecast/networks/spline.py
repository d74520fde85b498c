"""A monotone map of the line made of rational quadratic pieces, exact both ways."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["BINS", "SPLINE_WIDTH", "bend", "unbend"]

BINS = 8
SPLINE_WIDTH = 3 * BINS - 1
"""Numbers that say a spline: widths and heights of the pieces, slopes at the inner knots."""
_REACH = 4.0
"""The pieces cover [-4, 4]; beyond them the map is the identity."""
_LEAST = 1e-2
_UNIT_SLOPE = 0.5413
"""softplus of it is 1, so that numbers of 0 make the identity."""


class _Knots(NamedTuple):
    """Places of the knots on both axes [..., BINS + 1], and the slopes there."""

    x: Tensor
    y: Tensor
    slope: Tensor


def _knots(numbers: Tensor) -> _Knots:
    """Turn free numbers [..., SPLINE_WIDTH] to knots in ascending order."""
    wide, high, slopes = numbers.split((BINS, BINS, BINS - 1), -1)
    places = []
    for part in (wide, high):
        share = _LEAST + (1 - _LEAST * BINS) * part.softmax(-1)
        inner = 2 * _REACH * share.cumsum(-1)[..., :-1] - _REACH
        # The ends are set, not summed: rounding would leave a gap to the tails.
        places.append(F.pad(F.pad(inner, (1, 0), value=-_REACH), (0, 1), value=_REACH))
    inner = _LEAST + (1 - _LEAST) * F.softplus(slopes + _UNIT_SLOPE)
    # A slope of 1 at both ends joins the identity of the tails without a kink.
    return _Knots(places[0], places[1], F.pad(inner, (1, 1), value=1.0))


class _Piece(NamedTuple):
    """The piece that each value lies in: its beginnings, sizes, and slopes at both ends."""

    x: Tensor
    y: Tensor
    wide: Tensor
    high: Tensor
    first: Tensor
    last: Tensor

    def at(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return the height above `y` and the slope at a share of the width."""
        mean = self.high / self.wide
        cross = share * (1 - share)
        below = mean + (self.last + self.first - 2 * mean) * cross
        height = self.high * (mean * share**2 + self.first * cross) / below
        slope = self.last * share**2 + 2 * mean * cross + self.first * (1 - share) ** 2
        return height, mean**2 * slope / below**2

    def share(self, height: Tensor) -> Tensor:
        """Return the share of the width at which a height above `y` is reached."""
        mean = self.high / self.wide
        bent = height * (self.last + self.first - 2 * mean)
        square = self.high * (mean - self.first) + bent
        linear = self.high * self.first - bent
        # This form of the root loses no digits where the square term vanishes.
        root = (linear**2 + 4 * square * mean * height).clamp(min=0).sqrt()
        return 2 * mean * height / (linear + root)


def _piece(knots: _Knots, places: Tensor, inside: Tensor) -> _Piece:
    """Find the piece of each value [...] on one axis, whose knots are `places`."""
    index = torch.searchsorted(places[..., 1:-1].contiguous(), inside.unsqueeze(-1))

    def take(part: Tensor, offset: int = 0) -> Tensor:
        return part.gather(-1, index + offset).squeeze(-1)

    x, y = take(knots.x), take(knots.y)
    wide, high = take(knots.x, 1) - x, take(knots.y, 1) - y
    return _Piece(x, y, wide, high, take(knots.slope), take(knots.slope, 1))


def bend(base: Tensor, numbers: Tensor) -> Tensor:
    """Map from the base to the data.

    Args:
        base: [...].
        numbers: the spline of each [..., SPLINE_WIDTH].

    Returns:
        Values [...], ascending in `base`.

    Source: Durkan et al. 2019 (arXiv 1906.04032), equation 4.
    """
    knots, inside = _knots(numbers), base.clamp(-_REACH, _REACH)
    piece = _piece(knots, knots.x, inside)
    height, _ = piece.at((inside - piece.x) / piece.wide)
    return torch.where(base.abs() < _REACH, piece.y + height, base)


def unbend(values: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Map from the data to the base.

    Args:
        values: [...].
        numbers: the spline of each [..., SPLINE_WIDTH].

    Returns:
        Base [...], and the logarithm of its derivative by the value.

    Source: Durkan et al. 2019 (arXiv 1906.04032), equations 5 to 8.
    """
    knots, inside = _knots(numbers), values.clamp(-_REACH, _REACH)
    piece = _piece(knots, knots.y, inside)
    share = piece.share(inside - piece.y)
    _, slope = piece.at(share)
    is_in = values.abs() < _REACH
    base = torch.where(is_in, piece.x + share * piece.wide, values)
    return base, torch.where(is_in, -slope.log(), torch.zeros_like(values))
