"""Models of 530 billion parameters: published steps beside the forecasts, nothing fitted to them.

Rows of Megatron-LM (arXiv:2104.04473, tables 1 and 2) and the three of Megatron-Turing NLG
(arXiv:2201.11990, section 2.4): as many sequences on more accelerators.
Stages are contiguous where a row does not name chunks; those of table 1 are interleaved, in 3.
"""

import csv
from dataclasses import fields

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._published_runs import (
    ROWS_FILE,
    PublishedStep,
    published_machine,
    published_rate,
    read_step,
)

from steelyard import catalog
from steelyard.cost.layout import Layout
from steelyard.cost.step import StepCost, training_step

__all__ = ["largest_checks"]

_SYSTEM, _PARAMETERS = "Megatron-LM PTD-P", "529.6"
_STAGES, _TENSOR, _BATCH = 35, 8, 1920
_PUBLISHED_S = {2240: 60.1, 2800: 50.2, 3360: 44.4}
"""Seconds of a step by accelerators."""


def largest_checks() -> list[Check]:
    """Compare forecast and published throughput."""
    found = {**_rows(), **_turing()}
    for name, ratio in found.items():
        print(f"530 billion, {name}: forecast over published rate {ratio:.3f}")
    off = np.abs(np.array(list(found.values())) - 1)
    scaling = [found[f"Megatron-Turing NLG, {count}"] for count in (2240, 3360)]
    return [
        Check("8 530 billion parameters, median error", float(np.median(off)), 0.10, "lower"),
        Check("8 530 billion parameters, worst error", float(off.max()), 0.25, "lower"),
        Check(
            "8 their loss from 2,240 to 3,360 accelerators, off by",
            abs(scaling[1] / scaling[0] - 1),
            0.10,
            "lower",
        ),
    ]


def _rows() -> dict[str, float]:
    """Forecast the rows of Megatron-LM."""
    found = {}
    for row in csv.DictReader(ROWS_FILE.read_text().splitlines()):
        if row["system"] != _SYSTEM or row["params_b"] != _PARAMETERS:
            continue
        is_interleaved = "table 1" in row["table"]
        shape = {"micro_batch": row["micro_batch"] or "1", "vpp": "3" if is_interleaved else "1"}
        step = read_step(row | shape)
        assert step is not None
        cost, count = _cost(step), int(row["gpus"])
        forecast = cost.tokens / cost.time_s / count
        found[f"Megatron-LM, {count}"] = forecast / published_rate(row, cost, count)
    return found


def _turing() -> dict[str, float]:
    """Forecast the steps of Megatron-Turing NLG."""
    found = {}
    for count, seconds in _PUBLISHED_S.items():
        data = count // (_STAGES * _TENSOR)
        step = PublishedStep(
            arch=catalog.architecture_by_name("mt-nlg-530b"),
            micro_batch=1,
            sequence_length=2048,
            accumulation=_BATCH / data,
            layout=Layout(
                data=data, tensor=_TENSOR, pipeline=_STAGES, zero_stage=1, recompute="full"
            ),
            flash_attention=False,
        )
        found[f"Megatron-Turing NLG, {count}"] = seconds / _cost(step).time_s
    return found


def _cost(step: PublishedStep) -> StepCost:
    settings = {item.name: getattr(step, item.name) for item in fields(step)}
    machine = published_machine("A100-SXM-80GB")
    return training_step(settings.pop("arch"), machine=machine, **settings)
