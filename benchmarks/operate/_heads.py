"""Heads beside one another on spiky series, and exact quantiles beside sampled ones."""

import tempfile
import time
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from benchmarks.common import Check, alternate

from steelyard.operate.forecast import RecentQuantiles, evaluate
from steelyard.operate.forecast.bounds import LEVELS
from steelyard.operate.forecast.corpus import generate_corpus
from steelyard.operate.forecast.networks import EncoderConfig
from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster
from steelyard.operate.forecast.networks.heads import head_quantiles
from steelyard.operate.forecast.networks.training import pretraining_budget

__all__ = ["head_checks"]

_SPIKY = ("idle", "bursts")
_SAMPLES = 10_000


def head_checks(quick: bool) -> list[Check]:
    """Train the heads alike on spiky series, score others of the kind; then time quantiles."""
    steps, count = (40, 40) if quick else (300, 200)
    corpus = generate_corpus(count, length=3000, seed=61, archetypes=_SPIKY)
    held_out = generate_corpus(30, length=2600, seed=62, archetypes=_SPIKY)
    rule = evaluate(RecentQuantiles(), held_out, 48, 6, 48)
    scores = {}
    for head in ("student-t", "gaussian", "flow"):
        begin = time.perf_counter()
        made = _trained(head, corpus, steps)
        report = evaluate(made, held_out, 48, 6, 48)
        scores[head] = report
        print(
            f"{head} head on spiky series: CRPS over recent quantiles "
            f"{report.crps_ratio(rule)[0]:.3f}, {time.perf_counter() - begin:.0f} s"
        )
    ratio, _ = scores["student-t"].crps_ratio(scores["gaussian"])
    return [
        Check("4 CRPS of the Student-T head over the Gaussian's, spiky", ratio, 0.97, "lower"),
        *_exact_quantiles(),
    ]


def _trained(
    head: Literal["student-t", "gaussian", "flow"], corpus: object, steps: int
) -> MaskedEncoderForecaster:
    """Pretrain an encoder with the paper's scaling and one of its heads."""
    config = EncoderConfig(
        head=head, scaling="standard", anchored=False, hidden_size=32, num_layers=2
    )
    forecaster = MaskedEncoderForecaster(config)
    with tempfile.TemporaryDirectory() as folder:
        forecaster.pretrain(corpus, pretraining_budget(steps, batch_size=64), Path(folder))  # pyright: ignore[reportArgumentType]
    return forecaster


def _exact_quantiles() -> list[Check]:
    """Compare the Student-T's closed quantiles with those of samples, in value and time."""
    outputs = torch.randn(1, 48, 3, generator=torch.Generator().manual_seed(0))
    scale = torch.nn.functional.softplus(outputs[..., 1]) + 1e-3
    freedom = 2 + torch.nn.functional.softplus(outputs[..., 2])
    law = torch.distributions.StudentT(freedom, outputs[..., 0], scale)

    def sampled(count: int = _SAMPLES) -> torch.Tensor:
        return torch.quantile(law.sample((count,))[:, 0], torch.tensor(LEVELS).float(), dim=0).T

    times = alternate(
        {"exact": lambda: head_quantiles("student-t", outputs), "sampled": sampled}, rounds=9
    )
    faster = float(np.median(times["sampled"]) / np.median(times["exact"]))
    torch.manual_seed(0)
    exact = head_quantiles("student-t", outputs)[0].numpy()
    inner = slice(2, 11)  # .1 to .9: what the CRPS reads
    drawn = np.mean([sampled().numpy() for _ in range(20)], axis=0)
    off = np.abs(exact - drawn)[:, inner] / scale[0].numpy()[:, None]
    print(
        f"exact quantiles: {faster:.0f}x faster than {_SAMPLES:,} samples, off by {off.mean():.2%}"
    )
    return [
        Check(
            "4 exact quantiles off from sampled ones, of a scale", float(off.mean()), 0.01, "lower"
        ),
        Check("4 speed of exact quantiles over 10,000 samples", faster, 20, "higher"),
    ]
