"""One model size of a scaling study: a constant-rate trunk and a cooled-down branch per length.

A branch of T steps starts from the trunk's checkpoint at T (1 - c), with its weights, moments and
data position, and decays the rate over the last c T steps. The trunk goes on undisturbed, so k
lengths cost T_k (1 - c) + c (T_1 + ... + T_k) steps instead of their sum.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from steelyard.errors import ConfigError
from steelyard.laws.decisions.branches import Branch, trained_in_all
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.source import TokenSource

__all__ = ["branches", "ladder_tokens", "run_ladder_rung"]

_MIN_COOLDOWN_STEPS = 10
Launch = Callable[[TrainConfig, Path, Path | None], TrainResult]


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


def ladder_tokens(
    config: TrainConfig, cooldown_at: list[int], *, cooldown_fraction: float = 0.2
) -> int:
    """Count the tokens a rung trains in all, trunk and branches.

    Source: Haegele et al. 2024 (arXiv 2405.18392), section 5 (cost of a study with branches).
    """
    placed = branches(
        cooldown_at, cooldown_fraction=cooldown_fraction, warmup_steps=config.warmup_steps
    )
    return config.tokens_per_step * round(trained_in_all(placed))


def run_ladder_rung(
    config: TrainConfig,
    cooldown_at: list[int],
    shards: TokenSource,
    directory: Path,
    *,
    cooldown_fraction: float = 0.2,
    on_step: Callable[[Progress], None] | None = None,
    launch: Launch | None = None,
) -> list[TrainResult]:
    """Train one model size at several lengths.

    Call again to go on after a kill, or to get the stored results.

    Args:
        config: the model and optimizer; `steps`, `cooldown_steps`, `schedule` and `checkpoint_at`
            are set per run.
        cooldown_at: training lengths in steps.
        shards: tokens to train and evaluate on.
        directory: holds `trunk` and one `cooldown-<steps>` folder per length.
        cooldown_fraction: part of each length that cools down.
        on_step: called after each step of any run.
        launch: trains a configuration into a folder from an optional start checkpoint; None trains
            in this process, `worker.launcher` makes one that uses fresh processes.

    Returns:
        One result per length, ascending. Their `tokens_run` plus those of the trunk are
        `ladder_tokens`.

    Raises:
        ConfigError: a length has no room for warm-up and cooldown, or a run diverged.
    """
    placed = branches(
        cooldown_at, cooldown_fraction=cooldown_fraction, warmup_steps=config.warmup_steps
    )
    directory = Path(directory)
    run = launch or _in_process(shards, on_step)
    trunk = directory / "trunk"
    starts = tuple(sorted({branch.start for branch in placed if branch.start}))
    constant = replace(config, cooldown_steps=0, schedule="1-sqrt")
    # A branch that starts at 0 is all cooldown and has no part of the trunk.
    if starts:
        run(replace(constant, steps=starts[-1], checkpoint_at=starts), trunk, None)
    # At least 6 digits, so that a folder keeps its name when another call asks for longer runs.
    width = max(6, len(str(placed[-1].length)))
    results = []
    for branch in placed:
        begin = trunk / f"step-{branch.start:08d}.safetensors" if branch.start else None
        cooled = replace(
            constant,
            steps=branch.length,
            cooldown_steps=branch.length - branch.start,
            checkpoint_at=(),
            eval_every=0,
        )
        folder = directory / f"cooldown-{branch.length:0{width}d}"
        results.append(run(cooled, folder, begin))
    return results


def _in_process(shards: TokenSource, on_step: Callable[[Progress], None] | None) -> Launch:
    """Make a launcher that trains here."""
    from steelyard.train.trainer import train

    return lambda config, directory, start_from: train(
        config, shards, directory, start_from=start_from, on_step=on_step
    )
