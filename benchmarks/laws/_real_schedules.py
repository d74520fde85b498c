"""Real runs of this package's trainer: does the schedule a law finds beat the usual ones?

A byte transformer of 35,000 parameters reads Python's own library. Four runs of one seed, a
constant rate, a cosine, two stages and a cooldown, are what the law is fitted to. The schedule of
least predicted loss and its rivals then run on other seeds, with the same weights, data and peak
rate per seed.
"""

import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from benchmarks.common import Check

from steelyard.catalog.architecture import Architecture
from steelyard.laws.decisions.best_schedule import best_schedule
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules.curves import Curve, fit_curves, predict_curve
from steelyard.laws.forms.schedules.schedule_rates import LearningRates
from steelyard.train.config import TrainConfig
from steelyard.train.result import TrainResult
from steelyard.train.trainer import train

__all__ = ["real_runs"]

_PEAK = 1e-2
_FITTED_SEED = 100
_WINDOW = 64


class _LibraryBytes:
    """The sources of Python's standard library as bytes, the last 200,000 held out."""

    vocab_size = 256
    bytes_per_token = 1.0
    tokenizer = None

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        raw = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
        self.heldout_tokens = raw[-200_000:].astype(np.int64)
        self._tokens = raw[:-200_000].astype(np.int64)
        self.num_tokens = len(self._tokens)

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int) -> np.ndarray:
        """Draw windows [B, T + 1] that depend on nothing but index and seed."""
        starts = np.random.default_rng((seed, index)).integers(
            0, self.num_tokens - sequence_length - 1, batch_size
        )
        return self._tokens[starts[:, None] + np.arange(sequence_length + 1)]


def _run(
    rates: LearningRates, seed: int, source: _LibraryBytes, every: int = 0, tokens: int = 32768
) -> TrainResult:
    """Train one model under a schedule, measured every so many steps, or only at the end."""
    config = TrainConfig(
        architecture=Architecture(
            name="bytes-32x2",
            hidden_size=32,
            num_layers=2,
            num_heads=2,
            num_kv_heads=2,
            head_dim=16,
            intermediate_size=96,
            vocab_size=256,
            max_positions=_WINDOW,
        ),
        steps=rates.steps,
        batch_size=16,
        sequence_length=_WINDOW,
        learning_rate=_PEAK,
        schedule=tuple((rates.rates / _PEAK).tolist()),
        eval_every=every,
        eval_tokens=tokens,
        seed=seed,
        threads=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        return train(config, source, Path(folder))


def _curve(rates: LearningRates, result: TrainResult, first: int) -> Curve:
    """Take the held-out losses from a step on; after n steps the rates up to n - 1 have acted."""
    steps, losses = np.array(result.eval_losses).T
    kept = steps > first
    return Curve(rates=rates, step=steps[kept] - 1, loss=losses[kept])


def real_runs(quick: bool) -> list[Check]:
    """Fit a law to real runs, follow the schedule found, and compare its final loss with rivals'.

    Args:
        quick: 120 steps and one seed, in place of 1500 and three.

    Returns:
        What the schedule found gains over each rival, averaged over the seeds, in nats per byte.
    """
    steps, warmup, every = (120, 12, 8) if quick else (1500, 100, 25)
    tokens = 8192 if quick else 32768
    seeds = (0,) if quick else (0, 1, 2)
    source = _LibraryBytes()
    usual = {
        "cosine to 10 %": LearningRates.cosine(steps, _PEAK, warmup),
        "cosine to 0": LearningRates.cosine(steps, _PEAK, warmup, 0.0),
        "linear to 0": LearningRates.trapezoid(steps, _PEAK, warmup, 1 - warmup / steps, "linear"),
        "constant, 1-sqrt over 20 %": LearningRates.trapezoid(steps, _PEAK, warmup),
    }
    studied = {
        "constant": LearningRates.constant(steps, _PEAK, warmup),
        "cosine": usual["cosine to 10 %"],
        "two stages": LearningRates.two_stage(steps, _PEAK, 0.2 * _PEAK, steps // 2, warmup),
        "cooldown": usual["constant, 1-sqrt over 20 %"],
    }
    curves = [
        _curve(rates, _run(rates, _FITTED_SEED, source, every, tokens), 2 * warmup)
        for rates in studied.values()
    ]
    fit = fit_curves(curves, bootstrap=Bootstrap(count=5 if quick else 20))
    found = best_schedule(fit, steps, _PEAK, warmup=warmup)
    said = predict_curve(fit, found.rates, [steps - 1]).first
    ends = {
        name: np.array([_run(rates, seed, source, tokens=tokens).eval_loss for seed in seeds])
        for name, rates in {"found": found.rates, **usual}.items()
    }
    _print(found.rates, said.value, (said.low, said.high), ends)
    checks = [
        Check(
            f"7 real runs: final loss of {name} minus that of the schedule found, nats/byte",
            float((ends[name] - ends["found"]).mean()),
            0.0,
            "higher",
        )
        for name in usual
    ]
    # Ten points of a run that has hardly begun to learn foretell its end to a few percent only.
    error = abs(said.value / float(ends["found"].mean()) - 1)
    bar = 0.05 if quick else 0.01
    return [
        *checks,
        Check("7 real runs: predicted final loss, relative error", error, bar, "lower"),
    ]


def _print(
    rates: LearningRates, value: float, interval: tuple[float, float], ends: Mapping[str, Array]
) -> None:
    """Show the schedule found, what the law said of it, and what every seed gave."""
    tenths = rates.rates[np.linspace(0, rates.steps - 1, 11).astype(int)] / _PEAK
    print(f"schedule found, tenths of the run: {' '.join(f'{item:.2f}' for item in tenths)}")
    print(f"predicted {value:.4f} ({interval[0]:.4f} to {interval[1]:.4f})")
    for name, losses in ends.items():
        print(f"{name}: {losses.mean():.4f} ({' '.join(f'{loss:.4f}' for loss in losses)})")
