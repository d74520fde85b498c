"""Detectors of strange sessions by the counts of their events."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from steelyard.data.anomalies.residuals import residual_threshold
from steelyard.data.logs.sessions import CountWeights
from steelyard.errors import DataError

__all__ = [
    "ClusterDetector",
    "InvariantDetector",
    "LogisticDetector",
    "PcaDetector",
    "SessionDetector",
]

_Counts = NDArray[np.float64]


class SessionDetector(Protocol):
    """Something that was shown sessions and says how strange others are."""

    @property
    def threshold(self) -> float:
        """Score above which a session is flagged."""
        ...

    def score(self, counts: _Counts) -> NDArray[np.float64]:
        """Return how strange sessions are, [sessions]."""
        ...


def _checked(counts: _Counts) -> _Counts:
    if counts.ndim != 2 or len(counts) < 2:
        raise DataError(
            f"a detector cannot be trained on counts of shape {counts.shape}",
            hint="give at least two sessions, [sessions, templates]",
        )
    return counts


@dataclass(frozen=True, kw_only=True)
class PcaDetector:
    """Length of what the main components of normal counts do not explain.

    Attributes:
        weights: weights of counts.
        components: directions of the normal space, [components, templates].
        threshold: squared length that normal sessions exceed with probability alpha.

    Source: Xu et al. 2009 (SOSP), section 5; Jackson and Mudholkar 1979 for the threshold.
    """

    weights: CountWeights
    components: NDArray[np.float64]
    threshold: float

    @classmethod
    def fit(cls, counts: _Counts, explained: float = 0.95, alpha: float = 0.001) -> "PcaDetector":
        """Train on counts.

        Args:
            counts: mostly of normal sessions, [sessions, templates].
            explained: variance that the components have together, a fraction.
            alpha: share of normal sessions that may be flagged.

        Returns:
            The detector.

        Raises:
            DataError: fewer than two sessions.
        """
        weights = CountWeights.of(_checked(counts))
        centred = weights.apply(counts)
        _, singular, directions = np.linalg.svd(centred, full_matrices=False)
        variances = singular**2 / (len(counts) - 1)
        shares = np.cumsum(variances) / max(variances.sum(), 1e-300)
        kept = min(int(np.searchsorted(shares, explained)) + 1, len(variances))
        return cls(
            weights=weights,
            components=directions[:kept],
            threshold=residual_threshold(variances[kept:], alpha),
        )

    def score(self, counts: _Counts) -> NDArray[np.float64]:
        """Return squared residuals, [sessions]."""
        return (self.residuals(counts) ** 2).sum(axis=1)

    def residuals(self, counts: _Counts) -> NDArray[np.float64]:
        """Return what the components do not explain, [sessions, templates]."""
        centred = self.weights.apply(counts)
        return centred - centred @ self.components.T @ self.components


@dataclass(frozen=True, kw_only=True)
class InvariantDetector:
    """Relations between the counts of two events that nearly all sessions keep.

    Attributes:
        relations: rows (a, b, p, q): p · count(a) = q · count(b); q is 0 where event a comes in
            hardly any session.
        threshold: relations that a session may break.

    Source: Lou et al. 2010 (USENIX ATC), section 4, for relations of at most two events.
    """

    relations: tuple[tuple[int, int, int, int], ...]
    threshold: float = 0.5

    @classmethod
    def fit(cls, counts: _Counts, support: float = 0.98, largest: int = 5) -> "InvariantDetector":
        """Train on counts.

        Args:
            counts: mostly of normal sessions, [sessions, templates].
            support: share of sessions with one of the events that keep a relation.
            largest: coefficient.

        Returns:
            The detector.

        Raises:
            DataError: fewer than two sessions.
        """
        shares = (_checked(counts) > 0).mean(axis=0)
        found = [(event, event, 1, 0) for event in np.flatnonzero(shares <= 1 - support).tolist()]
        met = np.flatnonzero(shares > 1 - support).tolist()
        for place, left in enumerate(met):
            for right in met[place + 1 :]:
                pair = _relation(counts[:, left], counts[:, right], support, largest)
                if pair:
                    found.append((left, right, *pair))
        return cls(relations=tuple(found))

    def broken(self, counts: _Counts) -> NDArray[np.bool_]:
        """Return which relations each session breaks, [sessions, relations]."""
        if not self.relations:
            return np.zeros((len(counts), 0), bool)
        left, right, first, second = np.array(self.relations).T
        return first * counts[:, left] != second * counts[:, right]

    def score(self, counts: _Counts) -> NDArray[np.float64]:
        """Return how many relations each session breaks, [sessions]."""
        return self.broken(counts).sum(axis=1).astype(np.float64)


def _relation(
    left: NDArray[np.float64], right: NDArray[np.float64], support: float, largest: int
) -> tuple[int, int] | None:
    """Return the smallest coefficients for which two counts agree."""
    either = (left > 0) | (right > 0)
    both = (left > 0) & (right > 0)
    # Events that hardly ever come together have no relation but by chance.
    if both.sum() < support * either.sum():
        return None
    ratio = float(np.median(left[both] / right[both]))
    for first in range(1, largest + 1):
        second = round(ratio * first)
        if 1 <= second <= largest and abs(second - ratio * first) < 1e-9:
            keeps = first * left[either] == second * right[either]
            return (first, second) if keeps.mean() >= support else None
    return None


@dataclass(frozen=True, kw_only=True)
class ClusterDetector:
    """Distance to the nearest of the clusters that normal sessions form.

    Attributes:
        weights: weights of counts.
        centres: centres of length 1, [clusters, templates].
        threshold: cosine distance at which a session joined no cluster.

    Source: Lin et al. 2016 (ICSE companion), section 3; clusters are formed one session after the
    other, those of most sessions first.
    """

    weights: NDArray[np.float64]
    centres: NDArray[np.float64]
    threshold: float

    @classmethod
    def fit(cls, counts: _Counts, distance: float = 0.3) -> "ClusterDetector":
        """Train on counts.

        Args:
            counts: mostly of normal sessions, [sessions, templates].
            distance: cosine distance within a cluster.

        Returns:
            The detector; clusters of less than a thousandth of the sessions are left out.

        Raises:
            DataError: fewer than two sessions.
        """
        weights = CountWeights.of(_checked(counts)).inverse
        distinct, repeats = np.unique(counts, axis=0, return_counts=True)
        order = np.argsort(-repeats, kind="stable")
        unit = _unit(distinct[order] * weights)
        sums: list[NDArray[np.float64]] = []
        members: list[int] = []
        for row, count in zip(unit, repeats[order].tolist(), strict=True):
            near = 1 - _unit(np.array(sums)) @ row if sums else np.array([np.inf])
            best = int(np.argmin(near))
            if near[best] <= distance:
                sums[best] = sums[best] + count * row
                members[best] += count
            else:
                sums.append(count * row)
                members.append(count)
        kept = [place for place, size in enumerate(members) if size >= max(2, len(counts) / 1000)]
        centres = _unit(np.array([sums[place] for place in kept or range(len(sums))]))
        return cls(weights=weights, centres=centres, threshold=distance)

    def score(self, counts: _Counts) -> NDArray[np.float64]:
        """Return cosine distances to the nearest cluster, [sessions]."""
        return 1 - (_unit(counts * self.weights) @ self.centres.T).max(axis=1)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


@dataclass(frozen=True, kw_only=True)
class LogisticDetector:
    """Probability of a fault, learned from labelled sessions.

    Attributes:
        weights: weights of counts.
        coefficients: coefficients of weighted counts, the last of the constant, [templates + 1].
        threshold: probability.
    """

    weights: CountWeights
    coefficients: NDArray[np.float64]
    threshold: float = 0.5

    @classmethod
    def fit(
        cls, counts: _Counts, faults: NDArray[np.bool_], penalty: float = 0.01
    ) -> "LogisticDetector":
        """Train on labelled counts by Newton steps.

        Args:
            counts: counts of sessions, [sessions, templates].
            faults: which of them are faulty, [sessions].
            penalty: half the weight of squared coefficients in the summed loss; the constant has
                none.

        Returns:
            The detector; faults weigh as much as all other sessions together.

        Raises:
            DataError: fewer than two sessions, or all of one kind.
        """
        labels = np.asarray(faults, float)
        if not 0 < labels.sum() < len(_checked(counts)):
            raise DataError("all sessions are of one kind", hint="label faulty and normal ones")
        weights = CountWeights.of(counts)
        inputs = np.column_stack([weights.apply(counts), np.ones(len(counts))])
        ridge = np.full(inputs.shape[1], 2 * penalty)
        ridge[-1] = 1e-9
        share = labels.mean()
        balance = np.where(labels > 0, 0.5 / share, 0.5 / (1 - share))
        found = np.zeros(inputs.shape[1])
        for _ in range(100):
            chance = special.expit(inputs @ found)
            slope = inputs.T @ (balance * (chance - labels)) + ridge * found
            curve = (inputs * (balance * chance * (1 - chance))[:, None]).T @ inputs
            step = np.linalg.solve(curve + np.diag(ridge), slope)
            # Long steps overshoot where classes can be separated.
            step *= min(1.0, 10 / max(float(np.abs(step).max()), 1e-12))
            found -= step
            if np.abs(step).max() < 1e-8:
                break
        return cls(weights=weights, coefficients=found)

    def score(self, counts: _Counts) -> NDArray[np.float64]:
        """Return probabilities of a fault, [sessions]."""
        return special.expit(
            self.weights.apply(counts) @ self.coefficients[:-1] + self.coefficients[-1]
        )
