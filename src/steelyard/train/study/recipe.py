"""What a study varies: sizes, lengths, learning rates and seeds around one training recipe."""

import itertools
from dataclasses import dataclass, replace

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError, require
from steelyard.train.config import TrainConfig

__all__ = ["StudyRecipe", "resized"]

_MLP_MULTIPLE = 32
"""Widths of resized MLPs are rounded up to this, as kernels like them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRecipe:
    """A study: every combination of sizes, learning rates and seeds, each at several lengths.

    Attributes:
        train: what all runs share. `steps` is the longest run; the architecture gives what `shapes`
            leave open; with a schedule of cooldowns each model is one trunk with a branch per
            length, with "cosine" each length is a run of its own. Its `cooldown_steps` and
            `checkpoint_at` must be left out.
        shapes: (hidden_size, num_layers) of the models, small to large; empty for the one of
            `train`.
        lengths: where each model is measured, as parts of `train.steps` in (0, 1], ascending.
        tokens_per_parameter: lengths by the size of each model instead: tokens over parameters,
            ascending; runs beyond `train.steps` are refused.
        rate_factors: factors of the learning rate to try.
        seeds: seeds of weights and data order; empty for the one of `train`.
        cooldown_fraction: part of each length that cools down, in (0, 1].

    Source: Haegele et al. 2024 (arXiv 2405.18392), section 5 (trunk and branches).
    """

    train: TrainConfig
    shapes: tuple[tuple[int, int], ...] = ()
    lengths: tuple[float, ...] = (1.0,)
    tokens_per_parameter: tuple[float, ...] = ()
    rate_factors: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = ()
    cooldown_fraction: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what no study can be.

        Raises:
            ConfigError: a list is not ascending or out of range, or `train` sets what the study
                sets.
        """
        require(
            self,
            lengths=(
                _ascending(self.lengths) and self.lengths[0] > 0 and self.lengths[-1] <= 1,
                "ascending parts of train.steps, above 0 and at most 1",
            ),
            tokens_per_parameter=(
                not self.tokens_per_parameter
                or (_ascending(self.tokens_per_parameter) and self.tokens_per_parameter[0] > 0),
                "ascending numbers above 0, such as [10, 20, 30]",
            ),
            rate_factors=(
                _ascending(self.rate_factors) and self.rate_factors[0] > 0,
                "ascending factors above 0, such as [0.5, 1, 2]",
            ),
            seeds=(len({*self.seeds}) == len(self.seeds), "different numbers"),
            shapes=(len({*self.shapes}) == len(self.shapes), "different (width, layers) pairs"),
            cooldown_fraction=(0 < self.cooldown_fraction <= 1, "in (0, 1]"),
        )
        train = self.train
        if train.cooldown_steps or train.checkpoint_at or not isinstance(train.schedule, str):
            raise ConfigError(
                "cooldown_steps, checkpoint_at and a schedule of multipliers belong to one run, "
                "and a study sets them for each",
                hint="leave them out of [train]; cooldown_fraction sets the cooldowns",
            )

    @property
    def has_trunks(self) -> bool:
        """Whether the lengths of a model branch off one run."""
        return self.train.schedule != "cosine"

    def architectures(self) -> tuple[Architecture, ...]:
        """Make the models.

        Returns:
            One architecture per shape, small to large.

        Raises:
            ConfigError: a shape does not divide into heads.
        """
        base = self.train.architecture
        return tuple(resized(base, *shape) for shape in self.shapes) or (base,)

    def model_config(self, architecture: Architecture) -> TrainConfig:
        """Return the recipe of one model at the study's own rate.

        Args:
            architecture: one of `architectures`.

        Returns:
            The recipe; its learning rate is that of `train`, times the width of its architecture
            over this one's: the best rate of small models falls about as 1 / width.
        """
        factor = self.train.architecture.hidden_size / architecture.hidden_size
        rate = self.train.learning_rate * factor
        return replace(self.train, architecture=architecture, learning_rate=rate)


def _ascending(values: tuple[float, ...]) -> bool:
    """Return whether there are values, each above the one before."""
    return bool(values) and all(one < two for one, two in itertools.pairwise(values))


def resized(base: Architecture, hidden_size: int, num_layers: int) -> Architecture:
    """Return an architecture of another width and depth, everything else in proportion.

    Args:
        base: gives the width of a head, the queries per key head, and the MLP's ratio.
        hidden_size: width, a multiple of what one key head and its queries take.
        num_layers: layers, at least 1.

    Returns:
        The architecture, named "<base>-<width>x<layers>"; its MLP's width is rounded up to 32.

    Raises:
        ConfigError: the width does not divide into heads, or there is no layer.
    """
    group = base.num_heads // base.num_kv_heads
    unit = group * base.head_dim
    if num_layers < 1 or hidden_size < unit or hidden_size % unit:
        raise ConfigError(
            f"a model of width {hidden_size} and {num_layers} layers cannot be made of "
            f"{base.name!r}: its heads come in groups of {group} of {base.head_dim}",
            hint=f"take multiples of {unit}, and one layer or more",
        )
    wide = base.intermediate_size * hidden_size / base.hidden_size
    return replace(
        base,
        name=f"{base.name}-{hidden_size}x{num_layers}",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // base.head_dim,
        num_kv_heads=hidden_size // unit,
        intermediate_size=-(-int(wide) // _MLP_MULTIPLE) * _MLP_MULTIPLE,
    )
