"""Predicted against published training throughput; skipped where the shared data is absent."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Cluster
from steelyard.cost import Layout, Machine, training_step

SHARED = Path(
    os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[2] / ".." / "shared")
)
TABLE = SHARED / "data" / "training-throughput" / "training-throughput.csv"
FITTED = {"llm-foundry", "torchtitan"}
CHIPS = {"A100-SXM": (312e12, 2.039e12, 300e9, 200e9), "H100": (989.4e12, 3.35e12, 450e9, 400e9)}
NEEDED = ("layers", "hidden", "heads", "vocab", "seq_len", "gpus", "micro_batch")


def machine(chip: str) -> Machine | None:
    for name, (peak, memory, link, network) in CHIPS.items():
        if chip.startswith(name):
            accelerator = Accelerator(
                name=name,
                vendor="NVIDIA",
                kind="gpu",
                year=2020,
                peak_flops_per_s={"bf16": peak},
                memory_bytes=80e9,
                memory_bytes_per_s=memory,
                scale_up_bytes_per_s=link,
            )
            node = Cluster(
                name="node",
                site="",
                year=2020,
                num_nodes=1,
                accelerator=name,
                accelerators_per_node=8,
                scale_up_bytes_per_s=link,
                injection_bytes_per_s=network,
            )
            return Machine.from_accelerator(accelerator, cluster=node)
    return None


def ratio(row: dict[str, str]) -> float | None:
    """Return predicted over published throughput; None unless dense and of known layout."""
    device = machine(row["chip"])
    dense = not row["active_params_b"] or row["active_params_b"] == row["params_b"]
    plain = (
        row["task"] in ("", "pre-training")
        and row["precision"] in ("", "bf16", "fp16")
        and (row["ep"] or "1") == (row["cp"] or "1") == "1"
    )
    if device is None or not (dense and plain and all(row[name] for name in NEEDED)):
        return None

    def whole(name: str, default: int = 1) -> int:
        return int(float(row[name])) if row[name] else default

    hidden, llama = whole("hidden"), "lama" in row["model"].lower()
    arch = Architecture(
        name=row["model"],
        hidden_size=hidden,
        num_layers=whole("layers"),
        num_heads=whole("heads"),
        num_kv_heads=whole("kv_heads", whole("heads")),
        head_dim=hidden // whole("heads"),
        intermediate_size=whole("ffn", 8 * hidden // 3 if llama else 4 * hidden),
        vocab_size=whole("vocab"),
        mlp="swiglu" if llama else "gelu",
        position="none",
    )
    tensor, pipeline, micro = whole("tp"), whole("pp"), whole("micro_batch")
    data = whole("gpus") // (tensor * pipeline)
    steps = (whole("global_batch", 0) or data * micro * whole("grad_accum")) / (data * micro)
    if steps < 1:
        return None
    recompute = row["recompute"] if row["recompute"] in ("none", "selective", "full") else "none"
    zero = {"zero2": 2, "zero3": 3, "fsdp": 3}.get(row["sharding"], 1) if data > 1 else 0
    layout = Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        zero_stage=zero,
        recompute=recompute,
        sequence_parallel=row["sequence_parallel"] == "True",
    )
    step = training_step(
        arch,
        machine=device,
        micro_batch=micro,
        sequence_length=whole("seq_len"),
        accumulation=steps,
        layout=layout,
        flash_attention=int(row["year"]) >= 2023,
    )
    published = float(row["tokens_per_s_per_gpu"] or 0)
    if not published and row["tokens_per_s"]:
        published = float(row["tokens_per_s"]) / whole("gpus")
    if not published and row["step_time_s"]:
        published = step.tokens / float(row["step_time_s"]) / whole("gpus")
    if not published and row["hw_tflops_per_gpu"] and recompute == "full":
        published = float(row["hw_tflops_per_gpu"]) * 1e12 * 0.75 / (step.model_flops / step.tokens)
    return step.tokens / step.time_s / whole("gpus") / published if published else None


def ratios(rows: list[dict[str, str]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        value = ratio(row)
        if value is not None:
            found.setdefault(row["source"], []).append(value)
    return found


@pytest.fixture(scope="module")
def published() -> dict[str, list[float]]:
    if not TABLE.exists():
        pytest.skip("shared training-throughput data is absent")
    with TABLE.open() as stream:
        return ratios(list(csv.DictReader(stream)))


def test_runs_that_set_the_efficiencies(published):
    errors = np.abs(np.concatenate([published[source] for source in FITTED]) - 1)
    assert len(errors) > 100 and np.median(errors) < 0.12 and np.percentile(errors, 90) < 0.3


def test_runs_that_did_not(published):
    others = [
        value for source, values in published.items() if source not in FITTED for value in values
    ]
    assert len(others) > 20 and np.median(np.abs(np.array(others) - 1)) < 0.3
