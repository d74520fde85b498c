"""The price tag of a run against the run: is its time right, and is the interval honest.

Small decoders of different sizes, lengths, checkpoints and evaluations are priced and then trained,
one after the other on the machine as it is, each in a process of its own. Every price knows how the
ones before it came out, as the ledger would tell it. Beside it stands the simple rule that a run
takes its steps and nothing else.
"""

import math
import statistics
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
from benchmarks.common import Check

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.data import text
from steelyard.quantity import Check as Pair
from steelyard.quantity import Measurement
from steelyard.train.config import TrainConfig
from steelyard.train.pace import time_few_steps
from steelyard.train.price import price_run
from steelyard.train.worker import TrainProcess

PAPER: list[str] = []
_VOCABULARY = 512
_FIRST = 5
"""Runs after which intervals are counted: before them they are assumed."""


def run(quick: bool) -> list[Check]:
    """Price and train.

    Args:
        quick: six runs.

    Returns:
        Coverage and width of the intervals of the time, and its error beside the simple rule's.
    """
    pairs: list[Pair] = []
    plain: list[float] = []
    site, machine = catalog.site("world-average"), catalog.accelerator("H100-SXM5-80GB")
    with tempfile.TemporaryDirectory() as name, TrainProcess() as process:
        folder = Path(name)
        source = Path(sysconfig.get_path("stdlib")) / "asyncio"
        text.prepare([source], folder / "data", vocab_size=_VOCABULARY)
        process.start()
        for number, config in enumerate(_configs(6 if quick else 60)):

            def train(short, where, on_step):
                return process.train(short, folder / "data", where, on_step=on_step)

            pace = time_few_steps(config, folder, train)
            said = price_run(config, pace, machine=machine, site=site, past=pairs).forecasts[0]
            result = process.train(config, folder / "data", folder / f"run-{number}")
            measured = Measurement(quantity="run.duration", value=result.duration_s)
            pairs.append(Pair(said, measured))
            plain.append(abs(math.log(pace.step_s * config.steps / result.duration_s)))
            print(
                f"{said.value:6.1f} s ({said.low:.1f} to {said.high:.1f}): {measured.value:.1f} s"
            )
    return _checks(pairs, plain, quick=quick)


def _configs(count: int) -> list[TrainConfig]:
    """Draw recipes."""
    rng = np.random.default_rng(0)
    return [_config(rng, number) for number in range(count)]


def _config(rng: np.random.Generator, number: int) -> TrainConfig:
    """Draw one recipe of a second or some."""
    heads, steps = int(rng.integers(1, 5)), int(rng.integers(60, 200))
    shape = Architecture(
        name=f"price-{number}",
        hidden_size=32 * heads,
        num_layers=int(rng.integers(1, 4)),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=32,
        intermediate_size=64 * heads,
        vocab_size=_VOCABULARY,
        max_positions=128,
    )
    return TrainConfig(
        architecture=shape,
        steps=steps,
        batch_size=int(rng.choice([4, 8, 16])),
        sequence_length=int(rng.choice([32, 64])),
        learning_rate=1e-3,
        checkpoint_every=int(rng.choice([0, steps // 4, steps // 10])),
        eval_every=int(rng.choice([0, steps // 5])),
        eval_tokens=int(rng.choice([2048, 8192])),
        threads=1,
    )


def _checks(pairs: list[Pair], plain: list[float], *, quick: bool) -> list[Check]:
    """Sum up; coverage of six runs says nothing."""
    errors = [abs(math.log(item.forecast.value / item.measurement.value)) for item in pairs]
    over = statistics.median(errors) / statistics.median(plain)
    checks = [Check("error of the time over that of steps alone", over, 1.0, "lower")]
    if quick:
        return checks
    counted = pairs[_FIRST:]
    covered = statistics.fmean(item.covered for item in counted)
    width = statistics.median(
        math.log(item.forecast.high / item.forecast.value) for item in counted
    )
    error = statistics.median(errors[_FIRST:])
    print(f"{len(counted)} runs: median error {error:.1%}, half-width {width:.1%}")
    return [
        *checks,
        Check("runs whose intervals are counted", len(counted), 50, "higher"),
        Check("80 % intervals that hold, at least", covered, 0.7, "higher"),
        Check("80 % intervals that hold, at most", covered, 0.9, "lower"),
        Check("half-width over median error", width / error, 2.5, "lower"),
    ]
