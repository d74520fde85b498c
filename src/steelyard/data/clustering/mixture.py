"""Mixtures of normal distributions, fitted by expectation and maximization in passes over rows."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.store import blocks_of
from steelyard.data.kmeans import kmeans
from steelyard.errors import ConfigError, DataError

__all__ = ["GaussianMixture", "MixtureSums", "fit_mixture"]

Shape = Literal["full", "diagonal"]
_SAMPLE = 20_000
_LEAST_VARIANCE = 1e-6
"""Added to variances: features have a variance of about 1."""


@dataclass(kw_only=True)
class MixtureSums:
    """What a pass adds up; those of parts may be merged.

    Attributes:
        counts: rows of each part of the mixture, as shares of rows [K].
        sums: their sums [K, D].
        products: sums of their products [K, D, D], or of their squares [K, D].
        likelihood: logarithm of the density of all rows.
        rows: rows.
    """

    counts: NDArray[np.float64]
    sums: NDArray[np.float64]
    products: NDArray[np.float64]
    likelihood: float = 0.0
    rows: int = 0

    def merge(self, other: "MixtureSums") -> None:
        """Take in the sums of other rows."""
        self.counts += other.counts
        self.sums += other.sums
        self.products += other.products
        self.likelihood += other.likelihood
        self.rows += other.rows


@dataclass(frozen=True, kw_only=True)
class GaussianMixture:
    """Normal distributions with weights.

    Attributes:
        shares: weights that add up to 1 [K].
        means: [K, D].
        covariances: [K, D, D], or variances [K, D].
        likelihood: mean logarithm of the density of the rows, before the last step.
        passes: passes over all rows.
    """

    shares: NDArray[np.float64]
    means: NDArray[np.float64]
    covariances: NDArray[np.float64]
    likelihood: float = float("nan")
    passes: int = 0

    @property
    def shape(self) -> Shape:
        """Whether columns of a part may depend on each other."""
        return "full" if self.covariances.ndim == 3 else "diagonal"

    def densities(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the logarithms of the weighted densities of rows in each part [N, K]."""
        width = rows.shape[1]
        found = np.empty((len(rows), len(self.shares)))
        for k, mean in enumerate(self.means):
            apart = rows - mean
            if self.shape == "full":
                lower = np.linalg.cholesky(self.covariances[k])
                scaled = np.linalg.solve(lower, apart.T)
                size = 2 * float(np.log(np.diag(lower)).sum())
            else:
                scaled = apart.T / np.sqrt(self.covariances[k])[:, None]
                size = float(np.log(self.covariances[k]).sum())
            found[:, k] = -0.5 * (np.einsum("dn,dn->n", scaled, scaled) + size)
        return found + np.log(self.shares) - 0.5 * width * np.log(2 * np.pi)

    def assign(self, rows: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the likeliest part of rows, and its share of their density, both [N]."""
        logs = self.densities(rows)
        labels = logs.argmax(axis=1)
        total = _log_sums(logs)
        return labels, np.exp(logs[np.arange(len(logs)), labels] - total)

    def add_up(self, rows: NDArray[np.floating]) -> MixtureSums:
        """Return what rows add to the next step."""
        logs = self.densities(rows)
        total = _log_sums(logs)
        shares = np.exp(logs - total[:, None])
        if self.shape == "full":
            weighted = (rows * part[:, None] for part in shares.T)
            products = np.stack([part.T @ rows for part in weighted])
        else:
            products = shares.T @ np.square(rows, dtype=np.float64)
        return MixtureSums(
            counts=shares.sum(axis=0),
            sums=(shares.T @ rows).astype(np.float64),
            products=products.astype(np.float64),
            likelihood=float(total.sum()),
            rows=len(rows),
        )

    def bic(self, rows: int) -> float:
        """Return the Bayesian information criterion for some rows; less is better."""
        width, parts = self.means.shape[1], len(self.shares)
        of_shape = width * (width + 1) // 2 if self.shape == "full" else width
        free = parts * (width + of_shape) + parts - 1
        return free * float(np.log(rows)) - 2 * rows * self.likelihood


def _log_sums(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithms of the sums of exponentials [N]."""
    top = logs.max(axis=1)
    return top + np.log(np.exp(logs - top[:, None]).sum(axis=1))


def _next(sums: MixtureSums, before: GaussianMixture, passes: int) -> GaussianMixture:
    """Return the mixture that sums tell."""
    counts = np.maximum(sums.counts, 1e-10)
    means = sums.sums / counts[:, None]
    if before.shape == "full":
        spread = sums.products / counts[:, None, None]
        spread = spread - means[:, :, None] * means[:, None, :]
        spread = spread + _LEAST_VARIANCE * np.eye(means.shape[1])
    else:
        spread = np.maximum(sums.products / counts[:, None] - means**2, 0) + _LEAST_VARIANCE
    # A part that lost all rows keeps its place with the smallest of weights.
    lost = sums.counts < 1e-6
    means[lost], spread[lost] = before.means[lost], before.covariances[lost]
    likelihood = sums.likelihood / max(sums.rows, 1)
    return GaussianMixture(
        shares=counts / counts.sum(),
        means=means,
        covariances=spread,
        likelihood=likelihood,
        passes=passes,
    )


def fit_mixture(
    features: NDArray[np.floating],
    count: int,
    *,
    shape: Shape = "full",
    passes: int = 100,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> GaussianMixture:
    """Fit a mixture of normal distributions.

    Args:
        features: [N, D], read some rows at a time.
        count: parts of the mixture K, 1 to N.
        shape: "full" for covariances, "diagonal" for variances alone.
        passes: most passes over all rows; a sample of 20,000 is fitted before.
        tolerance: gain of the mean log density below which passes end.
        seed: seed of the first centers and of the sample.

    Returns:
        The mixture.

    Raises:
        ConfigError: the number of parts or passes is out of range.
        DataError: features are not finite.

    Source: Dempster, Laird and Rubin 1977; Bishop 2006, section 9.2.
    """
    if not 1 <= count <= len(features) or passes < 1:
        raise ConfigError(
            f"{count} parts of {len(features)} rows, {passes} passes",
            hint="give 1 to as many parts as there are rows, and 1 pass or more",
        )
    rng = np.random.default_rng(seed)
    size = min(max(_SAMPLE, 20 * count), len(features))
    places = np.sort(rng.choice(len(features), size, replace=False))
    sample = np.asarray(features[places], np.float64)
    found = _stepped(_first(sample, count, shape, seed), sample, passes, tolerance)
    return _stepped(found, features, passes, tolerance) if size < len(features) else found


def _first(sample: NDArray[np.float64], count: int, shape: Shape, seed: int) -> GaussianMixture:
    """Return the mixture of clusters around means."""
    clusters = kmeans(sample, count, seed=seed)
    width = sample.shape[1]
    counts = np.bincount(clusters.labels, minlength=count)
    floor = max(float(sample.var(axis=0).mean()), 1e-6)
    covariances = []
    for k in range(count):
        own = sample[clusters.labels == k]
        # Few rows have no spread of their own in all directions.
        spread = np.cov(own.T).reshape(width, width) if len(own) > 1 else np.zeros((width, width))
        weight = min(1.0, width / max(len(own), 1))
        spread = (1 - weight) * spread + (weight * floor + _LEAST_VARIANCE) * np.eye(width)
        covariances.append(spread if shape == "full" else np.diag(spread).copy())
    return GaussianMixture(
        shares=np.maximum(counts, 1) / np.maximum(counts, 1).sum(),
        means=clusters.centers,
        covariances=np.stack(covariances),
    )


def _stepped(
    found: GaussianMixture, features: NDArray[np.floating], passes: int, tolerance: float
) -> GaussianMixture:
    """Return the mixture after passes over rows."""
    before = -np.inf
    for done in range(1, passes + 1):
        sums: MixtureSums | None = None
        for block in blocks_of(features):
            part = found.add_up(np.asarray(block, np.float64))
            if sums is None:
                sums = part
            else:
                sums.merge(part)
        assert sums is not None, "there are rows"
        found = _next(sums, found, done)
        if not np.isfinite(found.likelihood):
            raise DataError("features are not finite", hint="leave out columns that are not")
        if found.likelihood - before < tolerance:
            break
        before = found.likelihood
    return found
