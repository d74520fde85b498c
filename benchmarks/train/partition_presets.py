"""A decoder spread over processes in four ways against the same decoder in one process.

Roberts et al. 2022 (arXiv 2203.17189): parameters and activations in one or two dimensions. All
train to equal losses, and two-dimensional parameters leave each process its share of weights and
moments alone.
"""

import json
import tempfile
from pathlib import Path

import torch
from benchmarks.common import Check
from benchmarks.train._launch import launch
from benchmarks.train._preset_rank import losses_and_held_bytes

PAPER = ["25-t5x-seqio"]

_PRESETS = ("P1A1", "P1A2", "P2A1", "P2A2")


def run(quick: bool) -> list[Check]:
    """Train alone, in two processes, and in the full version in four."""
    torch.set_num_threads(1)
    steps = 12 if quick else 50
    alone, whole_bytes = losses_and_held_bytes(steps)
    checks = []
    for count in (2,) if quick else (2, 4):
        # Two processes lie in one direction: that which the preset is about.
        ways = {preset: 1 if count == 2 and preset == "P2A1" else 2 for preset in _PRESETS}
        for preset, (losses, held_bytes) in _spread(count, ways, steps).items():
            worst = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
            share = held_bytes / whole_bytes
            print(
                f"  {preset} of {count}: losses within {worst:.1e}, a process holds {share:.2f} of "
                f"weights and moments"
            )
            name = f"6 {preset} of {count} processes"
            checks.append(Check(f"{name}, largest difference of a loss", worst, 1e-6, "lower"))
            if preset.startswith("P2"):
                checks.append(Check(f"{name}, held over its share", share * count, 1.05, "lower"))
    return checks


def _spread(count: int, ways: dict[str, int], steps: int) -> dict[str, tuple[list[float], int]]:
    """Train in several processes; return the losses and the bytes that the first one holds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        names = [f"{preset}-{model}" for preset, model in ways.items()]
        launch(count, "_preset_rank", lambda _: [str(path), str(steps), *names])
        return json.loads(path.read_text())
