"""The tables of real runs that loss forecasts are scored on, read the same way for every one.

A table is one group of one family: runs that share data, recipe and evaluation set. Families are
what the leave-one-out of learned settings leaves out.
"""

import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from benchmarks.laws._shared import shared
from benchmarks.weigh._ladders import read_ladders
from numpy.typing import NDArray

from steelyard.laws.fitting.terms import Array

__all__ = ["Table", "read_tables"]

_DECADES = 2.0
_ROUTED_STEPS = 10_000
"""First evaluation of the routed models that is of a trained model."""

_ROUTED_TOKENS_PER_STEP = 2048 * 1024.0
"""Any constant: one batch for all, so that steps measure tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Runs of one group.

    Attributes:
        family: name of the family.
        name: family and group.
        inputs: parameters and tokens or samples, or one of them, natural units, [n].
        size: compute where it is known, else tokens, samples or parameters, [n].
        loss: measured, [n].
        runs: label of each row's run; rows of one run are checkpoints, [n].
        targets: rows that may be forecast; all but on ladders, whose larger run is the question.
    """

    family: str
    name: str
    inputs: dict[str, Array]
    size: Array
    loss: Array
    runs: NDArray[np.object_]
    targets: NDArray[np.bool_]


def read_tables() -> list[Table]:
    """Read every table whose runs span two decades in compute, or in data where it is missing."""
    found = [*_scaling_runs(), *_language(), *_curves(), *_images()]
    wide = [item for item in found if np.ptp(np.log10(item.size)) >= _DECADES]
    return [*wide, *_ladders()]


def _table(
    family: str, group: str, frame: pl.DataFrame, inputs: dict[str, str], loss: str, size: str = ""
) -> Table:
    """Make one table: `inputs` are columns by input; compute is their product unless `size`."""
    frame = frame.drop_nulls([*inputs.values(), loss])
    columns = {name: frame[column].to_numpy().astype(float) for name, column in inputs.items()}
    # A column that never varies is no axis.
    axes = {name: column for name, column in columns.items() if np.ptp(np.log(column)) > 0.05}
    known = (
        frame[size].to_numpy().astype(float) if size else np.prod(list(columns.values()), axis=0)
    )
    labels = frame["run_id"] if "run_id" in frame.columns else pl.Series(range(len(frame)))
    return Table(
        family=family,
        name=f"{family} {group}".strip(),
        inputs=axes,
        size=known,
        loss=frame[loss].to_numpy().astype(float),
        runs=labels.to_numpy().astype(object),
        targets=np.ones(len(frame), dtype=bool),
    )


def _scaling_runs() -> Iterator[Table]:
    """Read the families of scaling-runs, each group a table."""
    both = {"parameters": "parameters", "tokens": "tokens"}
    axes = {
        "gemstones": both,
        "olmo-ladder": both,
        "gpt3-curves": both,
        "opt-curves": both,
        "grammar": both,
        "lm-curves": both,
        "vision-curves": {"samples": "samples"},
        "translation-curves": {"samples": "samples"},
    }
    for family, inputs in axes.items():
        frame = pl.read_csv(shared("scaling-runs") / f"{family}.csv", infer_schema_length=None)
        if family == "olmo-ladder":
            # Only finished runs lie on one law; a rerun is the same run once more.
            frame = frame.filter(pl.col("is_final") == 1)
        size = "flops" if "flops" in frame.columns and frame["flops"].null_count() == 0 else ""
        for (group,), part in sorted(frame.group_by("group")):
            yield _table(family, str(group), part, inputs, "loss", size)


def _language() -> Iterator[Table]:
    """Read the finished runs of language models that other benchmarks use too."""
    both = {"parameters": "params", "tokens": "tokens"}
    frame = pl.read_csv(shared("overtrained-lm") / "runs.csv")
    for (group,), part in sorted(frame.group_by("train_set")):
        yield _table("overtrained-lm", str(group), part, both, "loss_c4_val")
    frame = pl.read_csv(shared("isoflop-refinedweb") / "isoflop_points.csv")
    keys = ["hparams", "warmup", "decay", "param_count", "eval_split"]
    for group, part in sorted(frame.group_by(keys)):
        yield _table("isoflop-refinedweb", " ".join(map(str, group)), part, both, "loss", "flops")
    frame = pl.read_csv(shared("datablations-losses") / "runs.csv")
    once = frame.filter((pl.col("epochs") <= 1) & pl.col("variant").is_null())
    yield _table("datablations-losses", "one epoch", once, both, "val_loss")
    for name, size in (("dense", "params"), ("moe", "active_params")):
        grid = pl.read_csv(shared("lr-batch-sweep") / f"{name}.csv")
        best = grid.group_by([size, "tokens"]).agg(pl.col("smooth_loss").min()).sort(size, "tokens")
        inputs = {"parameters": size, "tokens": "tokens"}
        yield _table("lr-batch-sweep", name, best, inputs, "smooth_loss")


def _curves() -> Iterator[Table]:
    """Read the curves of routed models by router and experts, and of fine-tuning by model."""
    with gzip.open(shared("routed-lm-curves") / "curves.csv.gz") as stream:
        frame = pl.read_csv(io.BytesIO(stream.read()))
    frame = frame.filter(
        (pl.col("k") == 1)
        & (pl.col("routing_frequency") == 0.5)
        & (pl.col("seed") == 42)
        & (pl.col("step") >= _ROUTED_STEPS)
    ).with_columns(
        tokens=pl.col("step") * _ROUTED_TOKENS_PER_STEP,
        flops=pl.col("step") * pl.col("flops_per_step"),
        run_id=pl.col("hyper_id"),
    )
    inputs = {"parameters": "dense_parameter_count", "tokens": "tokens"}
    for group, part in sorted(frame.group_by(["router_type", "num_experts"])):
        yield _table(
            "routed-lm-curves", " ".join(map(str, group)), part, inputs, "loss_validation", "flops"
        )
    for name in ("flan", "wmt19"):
        wide = pl.read_csv(shared("finetune-scaling") / f"{name}.csv")
        counts = [item for item in wide.columns if item.isdigit() and int(item)]
        for row in wide.sort("config name").iter_rows(named=True):
            part = pl.DataFrame(
                {
                    "samples": [float(item) for item in counts],
                    "loss": [row[item] for item in counts],
                }
            )
            group = f"{name} {row['config name']}"
            yield _table("finetune-scaling", group, part, {"samples": "samples"}, "loss")


def _images() -> Iterator[Table]:
    """Read the errors of image models: against samples seen, and against operations."""
    frame = pl.read_csv(shared("openclip-scaling") / "zeroshot_results.csv")
    frame = frame.filter(pl.col("downstream_dataset") == "imagenet1k").with_columns(
        error=1 - pl.col("acc1")
    )
    inputs = {"parameters": "gmacs", "samples": "samples_seen"}
    for (group,), part in sorted(frame.group_by("upstream_dataset")):
        yield _table("openclip-scaling", str(group), part, inputs, "error", "gmacs_total")
    frame = pl.read_csv(shared("convnet-zoo") / "convnet_zoo.csv").with_columns(
        family=pl.col("model").str.extract(r"^([A-Za-z]+)"), error=pl.col("top1_err") / 100
    )
    for (group,), part in sorted(frame.group_by("family")):
        yield _table("convnet-zoo", str(group), part.drop("family"), {"flops": "flops"}, "error")


def _ladders() -> Iterator[Table]:
    """Read the stored quickstart ladders; the larger run of each is its one question."""
    for item in read_ladders():
        points = [*item.points, item.target]
        parameters = np.array([float(point.parameters) for point in points])
        tokens = np.array([float(point.tokens) for point in points])
        yield Table(
            family="quickstart",
            name=f"quickstart {item.text} {item.seed}",
            inputs={"parameters": parameters, "tokens": tokens},
            size=parameters * tokens,
            loss=np.array([point.loss for point in points]),
            runs=np.arange(len(points)).astype(object),
            targets=np.arange(len(points)) == len(item.points),
        )
