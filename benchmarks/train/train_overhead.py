"""The trainer against a bare loop written by hand.

Same model, batches, optimizer and threads, tokens per second of both.

The bare loop does the least that trains: no history, checkpoints, evaluation, schedule or checks,
and its batches lie ready in memory. They take turns step by step, so a disturbance hits both; the
figure is the median over steps of bare seconds / trainer seconds. transformers.Trainer (a peer)
and ours take turns on a decoder of 100 M parameters in bf16. Seven exponential averages of the
weights, tracked in one run, are held against the same run without (Zhang et al. 2024, arXiv
2410.21676).
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.common import Check, ratio
from benchmarks.train._decoder import RandomTokens, decoder
from benchmarks.train._trainer_peer import beside_trainer

from steelyard.nn.transformer import build
from steelyard.train import Progress, TrainConfig
from steelyard.train.trainer import open_session, train
from steelyard.train.weight_average import WeightAverage

PAPER = ["40-beyond-fixed-durations", "35-critical-batch-size"]
_BAR = 1.0
_DECAYS = (0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995)
_COLD_STEPS = 5


def _config(hidden_size: int, num_layers: int, steps: int) -> TrainConfig:
    """Make the run that both sides do."""
    return TrainConfig(
        architecture=decoder(hidden_size, num_layers, 2048),
        steps=steps,
        batch_size=8,
        sequence_length=128,
        learning_rate=1e-3,
        warmup_steps=5,
        cooldown_steps=5,
        checkpoint_every=max(10, steps // 2),
        eval_tokens=128,
        threads=2,
    )


class _BareLoop:
    """The hand-written loop, one step at a time."""

    def __init__(self, config: TrainConfig, source: RandomTokens) -> None:
        self.config = config
        self.model = build(config.architecture, seed=0)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=0.1,
            fused=True,
        )
        size = (config.batch_size, config.sequence_length)
        self.batches = [
            torch.from_numpy(source.batch(index, *size, 0)) for index in range(config.steps)
        ]

    def step_s(self, index: int) -> float:
        """Train one step and give its wall time."""
        start = time.perf_counter()
        tokens = self.batches[index]
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start


def _speed_ratio(config: TrainConfig, source: RandomTokens) -> float:
    """Return tokens per second of the trainer over those of the bare loop, step against step.

    The bare loop takes its step in the trainer's callback; the trainer's time is all that passes
    between two callbacks.
    """
    bare_loop = _BareLoop(config, source)
    bare, ours = [], []
    returned = time.perf_counter()

    def on_step(progress: Progress) -> None:
        nonlocal returned
        ours.append(time.perf_counter() - returned)
        bare.append(bare_loop.step_s(progress.step - 1))
        returned = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        train(config, source, Path(folder), on_step=on_step)
    return ratio(bare[_COLD_STEPS:], ours[_COLD_STEPS:]).median


def run(quick: bool) -> list[Check]:
    """Measure both sides in turn for a small and a larger model.

    Args:
        quick: fewer steps.

    Returns:
        Tokens per second of the trainer over those of the bare loop, per model.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    source = RandomTokens(2048)
    checks = []
    for hidden_size, num_layers, steps in ((64, 2, 100), (192, 4, 40)):
        config = _config(hidden_size, num_layers, steps if quick else 4 * steps)
        checks.append(
            Check(
                f"tokens/s of trainer over bare loop, {config.architecture.name}",
                _speed_ratio(config, source),
                _BAR,
                "higher",
            )
        )
    if not quick:
        # The compiler takes most of a minute.
        faster = replace(_config(192, 4, 160), compile=True)
        name = "tokens/s of compiled trainer over bare loop, h192-l4"
        checks.append(Check(name, _speed_ratio(faster, source), _BAR, "higher"))
    checks.append(_averages(source, 40 if quick else 160))
    checks += beside_trainer(1 if quick else 5)
    checks += [] if quick else beside_trainer(5, compiled=True)
    torch.set_num_threads(threads)
    return checks


def _averages(source: RandomTokens, rounds: int) -> Check:
    """Time steps with and without averages in turn, on the larger model."""
    config = _config(192, 4, rounds + _COLD_STEPS)
    kinds = tuple(WeightAverage(kind="ema", decay=decay) for decay in _DECAYS)
    sessions = [
        open_session(replace(config, averages=averages), source) for averages in (kinds, ())
    ]
    seconds: list[list[float]] = [[], []]
    for _ in range(config.steps):
        for kept, session in zip(seconds, sessions, strict=True):
            kept.append(session.step()[1])
    more = ratio(seconds[0][_COLD_STEPS:], seconds[1][_COLD_STEPS:]).median - 1
    return Check("time that 7 averages of the weights add to a step", more, 0.05, "lower")
