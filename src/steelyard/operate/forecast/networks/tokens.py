"""What a masked encoder reads: scaled values, their lags of whole days, and what is known of each.

Scales come of the observed context alone, never of what is to be forecast, and a lag that lies in
the part to forecast, before the first value or in a hole is marked as unknown.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.operate.forecast.bounds import LEVELS
from steelyard.operate.forecast.networks.config import EncoderConfig

__all__ = ["Scaled", "recent_quantiles", "scale_windows", "tokens"]

RECENT = 24
"""Last values whose median and quantiles are the anchor."""
_FLOOR = 1e-4
_FARTHEST_READ = 1e3
"""Largest scaled value that is read; no inverse hyperbolic sine of a float comes near it."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Windows in a unit of their own.

    Attributes:
        values: float64 [B, T] scaled; NaN where nothing was observed.
        center: float64 [B, 1] what is 0 in that unit.
        scale: float64 [B, 1] what is 1.
        is_asinh: whether the inverse hyperbolic sine was taken.
    """

    values: Tensor
    center: Tensor
    scale: Tensor
    is_asinh: bool

    def forward(self, values: Tensor) -> Tensor:
        """Scale other values of the same windows [B, N]."""
        scaled = (values - self.center) / self.scale
        return scaled.asinh() if self.is_asinh else scaled

    def inverse(self, scaled: Tensor) -> Tensor:
        """Return the values [B, N] that such scaled ones stand for, in float64."""
        # exp(40) of the scale is far beyond every bound, and still a finite number.
        wide = scaled.double().clamp(-40, 40) if self.is_asinh else scaled.double()
        return (wide.sinh() if self.is_asinh else wide) * self.scale + self.center


def scale_windows(past: Tensor, config: EncoderConfig) -> Scaled:
    """Scale windows of the past.

    Args:
        past: float64 [B, T]; NaN where nothing was observed; each row has an observed value.
        config: kind of scaling and length of the context.

    Returns:
        The scaled windows.

    Source: Woo et al. 2023 (arXiv 2310.05063), section 5.1 ("standard").
    """
    context = past[:, -config.context_steps :]
    # A context of holes alone has no scale; then all that is known of the past gives it.
    blind = ~context.isfinite().any(1, keepdim=True)
    context = torch.where(blind, past[:, :1] * 0 + past.nanmean(1, keepdim=True), context)
    if config.scaling == "standard":
        center = context.nanmean(1, keepdim=True)
        scale = ((context - center) ** 2).nanmean(1, keepdim=True).sqrt()
    else:
        recent = context[:, -RECENT:]
        center = recent.nanmedian(1, keepdim=True).values
        center = torch.where(center.isnan(), context.nanmedian(1, keepdim=True).values, center)
        wide = (context - center).abs().nanmean(1, keepdim=True)
        near = (recent - center).abs().nanmean(1, keepdim=True).nan_to_num(0.0)
        # Between the spread of now and that of the day: a calm machine that had peaks is read
        # finely, and its peaks are still within reach.
        scale = torch.maximum((near * wide).sqrt(), 0.05 * wide)
    floor = _FLOOR * center.abs() + 1e-12
    scale = torch.maximum(scale, floor)
    values = (past - center) / scale
    is_asinh = config.scaling == "asinh"
    return Scaled(values.asinh() if is_asinh else values, center, scale, is_asinh)


def tokens(scaled: Tensor, seasons: Tensor, config: EncoderConfig) -> tuple[Tensor, Tensor]:
    """Lay scaled windows out as tokens of context and queries.

    Args:
        scaled: float32 [B, T] of the past, NaN where nothing was observed.
        seasons: steps of a day of each, int64 [B].
        config: context, horizon, patch and lags.

    Returns:
        Features [B, N, F], the queries last, with zeros in the place of their own values; and which
        tokens hold anything that is known, bool [B, N].
    """
    batch, past = scaled.shape
    context = config.context_steps
    if past < context:
        blank = scaled.new_full((batch, context - past), torch.nan)
        scaled, past = torch.cat((blank, scaled), 1), context
    ahead = scaled.new_full((batch, config.horizon), torch.nan)
    whole = torch.cat((scaled, ahead), 1)
    steps = torch.arange(past - context, past + config.horizon, device=scaled.device)
    parts = [whole[:, steps]]
    for season in config.seasons:
        places = steps[None] - season * seasons[:, None]
        found = whole.gather(1, places.clamp(min=0))
        parts.append(torch.where(places >= 0, found, torch.nan))
    series = torch.stack(parts, 2).unflatten(1, (-1, config.patch))  # [B, N, patch, 1 + lags]
    known = series.isfinite()
    # A lag from before a context that stands still may lie 1e20 of its deviations away, and the
    # square of that is no float32 any more.
    held = series.nan_to_num(0.0).clamp(-_FARTHEST_READ, _FARTHEST_READ)
    features = torch.cat((held, known.to(series.dtype)), -1).flatten(2)
    seen = known.flatten(2).any(2)
    seen[:, context // config.patch :] = True  # queries are always read
    return features, seen


def recent_quantiles(past: Tensor, scaled: Scaled) -> Tensor:
    """Return the quantiles at `LEVELS` of the last values, scaled.

    Args:
        past: float64 [B, T]; NaN where nothing was observed.
        scaled: the same windows, scaled.

    Returns:
        float32 [B, len(LEVELS)]; 0, the centre, where none of the last values was observed.
    """
    levels = torch.as_tensor(LEVELS, device=past.device)
    recent = past[:, -RECENT:].nanquantile(levels, dim=1).T
    return scaled.forward(torch.where(recent.isnan(), scaled.center, recent)).float()
