"""A model on machines, and the schedule of overlapping pieces for it: planned or measured."""

from dataclasses import dataclass

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cost.optimal import optimal_throughput
from steelyard.cost.roofline import Machine
from steelyard.plan.machines import nodes_of
from steelyard.plan.overlap.interference import InterferenceTable, published_interference
from steelyard.plan.overlap.kernel_times import KernelTimes, RooflineKernels
from steelyard.plan.overlap.layers import ServedBatch, serving_layer
from steelyard.plan.overlap.schedule import OverlapSchedule
from steelyard.plan.overlap.search import search

__all__ = ["OverlapAnswer", "measured_overlap", "planned_overlap"]


@dataclass(frozen=True, kw_only=True)
class OverlapAnswer:
    """What `steelyard plan overlap` tells.

    Attributes:
        schedule: what was found.
        table: interference it was found with.
        source: where times of operations come from.
        tokens_per_s_per_device: prompt and output tokens, of the layers alone.
        optimum_tokens_per_s_per_device: the most if the bottleneck never idled; 0 where no rate of
            products was measured.
        ran_s: seconds of the layers as they ran, 0 where they did not.
        ran_in_turn_s: the same one operation after the other.
    """

    schedule: OverlapSchedule
    table: InterferenceTable
    source: str
    tokens_per_s_per_device: float
    optimum_tokens_per_s_per_device: float = 0.0
    ran_s: float = 0.0
    ran_in_turn_s: float = 0.0


def planned_overlap(
    arch: Architecture,
    accelerator: str,
    batch: ServedBatch,
    *,
    tensor_parallel: int = 1,
    max_nano: int = 4,
    kernels: KernelTimes | None = None,
    gemm_flops_per_s: float = 0.0,
) -> OverlapAnswer:
    """Plan overlap on an accelerator of the catalog.

    Args:
        arch: dense model.
        accelerator: catalog name.
        batch: tokens of an iteration.
        tensor_parallel: accelerators that share each layer.
        max_nano: most pieces of an operation.
        kernels: measured times; a roofline by default.
        gemm_flops_per_s: measured rate of large products, 0 when unknown.

    Returns:
        The schedule and what it reaches.

    Raises:
        CatalogError: the accelerator is unknown, or several of it have no known link.
        ConfigError: the model or batch cannot be cut.
        CapacityError: an optimum was asked for, and the model does not fit.
    """
    record = catalog.accelerator(accelerator)
    machine = Machine.from_accelerator(record, cluster=nodes_of(record, max(8, tensor_parallel)))
    times = kernels or RooflineKernels(machine=machine, head_dim=arch.head_dim)
    table = published_interference(accelerator)
    layer = serving_layer(arch, times, batch, tensor_parallel=tensor_parallel)
    found = search(layer, table, max_nano)
    optimum = 0.0
    if gemm_flops_per_s:
        optimum = optimal_throughput(
            arch,
            machine,
            prompt_tokens=batch.prompt_tokens,
            output_tokens=batch.output_tokens,
            tensor_parallel=tensor_parallel,
            gemm_flops_per_s=gemm_flops_per_s,
            max_dense_tokens=batch.tokens,
        ).tokens_per_s_per_device
    return OverlapAnswer(
        schedule=found,
        table=table,
        source=times.source,
        tokens_per_s_per_device=batch.tokens / found.iteration_s / tensor_parallel,
        optimum_tokens_per_s_per_device=optimum,
    )


def measured_overlap(
    arch: Architecture, batch: ServedBatch, *, max_nano: int = 4, rounds: int = 5, seed: int = 0
) -> OverlapAnswer:
    """Measure times and interference on this machine, search, and run what was found.

    Two layers of random weights decode on two cores.

    Args:
        arch: dense model; its sizes count.
        batch: all of its tokens decode.
        max_nano: most pieces of an operation.
        rounds: timed runs; the median counts.
        seed: seed of weights and keys.

    Returns:
        The schedule, with measured seconds beside it.

    Raises:
        ConfigError: the model or batch cannot be cut.
        CapacityError: it would take more memory than 4 GB.
    """
    from statistics import median

    import torch

    from steelyard.plan.overlap.processor import decoding_layer
    from steelyard.plan.overlap.threads import (
        measured_graph,
        profile,
        run_in_turn,
        run_schedule,
        tried,
    )

    layers = 2
    work = decoding_layer(
        arch,
        tokens=batch.tokens,
        context=max(1, round(batch.context)),
        generator=torch.Generator().manual_seed(seed),
        num_layers=layers,
    )
    unit = max(1, batch.tokens // 8)
    graph = measured_graph(work, tokens=batch.tokens, unit=unit, num_layers=layers)
    table = profile(work, tokens=max(unit, batch.tokens // 2))
    found = tried(search(graph, table, max_nano), graph, work)
    ran, turns = [], []
    # In turn, so that a disturbance of the machine hits both alike.
    for _ in range(rounds):
        ran += run_schedule(found, work)
        turns += run_in_turn(graph, layers, work)
    return OverlapAnswer(
        schedule=found,
        table=table,
        source="measured on this machine",
        tokens_per_s_per_device=batch.tokens / median(ran) * layers / arch.num_layers,
        ran_s=median(ran),
        ran_in_turn_s=median(turns),
    )
