"""Runs of other kinds than decoders, on the same loop: encoder-decoders and image classifiers."""

from steelyard.train.kinds.config import ImagesConfig, PairsConfig, ResNetShape
from steelyard.train.kinds.recipe import load_recipe

__all__ = ["ImagesConfig", "PairsConfig", "ResNetShape", "load_recipe"]
