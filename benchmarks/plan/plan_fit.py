"""Memory that `plan fit` forecasts against what engine and trainer hold, and how fast it answers.

Each shape is served or trained at random weights in a fresh process, whose peak of resident memory
(the kernel's high-water mark, libraries and mapped files included) is compared with the forecast.
The forecast adds up tensors by reading the code; what a process holds without a model is measured
on a model of a few kilobytes, as `steelyard calibrate` does. The limit of freed blocks that the
trainer's C library keeps is the one that the trainer sets. Nothing was fitted to these shapes.
Beside it stands llmfit's published rule, which is of serving only.

At most 6 GB of memory and 4 GB of disk are used at a time.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import Check
from benchmarks.plan._answer_times import cold_s, own_work_s
from benchmarks.plan._llmfit_rule import llmfit_bytes

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.config import to_plain
from steelyard.cost import Machine, MemoryBreakdown, resident_training_memory
from steelyard.plan.fit import place
from steelyard.plan.idle import idle_bytes
from steelyard.plan.own import own_memory
from steelyard.plan.rates import Load

PAPER: list[str] = []
_BAR = 0.10
_COLD_S, _OWN_S = 1.5, 0.3
_SAMPLE = ("gpt2", "llama-3.1-8b", "qwen2.5-72b", "deepseek-v3", "mixtral-8x22b", "t5-large")
_NARROW = ("fp8", "int8", "int4")


@dataclass(frozen=True)
class _Shape:
    """A model and what is done with it."""

    use: Literal["serve", "train"]
    model: str
    dtype: Literal["fp32", "bf16"]
    batch: int
    sequence_length: int

    def __str__(self) -> str:
        """Name the shape in a check."""
        return f"{self.use} {self.model} {self.dtype} {self.batch} x {self.sequence_length}"


_QUICK = (
    _Shape("serve", "smollm-135m", "fp32", 2, 512),
    _Shape("train", "nano-50m", "fp32", 1, 256),
)
_SHAPES = (
    _Shape("serve", "gpt2", "fp32", 8, 1024),
    _Shape("serve", "smollm-360m", "fp32", 2, 2048),
    _Shape("serve", "qwen2.5-0.5b", "bf16", 4, 1024),
    _Shape("serve", "qwen2.5-1.5b", "bf16", 2, 512),
    _Shape("train", "nano-50m", "fp32", 4, 512),
    _Shape("train", "gpt2", "bf16", 2, 512),
    _Shape("train", "smollm-135m", "fp32", 1, 512),
    _Shape("train", "cerebras-gpt-256m", "fp32", 1, 256),
)


def run(quick: bool) -> list[Check]:
    """Measure every shape and every answer."""
    names = catalog.names("architectures")
    shapes, some = (_QUICK, names[::12]) if quick else (_SHAPES, names)
    return [
        *_memory_checks(shapes),
        Check("2 models of the catalog", float(len(names)), 100.0, "higher"),
        *_mark_checks(some),
        *_time_checks(some, quick),
    ]


def _architecture(name: str) -> Architecture:
    """Return a model of the catalog, or the small one that it lacks."""
    if name != "nano-50m":
        return catalog.architecture_by_name(name)
    return Architecture(
        name=name,
        hidden_size=512,
        num_layers=12,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=1536,
        vocab_size=32768,
    )


def _memory_checks(shapes: tuple[_Shape, ...]) -> list[Check]:
    """Compare forecast, llmfit's rule and measurement for every shape."""
    idle = idle_bytes()
    checks, ours, theirs = [], [], []
    for shape in shapes:
        arch = _architecture(shape.model)
        forecast = _forecast(shape, arch, idle)
        measured = _measured(shape, arch)
        ours.append(abs(forecast.total / measured - 1))
        line = f"{shape}: {measured / 1e9:.2f} GB, forecast {forecast.total / 1e9:.2f} GB"
        if shape.use == "serve":
            tokens = shape.batch * shape.sequence_length
            rule = llmfit_bytes(arch, shape.dtype, tokens=tokens)
            theirs.append(abs(rule / measured - 1))
            line += f", llmfit's rule {rule / 1e9:.2f} GB"
        print(line, flush=True)
        checks.append(Check(f"1 memory, {shape}: relative error", ours[-1], _BAR, "lower"))
    served = [error for error, shape in zip(ours, shapes, strict=True) if shape.use == "serve"]
    ratio = statistics.median(served) / statistics.median(theirs)
    return [*checks, Check("1 memory, served: median error over llmfit's", ratio, 1.0, "lower")]


def _forecast(shape: _Shape, arch: Architecture, idle: dict[str, float]) -> MemoryBreakdown:
    """Forecast as `plan fit` does, with the batch of the shape when training."""
    if shape.use == "train":
        return resident_training_memory(
            arch,
            batch=shape.batch,
            sequence_length=shape.sequence_length,
            dtype=shape.dtype,
            process_bytes=idle["trainer_process_bytes"],
        )
    load = Load(use="serve", context=shape.sequence_length, users=shape.batch)
    found = own_memory(arch, shape.dtype, load, {shape.dtype: _machine(idle)})
    assert found is not None
    return found


def _machine(idle: dict[str, float]) -> Machine:
    """Return a roofline that stands for this machine; only its memory is of interest here."""
    return Machine(
        name="this-machine",
        dtype="fp32",
        peak_flops_per_s=1e11,
        memory_bytes=1e12,
        memory_bytes_per_s=1e10,
        fused=False,
        provenance="measured",
        engine_process_bytes=idle["engine_process_bytes"],
        trainer_process_bytes=idle["trainer_process_bytes"],
    )


def _measured(shape: _Shape, arch: Architecture) -> float:
    """Return the peak of resident memory of a process that does what the shape says."""
    job: dict[str, Any] = {
        "architecture": to_plain(arch),
        "dtype": shape.dtype,
        "batch": shape.batch,
        "sequence_length": shape.sequence_length,
    }
    with tempfile.TemporaryDirectory(prefix="steelyard-plan-fit-") as folder:
        job["folder"] = str(Path(folder) / "model")
        if shape.use == "serve":
            _run_job(job | {"use": "write"})
        return float(_run_job(job | {"use": shape.use})["peak_bytes"])


def _run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a fresh process; what it says on standard error is passed on."""
    command = [sys.executable, "-m", "benchmarks.plan._resident_run", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _mark_checks(names: list[str]) -> list[Check]:
    """Count placements on a calibrated machine that claim an engine which there is not."""
    idle = {"engine_process_bytes": 4e8, "trainer_process_bytes": 4e8}
    machine = _machine(idle)
    record = catalog.accelerator("Xeon-8480+")
    unmarked = fitting = rated = 0
    for name in names:
        arch = catalog.architecture_by_name(name)
        placed = place(arch, [(record, {"fp32": machine, "bf16": machine})], weights=_NARROW)
        unmarked += sum(item.has_engine for item in placed)
        fitting += sum(item.fits for item in placed)
        rates = [item.tokens_per_s for item in placed if item.tokens_per_s]
        rated += sum(rate.low < rate.value < rate.high for rate in rates)
    return [
        Check("2 marks, narrow weights that claim an engine", float(unmarked), 0.0, "lower"),
        Check("2 marks, rates forecast with interval", rated / max(fitting, 1), 1.0, "higher"),
    ]


def _time_checks(names: list[str], quick: bool) -> list[Check]:
    """Time the answers: own work for every model, cold processes for a sample."""
    own = own_work_s(names)
    cold = cold_s([*_SAMPLE][: 2 if quick else None], rounds=1 if quick else 3)
    for what, (took, name) in own.items():
        print(f"own work of plan {what}: at most {took:.3f} s, {name}", flush=True)
    return [
        *(
            Check(f"3 own work, plan {what}: slowest model, s", took, _OWN_S, "lower")
            for what, (took, _) in own.items()
        ),
        *(
            Check(f"3 cold, plan {what}: slowest of a sample, s", took, _COLD_S, "lower")
            for what, took in cold.items()
        ),
    ]
