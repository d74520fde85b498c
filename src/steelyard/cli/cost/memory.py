"""`steelyard cost memory`: what training keeps on the fullest accelerator."""

from steelyard import catalog
from steelyard.cli.cost.subject import check_recompute, derived, parts_of, print_costs
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch
from steelyard.errors import ConfigError

__all__ = ["memory"]


def memory(
    *,
    model: str,
    batch: int = 1,
    sequence_length: int = 2048,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    zero_stage: int = 0,
    recompute: str = "none",
    json: Switch = False,
) -> None:
    """Forecast the memory of the fullest accelerator in mixed-precision training with AdamW.

    Args:
        model: catalog name of the architecture.
        batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        tensor: accelerators a layer is split over.
        pipeline: stages the layers are split over.
        data: data-parallel replicas.
        zero_stage: what the replicas shard: 0 nothing, 1 optimizer states, 2 gradients as well, 3
            weights as well.
        recompute: activations that the backward pass computes again: none, selective or full.
        json: print JSON.
    """
    check_recompute(recompute)
    if zero_stage not in range(4) or min(tensor, pipeline, data, batch, sequence_length) < 1:
        raise ConfigError("--zero-stage is 0 to 3; sizes and degrees are at least 1")
    from steelyard.cost import Layout, training_memory

    found = training_memory(
        catalog.architecture_by_name(model),
        layout=Layout(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            zero_stage=zero_stage,
            recompute=recompute,
            sequence_parallel=tensor > 1,
        ),
        batch=batch,
        sequence_length=sequence_length,
        accumulation=pipeline,  # enough micro-batches to fill every stage
    )
    said = "18 bytes per parameter and saved activations (arXiv 2205.05198)"
    names = ("weights", "gradients", "optimizer", "activations", "workspace")
    print_costs(
        f"Memory of training {model}",
        f"micro-batch {batch} x {sequence_length:,} tokens",
        [derived("plan.memory_per_accelerator", found.total, 0.15, said)],
        parts_of(found, "byte", *names),
        json=json,
    )
    if not json:
        say_next("plan", "fit", model, "--use", "train", "--context", sequence_length)
