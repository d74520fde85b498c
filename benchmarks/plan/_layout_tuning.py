"""Bayesian against random search of layouts: GPT of 175 billion parameters on Frontier.

The knobs are those of arXiv:2312.12705, table 3: pipeline and tensor degree, micro-batch,
accumulation, ZeRO-1, nodes; the objective is the simulated FLOP/s of an accelerator, and layouts
that do not fit fail.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from benchmarks.common import Check
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.cost.layout import Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import training_step
from steelyard.plan.tuner import LayoutTuner

__all__ = ["tuning_checks"]

Array = NDArray[np.float64]
_MOST = 60
_SHARE = 0.95


@dataclass(frozen=True)
class _Grid:
    """Candidates: their settings, [candidates, knobs], and throughput, 0 where they fail."""

    settings: Array
    throughput: Array


def tuning_checks(quick: bool) -> list[Check]:
    """Search with many seeds, and count evaluations and failures."""
    grid = _grid()
    best = float(grid.throughput.max())
    fails = float((grid.throughput == 0).mean())
    runs = [_search(grid, seed) for seed in range(4 if quick else 20)]
    needed = [_needed(grid.throughput[run], best) for run in runs]
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(grid.throughput)) for _ in range(400)]
    random = [_needed(grid.throughput[order], best) for order in orders]
    third = _MOST // 3
    first = float(np.mean([(grid.throughput[run[:third]] == 0).mean() for run in runs]))
    last = float(np.mean([(grid.throughput[run[-third:]] == 0).mean() for run in runs]))
    middle = float(np.median(needed))
    print(
        f"{len(grid.throughput)} layouts, {fails:.0%} fail; to {_SHARE:.0%} of the best: "
        f"{middle:.0f} runs [{min(needed)}, {max(needed)}], random search {np.median(random):.0f}; "
        f"failures {first:.0%} in the first third of {_MOST}, {last:.0%} in the last"
    )
    return [
        Check("4 runs to 95 % of the best, median", middle, float(_MOST), "lower"),
        Check("4 random search's over these", float(np.median(random)) / middle, 3.0, "higher"),
        Check("4 failures, last third over first", last / first, 0.5, "lower"),
    ]


def _needed(values: Array, best: float) -> int:
    """Return how many runs it took to come to a share of the best."""
    good = np.flatnonzero(values >= _SHARE * best)
    return int(good[0]) + 1 if len(good) else len(values) + 1


def _search(grid: _Grid, seed: int) -> NDArray[np.int64]:
    """Return the candidates in the order in which the tuner asked for them, four at a time."""
    tuner, asked = LayoutTuner(grid.settings, seed=seed), []
    while len(asked) < _MOST:
        batch = [place for _ in range(4) if (place := tuner.ask()) is not None]
        for place in batch:
            value = float(grid.throughput[place])
            tuner.tell(place, value or None)
        asked += batch
    return np.array(asked[:_MOST])


def _grid() -> _Grid:
    """Cost every layout of the table."""
    knobs = itertools.product((1, 2, 4, 8, 12, 16), (4, 8), range(4, 21), (5, 10), (0, 1), (12, 16))
    rows = np.array([row for row in knobs if not (8 * row[5]) % (row[0] * row[1])], dtype=np.int64)
    pipeline, tensor, micro, steps, zero, nodes = rows.T
    data = 8 * nodes // (pipeline * tensor)
    cluster = catalog.cluster("Frontier")
    machine = Machine.from_accelerator(
        catalog.accelerator(cluster.accelerator), dtype="fp16", cluster=cluster
    )
    arch = catalog.architecture_by_name("gpt3-175b")
    cost = training_step(
        arch,
        machine=machine,
        micro_batch=micro,
        sequence_length=2048,
        accumulation=steps,
        layout=Layout(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            zero_stage=zero,
            recompute=np.full(len(rows), 2),
        ),
    )
    fits = np.asarray(cost.memory.total) <= machine.memory_bytes
    whole = arch.num_layers % pipeline == 0
    rate = np.asarray(cost.model_flops) / np.asarray(cost.time_s) / (8 * nodes)
    # Beside the knobs what they come to: replicas, and over how many the states are split.
    shards = np.where(zero, data, 1)
    degrees = (pipeline, tensor, micro, data, pipeline * tensor, shards)
    settings = np.column_stack([*map(np.log2, degrees), steps, nodes])
    return _Grid(settings, np.where(fits & whole, rate, 0.0))
