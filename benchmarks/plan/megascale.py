"""Training on up to 12,288 accelerators, simulated step by step, beside MegaScale's tables.

A model of 175 billion parameters, tensor 8 x pipeline 8 in 6 chunks, micro-batches of 1, on
machines of eight A100 (taken to be the accelerator: its peak reproduces the MFU): arXiv:2402.15627,
tables 2 and 3. Four numbers are fitted, all on rows of 256 accelerators: the share of the peak that
products reach, and the shares of their links that tensor-, pipeline- and data-parallel traffic
reach. The bars are held by the fit to every MFU of 256 accelerators in both tables ("levels"); its
replay of table 3 is in part the fit's own, so that a fit to table 2's two rows and typical shares
replays it as well ("table 2"). A fit to table 3's increments ("steps") is printed beside them.

Assumed, and the same for all rows:
- Traffic beside kernels costs them a fifth of its seconds: NCCL holds some 20 of 108
  multiprocessors. Products are cut into 4 chunks.
- About 0.5 % of the machines are 10 % slow (section 5 of the paper); means over draws of them.
- Attention reaches 25 % of the peak in FlashAttention, the low end of what arXiv:2307.08691 states,
  of which three quarters are of use: its kernels pad heads of 96 to 128; 50 % in FlashAttention-2.
- Reading data takes 0.2 s. This is what the step of the data pipeline saved, which says nothing
  about that row.
- The window is not published: it is what the MFU and tokens per second of 256 accelerators imply.
- Gradients travel in 16 bits; in 32 the data-parallel link would reach 1.5 times the share.
The model of 530 billion parameters (section 6.1) is simulated with the shares fitted to the other:
pipeline 35 in 3 chunks, as published; its numbers of accelerators and sequences are not, so whole
replicas nearest to those of table 2 are taken, and a sequence per accelerator as in
arXiv:2104.04473, table 1.
LAMB is taken as its larger batch alone. The assumptions were chosen with table 3 in sight. No row
above 256 accelerators enters a fit or an assumption, though their values were known.
"""

import csv
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._published_runs import ROWS_FILE
from numpy.typing import NDArray
from scipy.optimize import least_squares

from steelyard import catalog
from steelyard.cost.flops import model_flops_per_token
from steelyard.cost.roofline import Machine
from steelyard.sim.step.replica import replica_tasks
from steelyard.sim.step.stragglers import Stragglers
from steelyard.sim.step.training import Links, TrainingStep
from steelyard.sim.taskgraph import StepOverlap

PAPER = ["34-megascale"]

Array = NDArray[np.float64]
_STEPS = (
    "parallel block",
    "sliding window",
    "tensor overlap",
    "pipeline overlap",
    "data overlap",
    "operators",
    "data pipeline",
)
"""What MegaScale adds to Megatron-LM, in the order of table 3; LAMB follows."""
_TENSOR, _LENGTH = 8, 2048
_CONTENTION, _LOAD_S, _TENSOR_CHUNKS = 0.2, 0.2, 4
_FLASH, _FLASH_2 = 0.25 * 96 / 128, 0.5
_FITTED = ("matmul", "tensor", "pipeline", "data")
_TYPICAL = np.array([0.62, 0.75, 0.75, 0.75])
"""Shares that the cost model assumes where nothing is fitted."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A published row: which of the steps it has, its size, and its MFU in percent."""

    steps: int
    accelerators: int
    batch: int
    mfu: float
    tokens_per_s: float


def run(quick: bool) -> list[Check]:
    """Fit on 256 accelerators, replay the ablation, and forecast the others."""
    table, ablation = _published()
    stragglers = Stragglers(draws=20 if quick else 100)
    simulator = _Simulator(_window(table), stragglers)
    print(f"window that MFU and tokens per second of 256 accelerators imply: {simulator.window}")
    small = [item for item in table if item.accelerators == 256]
    most = 5 if quick else 15
    fits = {
        "levels": _fit(simulator, small, ablation, most=most),
        "table 2": _fit(simulator, small, [], most=most),
    }
    if not quick:
        fits["steps"] = _fit(simulator, small, ablation, most=most, by_step=True)
    print("shares reached: " + ", ".join(_FITTED))
    for name, found in fits.items():
        print(f"fitted to {name:8s}" + "".join(f"{share:8.3f}" for share in found))
    return [
        *_others(simulator, table, fits),
        *_ablation(simulator, ablation, fits),
        _larger(simulator, fits["levels"]),
        _speed(simulator, fits["levels"]),
    ]


def _published() -> tuple[list[_Run], list[_Run]]:
    """Read both tables."""
    rows = list(csv.DictReader(ROWS_FILE.read_text().splitlines()))

    def read(row: dict[str, str], steps: int) -> _Run:
        rate = float(row["tokens_per_s"] or 0)
        return _Run(steps, int(row["gpus"]), int(row["global_batch"]), float(row["mfu_pct"]), rate)

    whole = len(_STEPS)
    systems = {"Megatron-LM": 0, "MegaScale": whole}
    table = [read(row, systems[row["system"]]) for row in rows if row["source"] == "megascale"]
    steps = [row for row in rows if row["source"] == "megascale-ablation"]
    # LAMB, the last row, is the same program with a larger batch.
    return table, [read(row, min(place, whole)) for place, row in enumerate(steps)]


def _window(table: list[_Run]) -> int:
    """Return the window with which a token takes as many FLOPs as table 2 implies, relatively."""
    arch = catalog.architecture_by_name("megascale-175b")
    work = {item.steps: item.mfu / item.tokens_per_s for item in table if item.accelerators == 256}
    wanted = work[len(_STEPS)] / work[0] * model_flops_per_token(arch, _LENGTH)
    windows = np.arange(64, _LENGTH + 1, 64)
    off = [
        abs(
            model_flops_per_token(replace(arch, sliding_window=int(each)), _LENGTH, windows=True)
            - wanted
        )
        for each in windows
    ]
    return int(windows[int(np.argmin(off))])


@dataclass(frozen=True, slots=True)
class _Simulator:
    """Steps of both systems."""

    window: int
    stragglers: Stragglers
    model: str = "megascale-175b"
    pipeline: int = 8
    chunks: int = 6

    def step(self, run: _Run, shares: Array) -> TrainingStep:
        """Return a row's step; each of the first `run.steps` improvements is a switch."""
        has = {name: place < run.steps for place, name in enumerate(_STEPS)}
        matmul, tensor, pipeline, data = map(float, shares)
        machine = _machine()
        arch = catalog.architecture_by_name(self.model)
        reached = replace(
            machine.efficiencies,
            matmul=matmul,
            attention=_FLASH_2 if has["operators"] else _FLASH,
        )
        network = machine.injection_bytes_per_s / machine.accelerators_per_node
        replicas = run.accelerators // (_TENSOR * self.pipeline)
        return TrainingStep(
            arch=replace(arch, sliding_window=self.window) if has["sliding window"] else arch,
            machine=replace(machine, fused=has["operators"], efficiencies=reached),
            sequence_length=_LENGTH,
            num_micro_batches=run.batch // replicas,
            tensor=_TENSOR,
            pipeline=self.pipeline,
            data=replicas,
            num_chunks=self.chunks,
            overlap=StepOverlap(
                pipeline=has["pipeline overlap"],
                data=has["data overlap"],
                loader=has["data pipeline"],
            ),
            tensor_chunks=_TENSOR_CHUNKS if has["tensor overlap"] else 1,
            contention=_CONTENTION,
            parallel_block=has["parallel block"],
            load_s=_LOAD_S,
            links=Links(
                tensor_bytes_per_s=tensor * machine.scale_up_bytes_per_s,
                pipeline_bytes_per_s=pipeline * network,
                data_bytes_per_s=data * network,
            ),
        )

    def mfu(self, run: _Run, shares: Array, *, even: bool = False) -> float:
        """Return a row's MFU in percent, with slow machines or without."""
        step = self.step(run, shares)
        seconds = step.simulate().time_s if even else step.mean_straggling_s(self.stragglers)
        return 100 * step.mfu(seconds)


@cache
def _machine() -> Machine:
    """Return the cluster's accelerator."""
    cluster = catalog.cluster("MegaScale")
    return Machine.from_accelerator(catalog.accelerator(cluster.accelerator), cluster=cluster)


def _fit(
    simulator: _Simulator,
    small: list[_Run],
    ablation: list[_Run],
    *,
    most: int,
    by_step: bool = False,
) -> Array:
    """Fit the four shares to MFU of table 2, and to levels or steps of table 3.

    A deviation from the typical share by e weighs as much as one point of MFU where table 3 is left
    out, as two rows do not tell four numbers, and a tenth of that otherwise.
    """
    weight = 0.1 if ablation else 1.0
    start = np.log(_TYPICAL)

    def targets(levels: list[float], steps: list[float]) -> Array:
        return np.concatenate([levels, np.diff(steps) if by_step else steps])

    wanted = targets([item.mfu for item in small], [item.mfu for item in ablation])

    def off(logs: Array) -> Array:
        shares = np.exp(logs)
        found = ([simulator.mfu(item, shares) for item in rows] for rows in (small, ablation))
        return np.concatenate([targets(*found) - wanted, weight * (logs - start)])

    # The simulation has corners, so that a difference must reach beyond them.
    made: Any = least_squares(
        off, start, diff_step=0.02, bounds=(np.log(0.05), 0.0), max_nfev=most, xtol=1e-4
    )
    return np.exp(made.x)


def _ablation(simulator: _Simulator, ablation: list[_Run], fits: dict[str, Array]) -> list[Check]:
    """Replay table 3, step by step."""
    levels = {"published": np.array([item.mfu for item in ablation])}
    for name, shares in fits.items():
        levels[name] = np.array([simulator.mfu(item, shares) for item in ablation])
    steps = {name: np.diff(found) for name, found in levels.items()}
    print("\nMFU in %, 256 accelerators, batch of 256: " + ", ".join(levels))
    print(f"{'Megatron-LM':18s}" + "".join(f"{found[0]:8.1f}" for found in levels.values()))
    for place, name in enumerate([*_STEPS, "LAMB, batch x 3"]):
        print(f"+ {name:16s}" + "".join(f"{found[place]:+8.2f}" for found in steps.values()))
    print(f"{'sum':18s}" + "".join(f"{found.sum():+8.2f}" for found in steps.values()))
    published = steps["published"]
    checks = []
    for name, label in (("levels", ""), ("table 2", ", table 3 not fitted")):
        off = float(abs((steps[name] - published).sum()))
        signs, swaps = float((steps[name] <= 0).sum()), _swapped(steps[name], published)
        checks += [
            Check(f"2 increments of another sign{label}", signs, 0, "lower"),
            Check(f"2 pairs of increments out of order, of 28{label}", swaps, 0, "lower"),
            Check(f"2 sum of increments off by points{label}", off, 3, "lower"),
        ]
    return checks


def _swapped(found: Array, published: Array) -> float:
    """Count pairs of increments that are not in the published order."""
    ours, theirs = (np.sign(np.subtract.outer(item, item)) for item in (found, published))
    return float((ours != theirs).sum() / 2)


def _others(simulator: _Simulator, table: list[_Run], fits: dict[str, Array]) -> list[Check]:
    """Compare the rows above 256 accelerators, none of which was fitted."""
    found = {name: [simulator.mfu(item, shares) for item in table] for name, shares in fits.items()}
    found["even"] = [simulator.mfu(item, fits["levels"], even=True) for item in table]
    print("\nMFU in %: published, " + ", ".join(fits) + ", levels without slow machines")
    for place, item in enumerate(table):
        ours = "".join(f"{each[place]:8.1f}" for each in found.values())
        print(f"{_system(item):12s}{item.accelerators:7d}{item.mfu:8.1f}{ours}")
    off: dict[str, float] = {"Megatron-LM": 0.0, "MegaScale": 0.0}
    largest: dict[str, float] = {}
    for item, ours in zip(table, found["levels"], strict=True):
        system = _system(item)
        if item.accelerators > 256:
            off[system] = max(off[system], abs(ours - item.mfu))
        largest[system] = ours
    ratio = largest["MegaScale"] / largest["Megatron-LM"]
    return [
        *(Check(f"1 worst MFU off by points, {who}", off[who], 3, "lower") for who in off),
        Check("1 MegaScale over Megatron-LM at 12,288, off by", abs(ratio - 1.34), 0.1, "lower"),
    ]


def _larger(simulator: _Simulator, shares: Array) -> Check:
    """Scale 530 billion parameters weakly: the most that MegaScale gains, up to 6.1 points."""
    large = replace(simulator, model="megascale-530b", pipeline=35, chunks=3)
    one = _TENSOR * large.pipeline
    found = []
    print("\nMFU in %, 530 billion parameters: Megatron-LM, MegaScale, gain (all simulated)")
    for replicas in (1, 2, 4, 11, 22, 44):
        count = replicas * one
        pair = [
            large.mfu(_Run(steps, count, count, 0.0, 0.0), shares) for steps in (0, len(_STEPS))
        ]
        found.append(pair)
        print(f"{count:7d}{pair[0]:8.1f}{pair[1]:8.1f}{pair[1] - pair[0]:+8.2f}")
    gain = max(after - before for before, after in found)
    return Check("1 530 billion, most points gained off 6.1 by", abs(gain - 6.1), 3, "lower")


def _system(run: _Run) -> str:
    return "MegaScale" if run.steps else "Megatron-LM"


def _speed(simulator: _Simulator, shares: Array) -> Check:
    """Time a step of 12,288 accelerators from nothing, slow machines included."""
    step = simulator.step(_Run(len(_STEPS), 12288, 6144, 0.0, 0.0), shares)
    replica_tasks.cache_clear()
    start = time.process_time()
    step.mean_straggling_s(simulator.stragglers)
    seconds = time.process_time() - start
    print(f"12,288 accelerators with slow machines: {seconds:.2f} s")
    return Check("3 seconds of 12,288 accelerators over 10", seconds / 10, 1, "lower")
