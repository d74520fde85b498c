"""One model size of a scaling study: a constant-rate trunk and a cooled-down branch per length.

A branch of T steps starts from the trunk's checkpoint at T (1 - c), with its weights, moments and
data position, and decays the rate over the last c T steps. The trunk goes on undisturbed, so k
lengths cost T_k (1 - c) + c (T_1 + ... + T_k) steps instead of their sum.
"""

from collections.abc import Callable
from pathlib import Path

from steelyard.laws.decisions.branches import trained_in_all
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.source import TokenSource
from steelyard.train.study.cells import branches, rung_cells

__all__ = ["Launch", "ladder_tokens", "run_ladder_rung"]

Launch = Callable[[TrainConfig, Path, Path | None], TrainResult]


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
    run = launch or _in_process(shards, on_step)
    directory = Path(directory)
    results = []
    for cell in rung_cells(config, cooldown_at, cooldown_fractions=(cooldown_fraction,)):
        begin = directory / cell.start_file if cell.start else None
        result = run(cell.config, directory / cell.folder, begin)
        if not cell.is_trunk:
            results.append(result)
    return results


def _in_process(shards: TokenSource, on_step: Callable[[Progress], None] | None) -> Launch:
    """Make a launcher that trains here."""
    from steelyard.train.trainer import train

    return lambda config, directory, start_from: train(
        config, shards, directory, start_from=start_from, on_step=on_step
    )
