"""Networks that forecast: the masked encoder, and the linear and recurrent ones beside it."""

from steelyard.operate.forecast.networks.config import EncoderConfig

__all__ = ["EncoderConfig"]
