"""The noise scale measured inside training runs: exactness, cost, and its course on a decoder.

Exactness stands on a loss that is linear in the weights, whose gradients have a known mean and
covariance whatever the weights are. Cost is the time of steps that are measured over that of steps
that are not, taken in turn. The decoder learns words that follow one another with known odds.
"""

import copy
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.common import Check, ratio
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build
from steelyard.train import EstimatorConfig, TrainConfig
from steelyard.train.batches import Batch
from steelyard.train.callback import Callback
from steelyard.train.estimator import Estimator
from steelyard.train.measure import GradientNoiseScale
from steelyard.train.measure.example_norms import ExampleNorms
from steelyard.train.session import Session
from steelyard.train.trainer import TokenBatches, next_token_loss, train

__all__ = ["own_runs"]

_COLD_STEPS = 3


def own_runs(quick: bool) -> list[Check]:
    """Check the measurement where the truth is known, what it costs, and a decoder's course."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    checks = [*_known(), _example_norms(), *_overheads(12 if quick else 60), *_course(quick)]
    torch.set_num_threads(threads)
    return checks


class _Known:
    """Examples whose gradient has mean `mean` and independent parts of deviation `spread`."""

    def __init__(self, seed: int) -> None:
        self.mean, self.spread = torch.linspace(0.5, 1.5, 50), torch.linspace(1, 3, 50)
        self.seed = seed

    def batch(self, index: int, /) -> Tensor:
        """Draw the examples of a step."""
        generator = torch.Generator().manual_seed(100_000 * self.seed + index)
        return self.mean + self.spread * torch.randn(64, 50, generator=generator)


def _known() -> list[Check]:
    """Measure a known noise scale from two micro-batches of 32."""

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        return module(batch).mean()

    def run(source: _Known, steps: int) -> GradientNoiseScale:
        config = EstimatorConfig(
            steps=steps, batch_size=64, accumulation=2, learning_rate=1e-3, threads=1
        )
        gauge = GradientNoiseScale(every=1, decay=1 - 1e-9)
        with tempfile.TemporaryDirectory() as folder:
            module = nn.Linear(50, 1, bias=False)
            Estimator(module, loss, config, callbacks=[gauge]).fit(source, Path(folder))
        return gauge

    known = _Known(0)
    signal, noise = float(known.mean.square().sum()), float(known.spread.square().sum())
    found = run(known, 200).estimate.value
    repeats = run(_Known(1), 1000).tensors()
    bias = max(
        abs(float(repeats["signals"].mean()) / signal - 1),
        abs(float(repeats["noises"].mean()) / noise - 1),
    )
    return [
        Check(
            "1 error of a known B_simple after 200 steps",
            abs(found * signal / noise - 1),
            0.05,
            "lower",
        ),
        Check("1 bias of |G|^2 and tr Sigma over 1000 repeats", bias, 0.01, "lower"),
    ]


def _example_norms() -> Check:
    """Compare norms by example with gradients computed one example at a time."""
    worst = 0.0
    torch.manual_seed(0)
    tokens = torch.randint(0, 200, (6, 33))
    images = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 5),
    )
    pictures, classes = torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))
    for module, batch, loss in (
        (build(_architecture(64, 2, 200, tied=True)), tokens, next_token_loss),
        (
            images,
            (pictures, classes),
            lambda module, pair: F.cross_entropy(module(pair[0]), pair[1]),
        ),
    ):
        parameters = dict(module.named_parameters())
        norms = ExampleNorms(parameters)
        norms.start(6)
        with norms:
            whole = loss(module, batch)
        whole.backward()
        found = {name: 6 * row.sqrt() for name, row in norms.squared().items()}
        for index in range(6):
            one = copy.deepcopy(module)
            one.zero_grad()
            part = slice(index, index + 1)
            loss(
                one, batch[part] if isinstance(batch, Tensor) else tuple(t[part] for t in batch)
            ).backward()
            for name, parameter in one.named_parameters():
                assert parameter.grad is not None
                expected = float(parameter.grad.norm())
                worst = max(worst, abs(float(found[name][index]) / expected - 1))
    return Check("1 norms by example against brute force, largest error", worst, 1e-5, "lower")


def _overheads(rounds: int) -> list[Check]:
    """Time steps of sessions in turn: each source measured in every step, against none."""
    config = _run_config(512, 2, steps=10_000, sequence_length=64, batch_size=16)
    source = _Words(config.architecture.vocab_size)

    def session(*gauges: Callback) -> Session:
        model = build(config.architecture, seed=0)
        return Session(
            model, next_token_loss, TokenBatches(config, source), config, callbacks=gauges
        )

    names = ("accumulation", "per-example", "norm-layers")
    sessions = {"none": session()} | {
        name: session(GradientNoiseScale(name, every=1)) for name in names
    }
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(rounds + _COLD_STEPS):
        for name, item in sessions.items():
            seconds[name].append(item.step()[1])
    more = {
        name: ratio(seconds[name][_COLD_STEPS:], seconds["none"][_COLD_STEPS:]).median - 1
        for name in names
    }
    every = GradientNoiseScale().every
    return [
        Check(
            "2 time that accumulation adds, measured every 10 steps",
            more["accumulation"] / every,
            0.03,
            "lower",
        ),
        Check(
            "2 time that per-example norms add to a measured step",
            more["per-example"],
            0.25,
            "lower",
        ),
        Check(
            "2 time that norm layers add, measured every 10 steps",
            more["norm-layers"] / every,
            0.02,
            "lower",
        ),
    ]


def _course(quick: bool) -> list[Check]:
    """Train a decoder and compare the whole model's noise scale with that of its norms."""
    steps = 300 if quick else 1500
    config = _run_config(64, 2, steps=steps, sequence_length=64, batch_size=32)
    whole, norms = (
        GradientNoiseScale(source, every=5, decay=0.9) for source in ("per-example", "norm-layers")
    )
    with tempfile.TemporaryDirectory() as folder:
        train(
            config, _Words(config.architecture.vocab_size), Path(folder), callbacks=[whole, norms]
        )
    curves = np.array([_curve(gauge) for gauge in (whole, norms)])
    good = np.isfinite(curves).all(0)
    logs = np.log(curves[:, good])
    count = max(1, logs.shape[1] // 8)
    rise = float(np.exp(np.median(logs[0, -count:]) - np.median(logs[0, :count])))
    print(
        f"  decoder: B_simple {np.exp(logs[0, 0]):.1f} -> {np.exp(logs[0, -1]):.1f} sequences, "
        f"norm layers {np.exp(logs[1, 0]):.1f} -> {np.exp(logs[1, -1]):.1f}"
    )
    return [
        Check(
            "2 correlation of the norm layers' ln B_simple with the whole's",
            float(np.corrcoef(logs)[0, 1]),
            0.9,
            "higher",
        ),
        Check("4 rise of B_simple from the first to the last eighth", rise, 5.0, "higher"),
    ]


def _curve(gauge: GradientNoiseScale) -> list[float]:
    """Return the noise scale by measurement; NaN where there is none."""
    pairs = gauge.report()["curve"]
    assert isinstance(pairs, list)
    return [np.nan if value is None else value for _, value in pairs]


class _Words:
    """Tokens each of which has eight possible successors with odds of 1, 1/2, ..., 1/8.

    Successors are drawn by Zipf's law, so that frequencies are learned first and order later.
    """

    bytes_per_token = 1.0
    tokenizer = None

    def __init__(self, vocab_size: int, count: int = 1 << 18) -> None:
        rng = np.random.default_rng(0)
        self.vocab_size = vocab_size
        ranks = 1 / np.arange(1, vocab_size + 1)
        followers = rng.choice(vocab_size, (vocab_size, 8), p=ranks / ranks.sum())
        odds = 1 / np.arange(1, 9)
        choices = rng.choice(8, count, p=odds / odds.sum())
        tokens = np.zeros(count, dtype=np.int64)
        for index in range(1, count):
            tokens[index] = followers[tokens[index - 1], choices[index]]
        self.num_tokens = count - 4096
        self.heldout_tokens: NDArray[np.int64] = tokens[-4096:]
        self._tokens = tokens[: self.num_tokens]

    def batch(
        self, index: int, batch_size: int, sequence_length: int, seed: int
    ) -> NDArray[np.int64]:
        """Cut windows at random places."""
        rng = np.random.default_rng((seed, index))
        starts = rng.integers(0, self.num_tokens - sequence_length - 1, batch_size)
        return self._tokens[starts[:, None] + np.arange(sequence_length + 1)]


def _architecture(width: int, layers: int, vocab_size: int, *, tied: bool = False) -> Architecture:
    """Make a decoder's record."""
    return Architecture(
        name=f"h{width}-l{layers}",
        hidden_size=width,
        num_layers=layers,
        num_heads=width // 32,
        num_kv_heads=width // 32,
        head_dim=32,
        intermediate_size=width * 8 // 3,
        vocab_size=vocab_size,
        max_positions=256,
        tied_embeddings=tied,
    )


def _run_config(
    width: int, layers: int, *, steps: int, batch_size: int, sequence_length: int
) -> TrainConfig:
    """Make the run of a decoder in two micro-batches at a constant rate."""
    return TrainConfig(
        architecture=_architecture(width, layers, 512),
        steps=steps,
        batch_size=batch_size,
        sequence_length=sequence_length,
        accumulation=2,
        learning_rate=0.2 / width,
        warmup_steps=20,
        eval_tokens=2048,
        threads=2,
    )
