"""Short pretrainings of three sizes by three amounts of data: what a larger one would reach.

`python -m benchmarks.operate._pretraining_cells` trains the cells, three seeds each, and the
largest run that the law is asked for; they are kept in results/cells/. The data axis is the windows
trained on, each drawn once from a corpus far larger than they are, as steps are what this machine
can vary.
"""

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import torch
from benchmarks.common import Check

from steelyard import laws
from steelyard.files import read_json, write_json
from steelyard.laws.forms.chinchilla import chinchilla
from steelyard.operate.forecast.corpus import generate_corpus
from steelyard.operate.forecast.networks import EncoderConfig
from steelyard.operate.forecast.networks.batches import WindowBatches
from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster
from steelyard.operate.forecast.networks.training import pretraining_budget, window_loss
from steelyard.operate.series import SeriesSet

__all__ = ["scaling_checks"]

_CELLS = Path(__file__).parents[1] / "results" / "cells" / "cloudops_scaling.json"
_WIDTHS = (8, 16, 32)
_STEPS = (40, 120, 360)
_LARGEST = (64, 1080)
_BATCH = 32
_SEEDS = (0, 1, 2)


class _Cell(msgspec.Struct, frozen=True):
    """One run: width, steps, seed, parameters and held-out loss (scaled CRPS)."""

    width: int
    steps: int
    seed: int
    parameters: int
    loss: float


def scaling_checks() -> list[Check]:
    """Hold stored cells against both monotonies, and the law of the nine against the largest."""
    if not _CELLS.exists():
        print("scaling: no cells; python -m benchmarks.operate._pretraining_cells makes them")
        return []
    cells = msgspec.convert(read_json(_CELLS), list[_Cell])
    if not cells:
        return []
    grid = {
        (width, steps): np.mean(
            [cell.loss for cell in cells if (cell.width, cell.steps) == (width, steps)]
        )
        for width in _WIDTHS
        for steps in _STEPS
    }
    table = np.array([[grid[width, steps] for steps in _STEPS] for width in _WIDTHS])
    falls = int((np.diff(table, axis=0) < 0).sum() + (np.diff(table, axis=1) < 0).sum())
    for width, row in zip(_WIDTHS, table, strict=True):
        print(f"scaling: width {width:3d}: loss {' '.join(f'{item:.4f}' for item in row)}")
    small = [cell for cell in cells if (cell.width, cell.steps) != _LARGEST]
    large = [cell for cell in cells if (cell.width, cell.steps) == _LARGEST]
    if len(small) < len(_WIDTHS) * len(_STEPS) * len(_SEEDS) or not large:
        print(
            "scaling: cells are missing; python -m benchmarks.operate._pretraining_cells makes them"
        )
        return []
    points = {
        "parameters": [float(cell.parameters) for cell in small],
        "tokens": [float(cell.steps * _BATCH) for cell in small],
    }
    fitted = laws.fit(chinchilla(), points, [cell.loss for cell in small])
    asked = {"parameters": [float(large[0].parameters)], "tokens": [float(_LARGEST[1] * _BATCH)]}
    said = float(np.asarray(fitted.predict(asked).value)[0])
    came = float(np.mean([cell.loss for cell in large]))
    print(f"scaling: the largest run was forecast at {said:.4f}, and came to {came:.4f}")
    return [
        Check("2 falls with size and data, of 12 neighbours", falls, 12, "higher"),
        Check("2 law's error of the largest run", abs(said / came - 1), 0.05, "lower"),
    ]


def _train(width: int, steps: int, seed: int, corpus: SeriesSet, held_out: object) -> _Cell:
    """Train one cell and measure its loss on held-out windows."""
    # Unanchored: begun at recent quantiles, the smallest cells would have little left to learn.
    config = EncoderConfig(hidden_size=width, num_layers=2, anchored=False, seed=seed)
    made = MaskedEncoderForecaster(config)
    budget = pretraining_budget(steps, batch_size=_BATCH, learning_rate=3e-3, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        result = made.pretrain(corpus, budget, Path(folder))
    with torch.no_grad():
        loss = float(window_loss(made.network, held_out))  # pyright: ignore[reportArgumentType]
    return _Cell(width, steps, seed, result.parameters, loss)


def main() -> None:
    """Train all cells that are not there yet."""
    corpus = generate_corpus(400, length=4000, seed=71)
    held_out = WindowBatches(generate_corpus(100, length=4000, seed=72), EncoderConfig(), 1024, 5)
    batch = held_out.batch(0)
    cells = msgspec.convert(read_json(_CELLS), list[_Cell]) if _CELLS.exists() else []
    done = {(cell.width, cell.steps, cell.seed) for cell in cells}
    plan = [(width, steps, seed) for seed in _SEEDS for width in _WIDTHS for steps in _STEPS]
    plan += [(*_LARGEST, seed) for seed in _SEEDS]
    for cell in plan:
        if cell not in done:
            cells.append(_train(*cell, corpus, batch))
            print(cells[-1], flush=True)
            write_json(_CELLS, cells)


if __name__ == "__main__":
    main()
