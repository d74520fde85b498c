"""The masked encoder: one pass forecasts all steps of the horizon."""

from steelyard.operate.forecast.encoder.config import EncoderConfig

__all__ = ["EncoderConfig"]
