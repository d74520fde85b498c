"""Callbacks that measure a run while it trains: noise scale, update sizes, examples."""

from steelyard.train.measure.example_statistics import ExampleStatistics
from steelyard.train.measure.noise_scale import GradientNoiseScale
from steelyard.train.measure.update_sizes import UpdateSizes

__all__ = ["ExampleStatistics", "GradientNoiseScale", "UpdateSizes"]
