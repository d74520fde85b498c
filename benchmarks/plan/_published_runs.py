"""Published training runs beside the forecasts of their throughput."""

import csv
import math
import zlib
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Cluster
from steelyard.cost.layout import Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import StepCost, training_step
from steelyard.plan.beliefs import part_shares
from steelyard.plan.intervals import step_relative

__all__ = [
    "CHIPS",
    "DEEPSPEED",
    "ROWS_FILE",
    "PublishedRun",
    "PublishedStep",
    "fitted_rings",
    "network_bytes_per_s",
    "published_machine",
    "published_rate",
    "published_runs",
    "read_step",
]

ROWS_FILE = (
    Path(__file__).parents[3]
    / "shared"
    / "data"
    / "training-throughput"
    / "training-throughput.csv"
)
_CHIPS = {
    "A100-SXM-80GB": ("A100-SXM4-80GB", 200e9),
    "A100-SXM-40GB": ("A100-SXM4-40GB", 200e9),
    "A100-PCIe-40GB": ("A100-PCIe-40GB", 25e9),
    "H100-SXM-80GB": ("H100-SXM5-80GB", 400e9),
    "H100-96GB-HBM2e-500W": ("H100-SXM5-80GB", 400e9),
}
"""Record of the catalog, and network bytes per second of a node of eight."""
CHIPS = _CHIPS | {
    "H100": ("H100-SXM5-80GB", 400e9),
    "H800-SXM-80GB": ("H800-SXM5-80GB", 400e9),
    "B200": ("B200-SXM-180GB", 400e9),
}
"""The same with chips of which no dense 16-bit row is known."""
_NEEDED = ("layers", "hidden", "heads", "vocab", "seq_len", "gpus", "micro_batch")
DEEPSPEED = "DeepSpeed ZeRO-3"
"""Software of the runs whose rings reach a share of the network."""
_RINGS_FITTED_ON = ("384", "640")
"""Accelerators of the runs of DeepSpeed that its rings' share is fitted on; they compute four times
as long for the same traffic as its other two."""
_ZERO = {"none": 0, "zero2": 2, "zero3": 3, "fsdp": 3, "fsdp2": 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedStep:
    """The step that a row measured.

    Attributes:
        arch: shape of the model.
        micro_batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step.
        layout: how the row lies over its accelerators.
        flash_attention: whether attention is fused, by the row's year.
    """

    arch: Architecture
    micro_batch: int
    sequence_length: int
    accumulation: float
    layout: Layout
    flash_attention: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PublishedRun:
    """One row with its forecast.

    Attributes:
        source: group of rows.
        step: what it measured.
        system: software that ran.
        chip: accelerator as the row names it.
        model: model as the row names it.
        accelerators: how many.
        forecast: forecast tokens per second and accelerator.
        published: published tokens per second and accelerator.
        is_fitted: whether the accelerator's factor may be fitted on it; the others are held out.
        shares: parts of the forecast step's time, [parts].
        relative: half-width of the 80 % interval that a plan would state.
    """

    source: str
    step: PublishedStep
    system: str
    chip: str
    model: str
    accelerators: int
    forecast: float
    published: float
    is_fitted: bool
    shares: NDArray[np.float64]
    relative: float


def published_runs() -> tuple[list[PublishedRun], int]:
    """Forecast every row of a dense 16-bit pre-training run with known chip and layout.

    Returns:
        The runs, half of them by a hash of the row's id to fit on, and the number of all rows.
        Nothing where the file is missing.
    """
    if not ROWS_FILE.exists():
        return [], 0
    rows = list(csv.DictReader(ROWS_FILE.read_text().splitlines()))
    rings = fitted_rings(rows)
    return [run for row in rows if (run := _run(row, rings)) is not None], len(rows)


def network_bytes_per_s(chip: str) -> float:
    """Return the network's rate of a node of eight of a chip, as rows name it."""
    return _CHIPS[chip][1]


def fitted_rings(rows: list[dict[str, str]]) -> float:
    """Fit the share of the network that DeepSpeed's rings reach, on two of its four runs.

    Args:
        rows: the published rows.

    Returns:
        The share with the least squares of logarithms of forecast over published.
    """
    own = [row for row in rows if row["system"] == DEEPSPEED and row["gpus"] in _RINGS_FITTED_ON]

    def loss(share: float) -> float:
        found = [run for row in own if (run := _run(row, share)) is not None]
        return sum(math.log(run.forecast / run.published) ** 2 for run in found)

    # Steps of 5 %.
    return min((1.05**-power for power in range(80)), key=loss)


def _run(row: dict[str, str], rings: float) -> PublishedRun | None:
    """Forecast one row; None where it is of another kind or lacks something."""
    is_dense = row["active_params_b"] in ("", row["params_b"])
    is_plain = row["task"] in ("", "pre-training") and row["precision"] in ("bf16", "fp16")
    if row["chip"] not in _CHIPS or not (is_dense and is_plain and not row["placement"]):
        return None
    # The ablation changes the model from row to row.
    if row["source"] == "megascale-ablation" or not all(row[name] for name in _NEEDED):
        return None
    step = read_step(row)
    if step is None:
        return None
    # The fields are the arguments of the cost model.
    settings = {item.name: getattr(step, item.name) for item in fields(step)}
    machine = published_machine(row["chip"], rings if row["system"] == DEEPSPEED else 1.0)
    cost = training_step(settings.pop("arch"), machine=machine, **settings)
    accelerators = int(row["gpus"])
    return PublishedRun(
        source=row["source"],
        step=step,
        system=row["system"],
        chip=row["chip"],
        model=row["model"],
        accelerators=accelerators,
        forecast=cost.tokens / cost.time_s / accelerators,
        published=published_rate(row, cost, accelerators),
        is_fitted=zlib.crc32(row["id"].encode()) % 2 == 0,
        shares=part_shares(cost)[0],
        relative=step_relative(machine, cost, step.arch),
    )


def published_rate(row: dict[str, str], cost: StepCost, accelerators: int) -> float:
    """Return the published tokens per second and accelerator, from whichever column has them."""
    if row["tokens_per_s_per_gpu"]:
        return float(row["tokens_per_s_per_gpu"])
    if row["tokens_per_s"]:
        return float(row["tokens_per_s"]) / accelerators
    if row["step_time_s"]:
        return cost.tokens / float(row["step_time_s"]) / accelerators
    work = cost.model_flops / cost.tokens
    if row["model_tflops_per_gpu"]:
        return 1e12 * float(row["model_tflops_per_gpu"]) / work
    return 1e12 * float(row["hw_tflops_per_gpu"]) * cost.mfu / cost.hfu / work


def _whole(row: dict[str, str], name: str, default: int) -> int:
    return int(float(row[name])) if row[name] else default


def read_step(row: dict[str, str]) -> PublishedStep | None:
    """Read the step of a row.

    Args:
        row: values by column.

    Returns:
        The step; None where its batch does not divide.
    """
    tensor, pipeline, context = (_whole(row, name, 1) for name in ("tp", "pp", "cp"))
    micro = _whole(row, "micro_batch", 1)
    data = int(row["gpus"]) // (tensor * pipeline * context)
    each = _whole(row, "grad_accum", 1) * micro
    steps = _whole(row, "global_batch", data * each) / max(data * micro, 1)
    if data < 1 or steps < 1:
        return None
    policy = row["recompute"] if row["recompute"] in ("selective", "full") else "none"
    stage = _ZERO.get(row["sharding"], 1) if data > 1 else 0
    # Under a pipeline gradients add up over all micro-batches before they are scattered.
    stage = min(stage, 1) if pipeline > 1 else stage
    return PublishedStep(
        arch=_architecture(row),
        micro_batch=micro,
        sequence_length=int(row["seq_len"]),
        accumulation=steps,
        layout=Layout(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            virtual_stages=_whole(row, "vpp", 1),
            zero_stage=stage,
            recompute=policy,
            sequence_parallel=row["sequence_parallel"] == "True",
        ),
        flash_attention=int(row["year"]) >= 2023,
    )


def _architecture(row: dict[str, str]) -> Architecture:
    """Return the shape of a row's model."""
    hidden, heads = int(row["hidden"]), int(row["heads"])
    is_llama = "lama" in row["model"].lower()
    return Architecture(
        name=row["model"],
        hidden_size=hidden,
        num_layers=int(row["layers"]),
        num_heads=heads,
        num_kv_heads=_whole(row, "kv_heads", heads),
        head_dim=hidden // heads,
        intermediate_size=_whole(row, "ffn", 8 * hidden // 3 if is_llama else 4 * hidden),
        vocab_size=int(float(row["vocab"])),
        mlp="swiglu" if is_llama else "gelu",
        position="none",
    )


@cache
def published_machine(chip: str, rings: float = 1.0, dtype: str = "bf16") -> Machine:
    """Return a chip in nodes of eight.

    Args:
        chip: its name in the rows, one of `CHIPS`.
        rings: share of the network that rings reach.
        dtype: number format of the products.

    Returns:
        The machine.
    """
    name, network = CHIPS[chip]
    accelerator = catalog.accelerator(name)
    node = Cluster(
        name="published",
        site="",
        year=accelerator.year,
        num_nodes=4096,
        accelerator=name,
        accelerators_per_node=8,
        scale_up_bytes_per_s=accelerator.scale_up_bytes_per_s,
        injection_bytes_per_s=network,
    )
    plain = Machine.from_accelerator(accelerator, dtype=dtype, cluster=node)
    return replace(plain, efficiencies=replace(plain.efficiencies, rings=rings))
