"""What a study varies: sizes, lengths, learning rates and seeds around one training recipe."""

import itertools
from dataclasses import dataclass, replace

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError, require
from steelyard.train.config import TrainConfig
from steelyard.train.estimator_config import Schedule

__all__ = ["StudyRecipe", "resized"]

_DIFFERENT = {
    "seeds": "different numbers",
    "shapes": "different (width, layers) pairs",
    "pools": "different folders",
    "schedules": "different shapes",
}
_MLP_MULTIPLE = 32
"""Widths of resized MLPs are rounded up to this, as kernels like them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRecipe:
    """A study: every combination of sizes, learning rates and seeds, each at several lengths.

    Attributes:
        train: what all runs share. `steps` is the longest run; the architecture gives what `shapes`
            leave open. Its `cooldown_steps` and `checkpoint_at` must be left out. With `averages`
            trunks go on to the longest length, so that averages without a cooldown can be held
            against cooled-down runs wherever `eval_every` evaluates.
        shapes: (hidden_size, num_layers) of the models, small to large; empty for the one of
            `train`.
        experts: experts of the layers that have some, ascending; 1 is the dense model.
        batch_sizes: sequences per step, ascending; empty for that of `train`. Steps, warm-up and
            evaluations follow so that tokens stay the same, the rate follows the batch's root.
        unique_tokens: tokens that runs may use before they see them again, ascending; empty for
            what `train` says.
        pools: folders below the data's, each of token shards with the same tokenizer and held-out
            tokens; empty for the data's own.
        lengths: where each model is measured, as parts of `train.steps` in (0, 1], ascending.
        tokens_per_parameter: lengths by the size of each model instead: tokens over parameters,
            ascending; runs beyond `train.steps` are refused.
        rate_factors: factors of the learning rate to try.
        seeds: seeds of weights and data order; empty for the one of `train`.
        schedules: shapes of the cooldown, all of them off one trunk; "cosine" makes each length a
            run of its own. Empty for the one of `train`.
        cooldown_fractions: parts of each length that cool down, in (0, 1], ascending, all of them
            off one trunk; [0] for runs at a constant rate, evaluated on their way.

    Source: Haegele et al. 2024 (arXiv 2405.18392), section 5 (trunk and branches); Malladi et al.
    2022 (arXiv 2205.10287), section 5 (rate by the root of the batch).
    """

    train: TrainConfig
    shapes: tuple[tuple[int, int], ...] = ()
    experts: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    unique_tokens: tuple[int, ...] = ()
    pools: tuple[str, ...] = ()
    lengths: tuple[float, ...] = (1.0,)
    tokens_per_parameter: tuple[float, ...] = ()
    rate_factors: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    cooldown_fractions: tuple[float, ...] = (0.2,)

    def __post_init__(self) -> None:
        """Refuse what no study can be.

        Raises:
            ConfigError: a list is not ascending or out of range, or `train` sets what the study
                sets.
        """
        fractions = self.cooldown_fractions
        require(
            self,
            lengths=(
                _ascending(self.lengths) and self.lengths[0] > 0 and self.lengths[-1] <= 1,
                "ascending parts of train.steps, above 0 and at most 1",
            ),
            tokens_per_parameter=(
                _counts(self.tokens_per_parameter),
                "ascending numbers above 0, such as [10, 20, 30]",
            ),
            rate_factors=(
                _ascending(self.rate_factors) and self.rate_factors[0] > 0,
                "ascending factors above 0, such as [0.5, 1, 2]",
            ),
            cooldown_fractions=(
                fractions == (0,)
                or (_ascending(fractions) and fractions[0] > 0 and fractions[-1] <= 1),
                "ascending parts in (0, 1], or [0] for a constant rate",
            ),
            batch_sizes=(_counts(self.batch_sizes), "ascending counts, such as [4, 16, 64]"),
            unique_tokens=(_counts(self.unique_tokens), "ascending counts of tokens"),
            experts=(
                _counts(self.experts)
                and (not self.experts or self.train.architecture.num_experts > 0),
                "ascending counts, and the architecture must have experts to take them from",
            ),
            **{
                name: (len({*getattr(self, name)}) == len(getattr(self, name)), words)
                for name, words in _DIFFERENT.items()
            },
        )
        train = self.train
        if train.cooldown_steps or train.checkpoint_at or not isinstance(train.schedule, str):
            raise ConfigError(
                "cooldown_steps, checkpoint_at and a schedule of multipliers belong to one run, "
                "and a study sets them for each",
                hint="leave them out of [train]; cooldown_fractions sets the cooldowns",
            )

    def architectures(self) -> tuple[Architecture, ...]:
        """Make the models.

        Returns:
            One architecture per shape, small to large.

        Raises:
            ConfigError: a shape does not divide into heads.
        """
        base = self.train.architecture
        sizes = tuple(resized(base, *shape) for shape in self.shapes) or (base,)
        return tuple(
            with_experts(size, count)
            for size in sizes
            for count in self.experts or (base.num_experts,)
        )

    def model_config(self, architecture: Architecture, batch_size: int = 0) -> TrainConfig:
        """Return the recipe of one model at the study's own rate.

        Args:
            architecture: one of `architectures`.
            batch_size: sequences per step; 0 for that of `train`.

        Returns:
            The recipe; its learning rate is that of `train`, times the width of its architecture
            over this one's, because the best rate of small models falls about as 1 / width, and
            times the root of the batch over this one's.
        """
        train = self.train
        rate = train.learning_rate * train.architecture.hidden_size / architecture.hidden_size
        # Small models' best rates fall about as 1 / width; of other batches as the root.
        if batch_size in (0, train.batch_size):
            return replace(train, architecture=architecture, learning_rate=rate)
        larger = batch_size / train.batch_size
        return replace(
            train,
            architecture=architecture,
            learning_rate=rate * larger**0.5,
            batch_size=batch_size,
            steps=max(round(train.steps / larger), 1),
            warmup_steps=round(train.warmup_steps / larger),
            eval_every=max(round(train.eval_every / larger), min(train.eval_every, 1)),
        )


def _counts(values: tuple[float, ...]) -> bool:
    """Return whether values, where there are any, are ascending and above 0."""
    return not values or (_ascending(values) and values[0] > 0)


def _ascending(values: tuple[float, ...]) -> bool:
    """Return whether there are values, each above the one before."""
    return bool(values) and all(one < two for one, two in itertools.pairwise(values))


def with_experts(base: Architecture, count: int) -> Architecture:
    """Return an architecture with so many experts where it has some; 1 for the dense one."""
    if count == base.num_experts:
        return base
    # Every trait of experts goes: a dense model that kept one would be refused.
    if count == 1:
        return replace(
            base,
            name=f"{base.name}-dense",
            num_experts=0,
            experts_per_token=0,
            num_shared_experts=0,
            moe_intermediate_size=0,
            router_bias=False,
            num_dense_layers=0,
            moe_every=1,
            router="softmax",
            capacity_factor=0.0,
        )
    return replace(base, name=f"{base.name}-{count}experts", num_experts=count)


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
    # Widths grow by whole groups of query heads, so that each key head keeps as many.
    group = base.num_heads // base.num_kv_heads
    unit = group * base.head_dim
    if num_layers < 1 or hidden_size < unit or hidden_size % unit:
        raise ConfigError(
            f"a model of width {hidden_size} and {num_layers} layers cannot be made of "
            f"{base.name!r}: its heads come in groups of {group} of {base.head_dim}",
            hint=f"take multiples of {unit}, and one layer or more",
        )
    return replace(
        base,
        name=f"{base.name}-{hidden_size}x{num_layers}",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // base.head_dim,
        num_kv_heads=hidden_size // unit,
        intermediate_size=_mlp_width(base.intermediate_size * hidden_size / base.hidden_size),
        moe_intermediate_size=_mlp_width(
            base.moe_intermediate_size * hidden_size / base.hidden_size
        ),
    )


def _mlp_width(wide: float) -> int:
    """Round the width of an MLP up to what kernels like."""
    return -(-int(wide) // _MLP_MULTIPLE) * _MLP_MULTIPLE
