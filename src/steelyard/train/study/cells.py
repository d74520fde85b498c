"""The cells of a study: one training run each, with the checkpoint it starts from."""

import itertools
from dataclasses import dataclass, replace

from steelyard.catalog.parameters import count_parameters
from steelyard.errors import ConfigError
from steelyard.laws.decisions.branches import Branch
from steelyard.train.config import TrainConfig
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
    """

    folder: str
    config: TrainConfig
    trunk: str = ""
    start: int = 0
    is_trunk: bool = False

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
    config: TrainConfig, cooldown_at: list[int], *, cooldown_fraction: float = 0.2, folder: str = ""
) -> list[Cell]:
    """Return the trunk of one model and its branches, by ascending length.

    Args:
        config: the model and optimizer; `steps`, `cooldown_steps`, `schedule` and `checkpoint_at`
            are set per run.
        cooldown_at: training lengths in steps.
        cooldown_fraction: part of each length that cools down.
        folder: where they stand below the study's folder.

    Returns:
        The cells, the trunk first.

    Raises:
        ConfigError: a length has no room for warm-up and cooldown.
    """
    placed = branches(
        cooldown_at, cooldown_fraction=cooldown_fraction, warmup_steps=config.warmup_steps
    )
    head = f"{folder}/" if folder else ""
    starts = tuple(sorted({branch.start for branch in placed if branch.start}))
    # A cosine and multipliers of one's own know their length from the first step: the trunk of a
    # rung takes the best cooldown instead.
    is_cooldown = isinstance(config.schedule, str) and config.schedule != "cosine"
    shape = config.schedule if is_cooldown else "1-sqrt"
    constant = replace(config, cooldown_steps=0, schedule=shape)
    found = []
    # A branch that starts at 0 is all cooldown and has no part of the trunk.
    if starts:
        trunk = replace(constant, steps=starts[-1], checkpoint_at=starts)
        found.append(Cell(folder=f"{head}trunk", config=trunk, is_trunk=True))
    # At least 6 digits, so that a folder keeps its name when another call asks for longer runs.
    width = max(6, len(str(placed[-1].length)))
    for branch in placed:
        cooled = replace(
            constant,
            steps=branch.length,
            cooldown_steps=branch.length - branch.start,
            checkpoint_at=(),
            eval_every=0,
        )
        found.append(
            Cell(
                folder=f"{head}cooldown-{branch.length:0{width}d}",
                config=cooled,
                trunk=f"{head}trunk" if branch.start else "",
                start=branch.start,
            )
        )
    return found


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
    seeds = recipe.seeds or (recipe.train.seed,)
    for architecture in recipe.architectures():
        config = recipe.model_config(architecture)
        lengths = _lengths(recipe, config)
        if lengths[-1] > recipe.train.steps or lengths[0] < 1:
            wrong.append(f"{architecture.name} would run {lengths[0]:,} to {lengths[-1]:,} steps")
            continue
        for factor, seed in itertools.product(recipe.rate_factors, seeds):
            own = replace(config, learning_rate=config.learning_rate * factor, seed=seed)
            name = f"{architecture.hidden_size}x{architecture.num_layers}"
            name += f"-rate{factor:g}" if len(recipe.rate_factors) > 1 else ""
            name += f"-seed{seed}" if len(seeds) > 1 else ""
            found += _model_cells(recipe, own, lengths, name)
    if wrong:
        raise ConfigError(
            f"{'; '.join(wrong)}: lengths lie outside 1 to train.steps = {recipe.train.steps:,}",
            hint="raise [train] steps, or change tokens_per_parameter",
        )
    return found


def _lengths(recipe: StudyRecipe, config: TrainConfig) -> list[int]:
    """Return the lengths of one model in steps, ascending."""
    if not recipe.tokens_per_parameter:
        return [round(part * recipe.train.steps) for part in recipe.lengths]
    parameters = count_parameters(config.architecture).total
    return [
        round(ratio * parameters / config.tokens_per_step) for ratio in recipe.tokens_per_parameter
    ]


def _model_cells(
    recipe: StudyRecipe, config: TrainConfig, lengths: list[int], name: str
) -> list[Cell]:
    """Return the runs of one model at one rate and seed."""
    if recipe.has_trunks:
        fraction = recipe.cooldown_fraction
        return rung_cells(config, lengths, cooldown_fraction=fraction, folder=name)
    # A schedule that knows its length from the first step has nothing to branch off.
    return [
        Cell(folder=f"{name}/whole-{steps:06d}", config=replace(config, steps=steps, eval_every=0))
        for steps in sorted(set(lengths))
    ]
