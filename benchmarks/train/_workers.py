"""Checks of processes that share a step: their gradient, and the time that summing it takes."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from benchmarks.common import Check, ratio
from benchmarks.train._gradient_rank import Points, classify, gradient, network
from benchmarks.train._launch import launch
from torch import Tensor, nn

from steelyard.errors import ConfigError
from steelyard.train import EstimatorConfig
from steelyard.train.batches import Batch
from steelyard.train.scale_recipe import check_normalisation

__all__ = ["gradients", "sums"]


def gradients() -> list[Check]:
    """Compare the gradient of 2 and 4 processes with that of one on the same samples."""
    with tempfile.TemporaryDirectory() as folder:
        whole, tree = (gradient(count, Path(folder) / str(count)) for count in (1, 4))
    checks = []
    for count in (2, 4):
        shared = _shared_gradient(count)
        error = float(np.linalg.norm(shared - whole) / np.linalg.norm(whole))
        checks += [
            Check(
                f"2 gradient of {count} processes against the whole batch's", error, 1e-6, "lower"
            ),
            Check(
                f"2 elements that differ in any bit from one process's tree, {count} processes",
                float((shared != tree).sum()),
                0.0,
                "lower",
            ),
        ]
    config = EstimatorConfig(
        steps=1, batch_size=256, accumulation=4, optimizer="sgd", learning_rate=0.1, threads=1
    )
    check_normalisation(network(), classify, Points(), config)

    def summed(module: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(batch, tuple)
        return F.cross_entropy(module(batch[0]), batch[1], reduction="sum")

    try:
        check_normalisation(network(), summed, Points(), config)
        found = 0.0
    except ConfigError:
        found = 1.0
    return [*checks, Check("2 a loss that is no mean is found", found, 1.0, "higher")]


def _shared_gradient(count: int) -> np.ndarray:
    """Return the gradient that processes found together."""
    with tempfile.TemporaryDirectory() as folder:
        launch(count, "_gradient_rank", lambda rank: [f"{folder}/{rank}.npy", "4"])
        return np.load(Path(folder) / "0.npy")


def sums(quick: bool) -> list[Check]:
    """Time summing during and after the backward pass, and our sums against the library's."""
    found = _timed(2, "overlap", 8 if quick else 24)
    seconds = found["seconds"]
    apart, after, during = (np.array(seconds[name]) for name in ("apart", "after", "during"))
    # Differences within a round: what disturbs the machine disturbs all three.
    summing, hidden = np.median(after - apart), np.median(after - during)
    print(
        f"  step without sums {np.median(apart):.3f} s, summing {summing:.3f} s, of which "
        f"{hidden:.3f} s are hidden"
    )
    checks = [
        Check(
            "5 share of the all-reduce that overlap hides, 2 processes, 1 Gbit/s",
            float(hidden / summing),
            0.5,
            "higher",
        ),
        Check("5 losses with and without overlap are equal", float(found["equal"]), 1.0, "higher"),
    ]
    for count in (2, 4):
        ways = _timed(count, "bandwidth", 10 if quick else 40)["seconds"]
        faster = ratio(ways["built-in"], ways["halving-doubling"]).median
        name = f"5 bandwidth of our halving and doubling over gloo's, 25 MB, {count} processes"
        checks.append(Check(name, faster, 0.8, "higher"))
    return checks


def _timed(count: int, kind: str, rounds: int) -> dict[str, Any]:
    """Return what processes timed together."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        launch(count, "_overlap_rank", lambda _: [str(path), kind, str(rounds)])
        return json.loads(path.read_text())
