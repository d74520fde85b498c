"""Real features and measured probes on them, for forecasts of learning curves."""

import csv
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks import peers
from benchmarks.laws._shared import shared
from numpy.typing import NDArray

from steelyard.laws.theory.random_features import RandomFeatureModel

__all__ = ["Probes", "digits", "forecast", "measure", "molecules", "power_law"]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Probes:
    """Which linear probes are trained.

    Attributes:
        ridges: penalties in units of the largest variance.
        steps: numbers of steps of gradient descent at half the inverse of the largest variance.
        top: largest variance of the features.
    """

    ridges: tuple[float, ...]
    steps: tuple[int, ...]
    top: float

    @property
    def names(self) -> list[str]:
        """Column heads."""
        return [f"ridge {ridge:g}" for ridge in self.ridges] + [
            f"{step} steps" for step in self.steps
        ]


def digits() -> tuple[Array, Array]:
    """Return pixels and one-hot classes of 1,797 handwritten digits, from the peer scikit-learn."""
    interpreter = peers.python("scikit-learn")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.npz"
        code = (
            "import sys, numpy, sklearn.datasets as d; x, y = d.load_digits(return_X_y=True); "
            "numpy.savez(sys.argv[1], x=x, y=y)"
        )
        subprocess.run([interpreter, "-c", code, file], check=True)
        with np.load(file) as data:
            return data["x"].astype(np.float64) / 16, np.eye(10)[data["y"]]


def molecules(columns: int = 512) -> tuple[Array, Array]:
    """Return hashed letter sequences of 1,999 molecules and their orbital energies (PCQM4Mv2)."""
    with (shared("molecules") / "pcqm4mv2_2k.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    counts = np.zeros((len(rows), columns))
    for row, record in enumerate(rows):
        name = f"^{record['smiles']}$"
        for length in (1, 2, 3, 4):
            for begin in range(len(name) - length + 1):
                counts[row, zlib.crc32(name[begin : begin + length].encode()) % columns] += 1
    return np.log1p(counts), np.array([[float(record["homo_lumo_or_homo_ev"])] for record in rows])


def measure(
    task: tuple[Array, Array],
    rows: tuple[Rows, Rows],
    sizes: list[int],
    probes: Probes,
    repeats: int,
    generator: np.random.Generator,
) -> Array:
    """Train every probe on random subsets and take its squared error on the held-out rows.

    Args:
        task: features and targets.
        rows: held-out rows and rows to train on.
        sizes: sizes of the subsets.
        probes: probes to train.
        repeats: subsets per size.
        generator: draws the subsets.

    Returns:
        Mean squared error, [sizes, probes].
    """
    features, targets = task
    held, pool = rows
    errors = np.zeros((len(sizes), len(probes.names)))
    for index, size in enumerate(sizes):
        for _ in range(repeats):
            chosen = generator.permutation(pool)[:size]
            for probe, said in enumerate(
                _train(features[chosen], targets[chosen], features[held], probes)
            ):
                errors[index, probe] += ((targets[held] - said) ** 2).sum(axis=1).mean() / repeats
    return errors


def _train(seen: Array, targets: Array, held: Array, probes: Probes) -> Iterator[Array]:
    """Return each probe's predictions on the held-out rows."""
    # Ridge and gradient descent are both gains on the sample's own directions, so one
    # eigendecomposition serves all probes.
    size = len(seen)
    few = size < seen.shape[1]
    variance, directions = np.linalg.eigh(seen @ seen.T / size if few else seen.T @ seen / size)
    variance = np.maximum(variance, 1e-14)
    left = held @ seen.T / size @ directions if few else held @ directions
    right = directions.T @ (targets if few else seen.T @ targets / size)
    rate = 0.5 / probes.top
    for ridge in probes.ridges:
        yield left @ (right / (variance + ridge * probes.top)[:, None])
    for step in probes.steps:
        yield left @ (right * ((1 - (1 - rate * variance) ** step) / variance)[:, None])


def forecast(model: RandomFeatureModel, sizes: list[int], probes: Probes) -> Array:
    """Predict what `measure` measures, [sizes, probes]."""
    rows = []
    for size in sizes:
        ridge = model.ridge_loss(np.array(probes.ridges) * probes.top, samples=size)[0]
        rows.append(
            np.concatenate([ridge, model.loss(probes.steps, samples=size).test]) + model.label_noise
        )
    return np.array(rows)


def power_law(sizes: list[int], errors: Array, size: int) -> Array:
    """Extend the straight line through three points in log-log space, [probes]."""
    slope, offset = np.polyfit(np.log(sizes), np.log(errors), 1)
    return np.exp(offset + slope * np.log(size))
