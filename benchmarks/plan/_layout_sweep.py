"""Measured layouts of LLaMA models (arXiv:2311.05610) beside the forecasts of their steps."""

import csv
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import StepCost, training_step
from steelyard.plan.beliefs import part_shares

__all__ = ["SweepGroup", "sweep_groups", "sweep_machine", "sweep_memory"]

_FILE = Path(__file__).parents[3] / "shared" / "data" / "parallel-layout-sweep" / "layout-sweep.csv"
_VOCABULARY = 128_000
"""Tokens that the published FLOP of each step agree with (within 0.5 %, 32,000 within 3 %)."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepGroup:
    """Layouts of one model, sequence length, number of accelerators and kernel.

    Attributes:
        name: words for the group.
        words: words for each layout.
        measured_s: seconds of a step, [layouts].
        forecast_s: forecast seconds, [layouts].
        shares: parts of each forecast, [layouts, parts].
        is_fitted: whether spreads may be fitted on the group; the others are held out.
    """

    name: str
    words: list[str]
    measured_s: Array
    forecast_s: Array
    shares: Array
    is_fitted: bool

    @property
    def errors(self) -> Array:
        """Logarithms of measured over forecast, [layouts]."""
        return np.log(self.measured_s / self.forecast_s)


def sweep_machine() -> Machine:
    """Return the accelerators of the sweep, in nodes of eight with a network as in Selene."""
    accelerator = catalog.accelerator("A100-SXM4-80GB")
    return Machine.from_accelerator(accelerator, dtype="bf16", cluster=catalog.cluster("Selene"))


def sweep_groups(least: int = 5, machine: Machine | None = None) -> list[SweepGroup]:
    """Return the groups of the published sweep, forecast without any of its times.

    Args:
        least: measured layouts that a group needs.
        machine: accelerator to forecast with; `sweep_machine` when not given.

    Returns:
        The groups by name; every second one may be fitted on. Empty where the file is missing.
    """
    if not _FILE.exists():
        return []
    rows: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in csv.DictReader(_FILE.read_text().splitlines()):
        if row["status"] == "ok":
            rows[row["model"], row["seq_len"], row["gpus"], row["kernel"]].append(row)
    named = sorted((key, found) for key, found in rows.items() if len(found) >= least)
    return [
        _group(" ".join(key), found, place % 2 == 0, machine or sweep_machine())
        for place, (key, found) in enumerate(named)
    ]


def _group(name: str, rows: list[dict[str, str]], is_fitted: bool, machine: Machine) -> SweepGroup:
    """Forecast the layouts of a group."""
    cost = _cost(rows, machine)
    return SweepGroup(
        name=name,
        words=[
            f"{row['tp']} tensor x {row['pp']} pipeline x {row['dp']} data, micro-batch "
            f"{row['micro_batch']}, recompute {row['recompute']}"
            for row in rows
        ],
        measured_s=np.array([float(row["step_time_s"]) for row in rows]),
        forecast_s=np.broadcast_to(np.asarray(cost.time_s, dtype=float), len(rows)),
        shares=part_shares(cost),
        is_fitted=is_fitted,
    )


def sweep_memory() -> tuple[Array, NDArray[np.bool_]]:
    """Forecast the memory of every layout that ran or ran out of it.

    Returns:
        Forecast bytes of the fullest accelerator, and whether memory ran out, [layouts]; empty
        where the file is missing.
    """
    rows: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    if _FILE.exists():
        for row in csv.DictReader(_FILE.read_text().splitlines()):
            if row["status"] in ("ok", "oom"):
                rows[row["model"], row["seq_len"], row["kernel"]].append(row)
    parts = [np.asarray(_cost(group, sweep_machine()).memory.total) for group in rows.values()]
    full = [row["status"] == "oom" for group in rows.values() for row in group]
    return np.concatenate([np.zeros(0), *parts]), np.array(full, dtype=bool)


def _cost(rows: list[dict[str, str]], machine: Machine) -> StepCost:
    """Cost layouts of one model, length and kernel."""
    first = rows[0]
    numbers = {
        key: np.array([int(row[key]) for row in rows])
        for key in ("tp", "pp", "dp", "micro_batch", "global_batch")
    }
    return training_step(
        _architecture(first),
        machine=replace(machine, fused="RMS" in first["kernel"]),
        micro_batch=numbers["micro_batch"],
        sequence_length=int(first["seq_len"]),
        accumulation=numbers["global_batch"] // (numbers["micro_batch"] * numbers["dp"]),
        layout=Layout(
            data=numbers["dp"],
            tensor=numbers["tp"],
            pipeline=numbers["pp"],
            zero_stage=np.ones(len(rows), dtype=int),
            sequence_parallel=np.array([row["sequence_parallel"] == "True" for row in rows]),
            recompute=np.array([2 if row["recompute"] == "full" else 0 for row in rows]),
        ),
        flash_attention="flash" in first["kernel"],
    )


def _architecture(row: dict[str, str]) -> Architecture:
    """Return the shape of a row's model."""
    heads, hidden = int(row["heads"]), int(row["hidden"])
    return Architecture(
        name=row["model"],
        hidden_size=hidden,
        num_layers=int(row["layers"]),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=int(row["ffn"]),
        vocab_size=_VOCABULARY,
        max_positions=int(row["seq_len"]),
        tied_embeddings=False,
    )
