"""Layouts of large language models on Frontier and elsewhere, against published runs.

Observations, recipes and tuning are of arXiv:2312.12705; throughput and layouts of the rows under
shared/data. The efficiencies of the cost model were chosen by hand on rows of
llm-foundry and torchtitan and on the sweep, so only the other sources and Frontier are blind.
"""

import itertools
import time
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._beyond_runs import beyond_checks
from benchmarks.plan._frontier import LENGTH, frontier_machine, gpt
from benchmarks.plan._largest_runs import largest_checks
from benchmarks.plan._layout_sweep import SweepGroup, sweep_groups, sweep_machine, sweep_memory
from benchmarks.plan._layout_tuning import tuning_checks
from benchmarks.plan._published_beliefs import fit_published, sweep_coverage
from benchmarks.plan._published_choices import choice_checks
from benchmarks.plan._published_runs import DEEPSPEED, PublishedRun, published_runs

from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import StepCost, training_step
from steelyard.plan.advice import PUBLISHED_BELIEFS
from steelyard.plan.layouts import search_layouts

PAPER = ["17-frontier-llm"]

_RECIPES = {
    "175B": ((96, 12288, 96), (4, 16, 16), 640, 0.3614),
    "1T": ((128, 25600, 128), (8, 64, 6), 1600, 0.3196),
}
"""Layers, width and heads; tensor, pipeline and data degree; sequences per step; published share of
the peak, recomputation included."""
_INSIDE, _OUTSIDE, _MATMUL = (1.0, 0.6, 0.4, 0.2), (1.0, 0.3, 0.1, 0.05), (0.62, 0.67, 0.72)
"""Shares of the links' rates in and between nodes, and of the peak, that are tried on the sweep."""
_RESERVE = 0.12
"""Share of memory that runtime, buffers and fragmentation take, as `search_layouts` assumes."""


def run(quick: bool) -> list[Check]:
    """Check observations, published runs, the sweep, tuning and the time of a search."""
    return [
        *_observations(),
        *_throughput(),
        *_recipes(),
        *_sweep(),
        *tuning_checks(quick),
        *_search_time(),
        *_choices(),
    ]


def _rate(steps: Any, micro: Any = 1, *, flash: bool = True, **layout: Any) -> Any:
    """Return tokens per second and accelerator of the model of 22 billion parameters."""
    chosen = Layout(**({"recompute": "full", "zero_stage": 1} | layout))
    cost = training_step(
        gpt("22B", 48, 6144, 48),
        machine=frontier_machine(),
        micro_batch=micro,
        sequence_length=LENGTH,
        accumulation=steps,
        layout=chosen,
        flash_attention=flash,
    )
    return cost.tokens / cost.time_s / chosen.num_accelerators


def _observations() -> list[Check]:
    """Check the sign of the paper's six effects, each knob alone."""
    degrees = np.array([1, 2, 4, 8])
    tensor = _rate(16, tensor=degrees, pipeline=8)
    batches = _rate(np.array([8, 16, 32, 64, 128]), tensor=2, pipeline=8)
    stages = np.array([2, 4, 8, 16, 24])
    deeper = _rate(32, tensor=2, pipeline=stages)
    level = _rate(4 * stages, tensor=2, pipeline=stages)
    flash = _rate(32, tensor=2, pipeline=8) / _rate(32, tensor=2, pipeline=8, flash=False)
    # At one stage nothing but the products' efficiency depends on the micro-batch.
    micro = _rate(8, np.array([1, 2, 4, 8]), tensor=8)
    # With as many sequences per step the largest micro-batches fill the pipeline badly.
    sizes = np.array([1, 2, 4, 8, 16])
    filled = _rate(32 // sizes, sizes, tensor=2, pipeline=8)
    print(f"tokens/s per die: tensor 1 to 8 {np.round(tensor)}; stages 2 to 24 {np.round(deeper)}")
    print(f"same micro-batches per stage {np.round(level)}; micro-batch 1 to 16 {np.round(filled)}")
    return [
        _check("tensor degree doubled, rate at most", _steps(tensor).max(), 1.0, "lower"),
        _check("more micro-batches, rate at least", _steps(batches).min(), 1.0, "higher"),
        _check("more stages, rate at most", _steps(deeper).max(), 1.0, "lower"),
        _check("stages with micro-batches, spread", np.ptp(level) / level.max(), 0.1, "lower"),
        _check("fused attention, gain at least", float(flash), 1.0, "higher"),
        _check("fused attention, gain at most", float(flash), 1.4, "lower"),
        _check("larger micro-batches, rate at least", _steps(micro).min(), 1.0, "higher"),
        _check("largest micro-batch over best, rate", filled[-1] / filled.max(), 0.95, "lower"),
    ]


def _check(name: str, value: Any, bar: float, better: Literal["higher", "lower"]) -> Check:
    return Check(f"1 {name}", float(value), bar, better)


def _steps(values: Any) -> Any:
    """Return each value over the one before it."""
    return np.asarray(values[1:] / values[:-1], dtype=float)


def _throughput() -> list[Check]:
    """Fit one factor per chip on a fixed half of the rows, and hold the rest against it."""
    runs, rows = published_runs()
    if not runs:
        print("the published runs are not there: nothing was compared")
        return [Check("2 published runs", 0.0, 1.0, "higher")]
    factors = {chip: _factor(runs, chip) for chip in {item.chip for item in runs}}
    held = [item for item in runs if not item.is_fitted]
    errors = {item: abs(item.forecast * factors[item.chip] / item.published - 1) for item in held}
    told = {chip: round(value, 3) for chip, value in sorted(factors.items())}
    print(f"{len(runs)} of {rows} rows are dense 16-bit runs of known layout; {len(held)} held out")
    print(f"factors {told}")
    for source in sorted({item.source for item in held}):
        own = [error for item, error in errors.items() if item.source == source]
        print(f"{source:18s} {len(own):3d} runs, median error {np.median(own):.1%}")
    # Two runs of DeepSpeed set the share that its rings reach, so its others are not blind.
    blind = [
        error
        for item, error in errors.items()
        if item.source not in ("llm-foundry", "torchtitan") and item.system != DEEPSPEED
    ]
    wide = [item for item in runs if item.system == DEEPSPEED and item.accelerators > 1000]
    told = {item.accelerators: round(item.forecast / item.published, 3) for item in wide}
    print(f"DeepSpeed's ZeRO-3 by accelerators, forecast over published: {told}")
    worst = max(abs(item.forecast / item.published - 1) for item in wide)
    every = list(errors.values())
    print(f"{len(blind)} runs of sources that set nothing: median error {np.median(blind):.1%}")
    return [
        Check("2 held-out runs, median error", float(np.median(every)), 0.10, "lower"),
        Check("2 of them sources that set nothing, median", float(np.median(blind)), 0.10, "lower"),
        Check("2 held-out runs, 90 % error", float(np.percentile(every, 90)), 0.25, "lower"),
        Check("2 ZeRO-3 over 1,536 and 2,240, worst error", worst, 0.25, "lower"),
        *_intervals(runs, held, factors),
        *beyond_checks(),
        *largest_checks(),
    ]


def _intervals(
    runs: list[PublishedRun], held: list[PublishedRun], factors: dict[str, float]
) -> list[Check]:
    """Count how often the intervals hold that a plan states: of raw forecasts, without a factor."""
    beliefs = fit_published(runs, factors)
    drift = np.abs(
        np.array([*beliefs.parts, beliefs.own]) - [*PUBLISHED_BELIEFS.parts, PUBLISHED_BELIEFS.own]
    )
    off = np.array([item.forecast / item.published for item in held])
    wide = np.array([1 + item.relative for item in held])
    inside = (1 / wide <= off) & (off <= wide)
    for source in sorted({item.source for item in held}):
        own = [bool(hit) for hit, item in zip(inside, held, strict=True) if item.source == source]
        print(f"{source:18s} {sum(own)} of {len(own)} within 80 % intervals")
    told = np.round(beliefs.parts, 3).tolist()
    print(f"spreads of parts {told}, of a layout {beliefs.own:.3f}")
    print(f"held-out layouts of the sweep within them: {sweep_coverage(PUBLISHED_BELIEFS):.1%}")
    share = float(inside.mean())
    width = float(np.median(wide - 1) / np.median(np.abs(off - 1)))
    return [
        Check("6 held-out runs inside 80 % intervals, at least", share, 0.7, "higher"),
        Check("6 held-out runs inside 80 % intervals, at most", share, 0.9, "lower"),
        Check("6 half-width over median error", width, 2.5, "lower"),
        Check("6 package's spreads less those fitted", float(drift.max()), 0.02, "lower"),
    ]


def _choices() -> list[Check]:
    """Search what the published runs chose."""
    runs, _ = published_runs()
    return choice_checks(runs) if runs else []


def _factor(runs: list[PublishedRun], chip: str) -> float:
    """Return the factor on forecasts of a chip, 1 where none may be fitted on."""
    own = [item.published / item.forecast for item in runs if item.chip == chip and item.is_fitted]
    return float(np.median(own)) if own else 1.0


def _recipes() -> list[Check]:
    """Forecast the paper's two recipes; nothing is fitted to the chip."""
    checks = []
    for name, (shape, (tensor, pipeline, data), batch, published) in _RECIPES.items():
        cost = _recipe(gpt(name, *shape), tensor, pipeline, data, batch)
        parts = ("compute_s", "tensor_s", "bubble_s", "data_s", "update_s")
        shares = {part: round(getattr(cost, part) / cost.time_s, 3) for part in parts}
        print(f"{name}: {cost.hfu:.2%} of the peak, published {published:.2%}; {shares}")
        error = abs(cost.hfu / published - 1)
        checks.append(Check(f"2 {name} on Frontier, error of share of peak", error, 0.10, "lower"))
    return checks


def _recipe(arch: Architecture, tensor: int, pipeline: int, data: int, batch: int) -> StepCost:
    """Cost one recipe: micro-batches of one sequence, ZeRO-1, full recomputation."""
    return training_step(
        arch,
        machine=frontier_machine(),
        micro_batch=1,
        sequence_length=LENGTH,
        accumulation=batch / data,
        layout=Layout(tensor=tensor, pipeline=pipeline, data=data, zero_stage=1, recompute="full"),
    )


def _sweep() -> list[Check]:
    """Choose the best layout of every group, and say which run out of memory."""
    plain = sweep_groups(least=2)
    if not plain:
        print("the published sweep is not there: nothing was compared")
        return [Check("3 groups of measured layouts", 0.0, 1.0, "higher")]
    fitted = sweep_groups(least=2, machine=_fitted_machine())
    held = [group for group in fitted if not group.is_fitted]
    for group in fitted:
        errors = f"median error {np.median(np.abs(np.expm1(group.errors))):.1%}"
        which = "fitted" if group.is_fitted else "held out"
        print(f"{group.name} ({which}): {len(group.words)}, {errors}, loses {_lost(group):.1%}")
    need, ran_out = sweep_memory()
    said = need > (1 - _RESERVE) * sweep_machine().memory_bytes
    right = int((said & ran_out).sum())
    print(
        f"out of memory: {ran_out.sum()} of {len(need)} layouts, {said.sum()} said, {right} right"
    )
    return [
        Check("3 groups within 5 % of best, nothing fitted", _near(plain), 0.8, "higher"),
        Check("3 held-out groups within 5 % of best", _near(held), 0.8, "higher"),
        Check("3 out of memory, precision", right / max(int(said.sum()), 1), 0.9, "higher"),
        Check("3 out of memory, recall", right / max(int(ran_out.sum()), 1), 0.9, "higher"),
    ]


def _lost(group: SweepGroup) -> float:
    """Return the share of time that the choice of a group loses."""
    chosen = group.measured_s[int(group.forecast_s.argmin())]
    return float(chosen / group.measured_s.min() - 1)


def _near(groups: list[SweepGroup]) -> float:
    """Return the share of groups whose choice is within 5 % of the best."""
    return float(np.mean([_lost(group) <= 0.05 for group in groups]))


def _fitted_machine() -> Machine:
    """Fit what links and products reach on every second group: least time lost by choices.

    The sweep's runs reach less of their links than the rest of the published ones.
    """
    plain, tried = sweep_machine(), []
    for inside, outside, matmul in itertools.product(_INSIDE, _OUTSIDE, _MATMUL):
        machine = replace(
            plain,
            scale_up_bytes_per_s=inside * plain.scale_up_bytes_per_s,
            injection_bytes_per_s=outside * plain.injection_bytes_per_s,
            efficiencies=replace(plain.efficiencies, matmul=matmul),
        )
        groups = [group for group in sweep_groups(least=2, machine=machine) if group.is_fitted]
        errors = np.concatenate([group.errors for group in groups])
        # Of settings that choose alike, the one whose times are nearest.
        lost = round(float(np.mean([_lost(group) for group in groups])), 6)
        tried.append(((lost, float(np.abs(errors).mean())), (inside, outside, matmul), machine))
    lost, found, machine = min(tried, key=lambda item: item[0])
    print(f"fitted: node links x {found[0]}, network x {found[1]}, products {found[2]}: {lost}")
    return machine


def _search_time() -> list[Check]:
    """Search every layout of 175 billion parameters over 1,024 devices."""
    arch, machine = gpt("175B", 96, 12288, 96), frontier_machine()
    began = time.perf_counter()
    found = search_layouts(arch, machine, counts=[1024], global_batch=640, sequence_length=LENGTH)
    best = found.best(found.fits)
    seconds = time.perf_counter() - began
    print(f"{len(found.fits)} layouts in {seconds:.3f} s; best {found.choice(best)}")
    return [Check("5 search over 1,024 devices, of 5 s", seconds / 5.0, 1.0, "lower")]
