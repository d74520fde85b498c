"""Recipes of this package's own trainer."""

from steelyard.config import convert, to_plain
from steelyard.cost.layout import Layout
from steelyard.plan.exports.job import Arrangement, TrainingJob, beyond, refuse
from steelyard.train.config import TrainConfig
from steelyard.train.parallel_config import ParallelConfig

__all__ = ["read_own", "to_own"]


def to_own(job: TrainingJob) -> TrainConfig:
    """Return the recipe that trains a job with this package's trainer.

    Args:
        job: model, batch and layout.

    Returns:
        The recipe; `torchrun ... -m steelyard train run` starts its processes.

    Raises:
        InfeasibleError: the trainer lacks what the layout needs; all is named.
    """
    layout = job.layout
    refuse("this package's trainer", _unknown(layout))
    # P1 cuts weights over "model", P2 over "data" too; A2 cuts the residual stream as well.
    partition = f"P{2 if layout.zero_stage == 3 else 1}A{2 if layout.sequence_parallel else 1}"
    is_spread = layout.tensor > 1 or layout.zero_stage == 3
    parallel = {"partition": partition, "model": layout.tensor} if is_spread else {}
    return TrainConfig(
        architecture=job.architecture,
        sequence_length=job.sequence_length,
        steps=job.steps,
        batch_size=job.arrangement.global_batch,
        accumulation=job.arrangement.accumulation * layout.data,
        learning_rate=job.learning_rate,
        warmup_steps=job.steps // 100,
        cooldown_steps=job.steps // 5,
        dtype="bf16" if job.dtype in ("bf16", "fp16") else "fp32",
        checkpoint_every=max(1, job.steps // 50),
        parallel=convert(parallel, ParallelConfig, where="parallel"),
    )


def read_own(recipe: TrainConfig, *, processes: int) -> Arrangement:
    """Read the layout of a recipe.

    Args:
        recipe: recipe of a run.
        processes: processes that it is started with.

    Returns:
        The layout with its batch.
    """
    plain = to_plain(recipe.parallel)
    tensor, partition = plain["model"], plain["partition"] or ""
    data = processes // tensor
    layout = Layout(
        data=data,
        tensor=tensor,
        zero_stage=3 if partition.startswith("P2") else 0,
        sequence_parallel=partition.endswith("A2"),
    )
    return Arrangement(
        layout=layout,
        micro_batch=recipe.batch_size // recipe.accumulation,
        accumulation=recipe.accumulation // data,
    )


def _unknown(layout: Layout) -> list[str]:
    """Name what of a layout the trainer lacks."""
    lacks = beyond(layout, {"data", "tensor", "zero_stage", "sequence_parallel"})
    if layout.zero_stage in (1, 2):
        lacks.append(f"ZeRO stage {layout.zero_stage}, only 0 and 3")
    return lacks
