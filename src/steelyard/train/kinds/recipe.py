"""Which kind of run a recipe describes: a decoder, an encoder-decoder or a classifier of images."""

from pathlib import Path

from steelyard import config as configs
from steelyard.train.config import TrainConfig
from steelyard.train.kinds.config import ImagesConfig, PairsConfig

__all__ = ["load_recipe"]


def load_recipe(path: Path) -> TrainConfig | PairsConfig | ImagesConfig:
    """Read a recipe of any kind.

    A recipe with a `network` trains on images; one whose architecture is of kind "encoder-decoder"
    on pairs; every other a decoder.

    Args:
        path: TOML or JSON file.

    Returns:
        The run.

    Raises:
        ConfigError: the file is missing, not TOML or JSON, or does not fit its kind.
    """
    value = configs.read(path)
    if isinstance(value, dict) and "network" in value:
        return configs.convert(value, ImagesConfig, where=str(path))
    architecture = value.get("architecture") if isinstance(value, dict) else None
    is_pair = isinstance(architecture, dict) and architecture.get("kind") == "encoder-decoder"
    kind = PairsConfig if is_pair else TrainConfig
    return configs.convert(value, kind, where=str(path))
