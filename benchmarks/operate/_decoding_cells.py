"""One pass of a masked encoder against forecasts step by step: accuracy in cells, speed anew.

`python -m benchmarks.operate._decoding_cells` trains both kinds on the same windows for the same
steps, three seeds each, and scores them on series of other seeds; the scores are kept in
results/cells/. Speed does not depend on the weights, so every run measures it.
"""

import tempfile
import time
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from benchmarks.common import Check
from benchmarks.operate._autoregressive import DecoderForecaster, StepDecoder, decoder_loss

from steelyard.files import read_json, write_json
from steelyard.operate.forecast import Forecaster, RecentQuantiles, evaluate
from steelyard.operate.forecast.corpus import generate_corpus
from steelyard.operate.forecast.networks import EncoderConfig
from steelyard.operate.forecast.networks.batches import WindowBatches
from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster
from steelyard.operate.forecast.networks.training import pretraining_budget
from steelyard.operate.series import SeriesSet
from steelyard.parallel import torch_threads
from steelyard.train.estimator import Estimator

__all__ = ["decoding_checks"]

_CELLS = Path(__file__).parents[1] / "results" / "cells" / "cloudops_decoding.json"
_HORIZON = 48
_STEPS, _WINDOWS_A_STEP = 300, 32
_SEEDS = (0, 1, 2)

Kind = Literal["masked", "autoregressive"]


class _Cell(msgspec.Struct, frozen=True):
    """One run: kind, seed, parameters, training loss of the last steps, and scores."""

    kind: Kind
    seed: int
    parameters: int
    loss: float
    crps: float
    crps_over_recent: float


def _shape(seed: int) -> EncoderConfig:
    """Return the shape of both: one step a token, the paper's scaling and head."""
    return EncoderConfig(
        context_steps=144,
        horizon=_HORIZON,
        patch=1,
        hidden_size=32,
        num_layers=2,
        head="student-t",
        scaling="standard",
        anchored=False,
        seed=seed,
    )


def decoding_checks(quick: bool) -> list[Check]:
    """Compare kept scores, and measure both speeds.

    Args:
        quick: fewer windows and rounds of the timing.
    """
    checks = [_speed(8, rounds=2) if quick else _speed(32, rounds=5)]
    cells = msgspec.convert(read_json(_CELLS), list[_Cell]) if _CELLS.exists() else []
    # Seeds whose other kind is not trained yet would compare unequal sets.
    seeds = [seed for seed in _SEEDS if sum(cell.seed == seed for cell in cells) == 2]
    if len(seeds) < len(_SEEDS):
        print("decoding: cells are missing; python -m benchmarks.operate._decoding_cells adds them")
    if not seeds:
        return checks
    means = {}
    for kind in ("masked", "autoregressive"):
        own = [cell for cell in cells if cell.kind == kind and cell.seed in seeds]
        means[kind] = np.mean([cell.crps_over_recent for cell in own])
        pooled = " ".join(f"{cell.crps:.4f}" for cell in own)
        print(
            f"decoding: {kind}, {own[0].parameters:,} parameters, {len(seeds)} seeds: CRPS over "
            f"recent quantiles {means[kind]:.4f} (geometric mean over series), pooled {pooled}"
        )
    ratio = float(means["masked"] / means["autoregressive"])
    return [*checks, Check("3 CRPS of one pass over step by step", ratio, 1.03, "lower")]


def _speed(windows: int, rounds: int) -> Check:
    """Measure the processor time of forecasts of the same windows, in turn."""
    series = generate_corpus(windows, length=1800, seed=83)
    rivals: dict[str, Forecaster] = {
        "one pass": MaskedEncoderForecaster(_shape(0)),
        "step by step": DecoderForecaster(StepDecoder(_shape(0)).eval()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + 1):
        for name, forecaster in rivals.items():
            begin = time.process_time()
            forecaster.predict(series, _HORIZON)
            if turn:  # the first one warms up
                seconds[name].append(time.process_time() - begin)
    rates = {name: len(series) / float(np.median(spent)) for name, spent in seconds.items()}
    words = ", ".join(f"{name} {rate:,.1f}" for name, rate in rates.items())
    print(f"decoding: windows per second of processor time: {words}")
    faster = rates["one pass"] / rates["step by step"]
    return Check("3 windows/s of one pass over step by step", faster, 10, "higher")


def _train(kind: Kind, seed: int, corpus: SeriesSet, held_out: SeriesSet) -> _Cell:
    """Train one kind and score it on series of other seeds."""
    config = _shape(seed)
    budget = pretraining_budget(_STEPS, batch_size=_WINDOWS_A_STEP, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        if kind == "masked":
            made: Forecaster = MaskedEncoderForecaster(config)
            result = made.pretrain(corpus, budget, Path(folder))
        else:
            network = StepDecoder(config)
            batches = WindowBatches(corpus, config, _WINDOWS_A_STEP, seed)
            result = Estimator(network, decoder_loss, budget).fit(batches, Path(folder))
            made = DecoderForecaster(network.eval(), seed)
    found = evaluate(made, held_out, _HORIZON, 4, _HORIZON)
    rule = evaluate(RecentQuantiles(), held_out, _HORIZON, 4, _HORIZON)
    loss = float(np.mean(result.losses[-50:]))
    return _Cell(kind, seed, result.parameters, loss, found.pooled.crps, found.crps_ratio(rule)[0])


def main() -> None:
    """Train all cells that are not there yet."""
    corpus = generate_corpus(300, length=3000, seed=81)
    held_out = generate_corpus(60, length=2600, seed=82)
    cells = msgspec.convert(read_json(_CELLS), list[_Cell]) if _CELLS.exists() else []
    done = {(cell.kind, cell.seed) for cell in cells}
    kinds: tuple[Kind, ...] = ("masked", "autoregressive")
    with torch_threads(1):
        for seed in _SEEDS:
            for kind in kinds:
                if (kind, seed) not in done:
                    cells.append(_train(kind, seed, corpus, held_out))
                    print(cells[-1], flush=True)
                    write_json(_CELLS, cells)


if __name__ == "__main__":
    main()
