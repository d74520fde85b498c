"""The cells of a study: one training run each, with the checkpoint it starts from.

A branch of T steps starts from its trunk's checkpoint at T (1 - c), with its weights, moments and
data position, and decays the rate over the last c T steps. The trunk goes on undisturbed, so k
lengths cost T_k (1 - c) + c (T_1 + ... + T_k) steps instead of their sum (Haegele et al. 2024,
arXiv 2405.18392, section 5).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from steelyard.catalog.parameters import count_parameters
from steelyard.errors import ConfigError
from steelyard.laws.decisions.branches import Branch
from steelyard.train.config import TrainConfig
from steelyard.train.estimator_config import Schedule
from steelyard.train.study.recipe import StudyRecipe

__all__ = ["Cell", "branches", "rung_cells", "study_cells"]

_MIN_COOLDOWN_STEPS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run of a study.

    Attributes:
        folder: where it stands below the study's folder, such as "96x3/cooldown-000400".
        config: the run.
        trunk: folder of the run it branches off; empty for a run from the beginning.
        start: step of the trunk it starts from; 0 for a run from the beginning.
        is_trunk: whether others branch off it: its own end is not annealed, and no result of the
            study.
        pool: folder below the data's that it trains on; empty for the data's own.
    """

    folder: str
    config: TrainConfig
    trunk: str = ""
    start: int = 0
    is_trunk: bool = False
    pool: str = ""

    @property
    def start_file(self) -> str:
        """Tensors file of the start below the study's folder; empty for a run of its own."""
        return f"{self.trunk}/step-{self.start:08d}.safetensors" if self.start else ""

    @property
    def steps(self) -> int:
        """Steps that the cell trains itself."""
        return self.config.steps - self.start


def branches(
    cooldown_at: list[int], *, cooldown_fraction: float = 0.2, warmup_steps: int = 0
) -> list[Branch[int]]:
    """Place the branches of a rung.

    Args:
        cooldown_at: training lengths in steps, in any order, repeats dropped.
        cooldown_fraction: part of each length that cools down, in (0, 1]; at least 10 steps are
            used where the length has them.
        warmup_steps: branches may not start before the warm-up ends.

    Returns:
        Branches by ascending length, in whole steps.

    Raises:
        ConfigError: no length, a fraction outside (0, 1], or a length too short for its warm-up and
            cooldown.
    """
    if not cooldown_at or not 0 < cooldown_fraction <= 1:
        raise ConfigError(
            f"cooldown_at = {cooldown_at} needs at least one length, cooldown_fraction = "
            f"{cooldown_fraction} must lie in (0, 1]"
        )
    found = []
    for steps in sorted(set(cooldown_at)):
        cooldown = max(round(steps * cooldown_fraction), min(_MIN_COOLDOWN_STEPS, steps))
        if steps - cooldown < warmup_steps or steps < 1:
            raise ConfigError(
                f"a length of {steps} steps has no room for {warmup_steps} warm-up and {cooldown} "
                f"cooldown steps",
                hint="lengthen it, or shorten the warm-up or the cooldown",
            )
        found.append(Branch(steps, steps - cooldown))
    return found


def rung_cells(
    config: TrainConfig,
    cooldown_at: list[int],
    *,
    cooldown_fractions: tuple[float, ...] = (0.2,),
    schedules: tuple[Schedule, ...] = (),
    folder: str = "",
    pool: str = "",
) -> list[Cell]:
    """Return the runs of one model: its trunk with its branches, and runs that have no trunk.

    Args:
        config: the model and optimizer; `steps`, `cooldown_steps`, `schedule` and `checkpoint_at`
            are set per run.
        cooldown_at: training lengths in steps.
        cooldown_fractions: parts of each length that cool down; (0,) for one run at a constant rate
            as long as the longest length.
        schedules: shapes of the cooldown; empty for the one of `config`.
        folder: where they stand below the study's folder.
        pool: what they train on.

    Returns:
        The cells, the trunk first, then shape by shape, fraction by fraction, length by length.

    Raises:
        ConfigError: a length has no room for warm-up and cooldown.
    """
    head = f"{folder}/" if folder else ""
    shapes = schedules or (_shape_of(config),)
    constant = replace(config, cooldown_steps=0, schedule=_shape_of(config))
    if cooldown_fractions == (0,):
        whole = replace(constant, steps=max(cooldown_at))
        return [Cell(folder=f"{head}constant-{whole.steps:06d}", config=whole, pool=pool)]
    placed = {
        fraction: branches(
            cooldown_at, cooldown_fraction=fraction, warmup_steps=config.warmup_steps
        )
        for fraction in cooldown_fractions
    }
    starts = {branch.start for found in placed.values() for branch in found if branch.start}
    # A schedule that knows its length from the first step has nothing to branch off.
    cooled = [shape for shape in shapes if shape != "cosine"]
    found = []
    # A branch that starts at 0 is all cooldown and has no part of the trunk.
    if starts and cooled:
        # Averages of the trunk are held against runs cooled down at the same length.
        end = max(cooldown_at) if config.averages else max(starts)
        trunk = replace(constant, steps=end, checkpoint_at=tuple(sorted(starts)))
        found.append(Cell(folder=f"{head}trunk", config=trunk, is_trunk=True, pool=pool))
    for shape in cooled:
        for fraction, ends in placed.items():
            # What there is one of is not named: folders of before there were several go on.
            words = ["cooldown"] + [shape] * (len(shapes) > 1)
            words += [f"{fraction:g}"] * (len(placed) > 1)
            name = "-".join(words)
            bare = replace(constant, schedule=shape, averages=())
            found += [_branch(head, name, bare, branch, pool) for branch in ends]
    if len(cooled) < len(shapes):
        found += _whole(replace(config, schedule="cosine", averages=()), cooldown_at, head, pool)
    return found


def _shape_of(config: TrainConfig) -> Schedule:
    """Return the shape of a model's cooldowns."""
    # A cosine and multipliers of one's own know their length from the first step: the trunk of a
    # rung takes the best cooldown instead.
    schedule = config.schedule
    return schedule if isinstance(schedule, str) and schedule != "cosine" else "1-sqrt"


def _branch(head: str, name: str, bare: TrainConfig, branch: Branch[int], pool: str) -> Cell:
    """Return the run that cools down at one length."""
    cooled = replace(
        bare,
        steps=branch.length,
        cooldown_steps=branch.length - branch.start,
        checkpoint_at=(),
        eval_every=0,
    )
    return Cell(
        # Six digits, so that a folder keeps its name when another call asks for longer runs.
        folder=f"{head}{name}-{branch.length:06d}",
        config=cooled,
        trunk=f"{head}trunk" if branch.start else "",
        start=branch.start,
        pool=pool,
    )


def _whole(config: TrainConfig, lengths: list[int], head: str, pool: str) -> list[Cell]:
    """Return a run of its own for every length."""
    bare = replace(config, cooldown_steps=0, eval_every=0)
    return [
        Cell(folder=f"{head}whole-{steps:06d}", config=replace(bare, steps=steps), pool=pool)
        for steps in sorted(set(lengths))
    ]


def study_cells(recipe: StudyRecipe) -> list[Cell]:
    """Return all cells of a study, model by model.

    Args:
        recipe: the study.

    Returns:
        The cells; a trunk stands before its branches.

    Raises:
        ConfigError: lengths that some model cannot have, all of them listed.
    """
    found: list[Cell] = []
    wrong: list[str] = []
    crossed = itertools.product(
        recipe.architectures(), recipe.batch_sizes or (recipe.train.batch_size,)
    )
    for architecture, batch_size in crossed:
        config = recipe.model_config(architecture, batch_size)
        lengths = _lengths(recipe, config)
        if lengths[-1] > config.steps or lengths[0] < 1:
            wrong.append(f"{architecture.name} would run {lengths[0]:,} to {lengths[-1]:,} steps")
            continue
        for name, own, pool in _models(recipe, config):
            found += rung_cells(
                own,
                lengths,
                cooldown_fractions=recipe.cooldown_fractions,
                schedules=recipe.schedules or (recipe.train.schedule,),  # pyright: ignore[reportArgumentType]
                folder=name,
                pool=pool,
            )
    if wrong:
        raise ConfigError(
            f"{'; '.join(wrong)}: lengths lie outside 1 to train.steps = {recipe.train.steps:,}",
            hint="raise [train] steps, or change tokens_per_parameter",
        )
    return found


def _models(recipe: StudyRecipe, config: TrainConfig) -> Iterator[tuple[str, TrainConfig, str]]:
    """Yield folder, recipe and pool of one architecture and batch: data, rates and seeds."""
    shape = config.architecture
    name = f"{shape.hidden_size}x{shape.num_layers}"
    name += f"-experts{shape.num_experts or 1}" if recipe.experts else ""
    name += f"-batch{config.batch_size}" if recipe.batch_sizes else ""
    crossed = itertools.product(
        recipe.unique_tokens or (config.unique_tokens,),
        recipe.pools or ("",),
        recipe.rate_factors,
        recipe.seeds or (config.seed,),
    )
    for unique, pool, factor, seed in crossed:
        # An axis of one value is not named: folders of before there was another go on.
        words = [f"unique{unique}"] * bool(recipe.unique_tokens) + [pool] * bool(pool)
        words += [f"rate{factor:g}"] * (len(recipe.rate_factors) > 1)
        words += [f"seed{seed}"] * (len(recipe.seeds) > 1)
        rate = config.learning_rate * factor
        own = replace(config, unique_tokens=unique, learning_rate=rate, seed=seed)
        yield "-".join([name, *words]), own, pool


def _lengths(recipe: StudyRecipe, config: TrainConfig) -> list[int]:
    """Return the lengths of one model in steps, ascending."""
    if not recipe.tokens_per_parameter:
        return [round(part * config.steps) for part in recipe.lengths]
    parameters = count_parameters(config.architecture).total
    return [
        round(ratio * parameters / config.tokens_per_step) for ratio in recipe.tokens_per_parameter
    ]
