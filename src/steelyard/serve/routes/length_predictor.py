"""Output lengths of requests before they run, in buckets, from what came before."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array

from steelyard.errors import FitError
from steelyard.sim.fleet.jobs import FleetJob

__all__ = ["LengthPredictor", "OutputHistory"]

_LENGTHS, _NAMES, _WORDS = 96, 64, 1024
"""Features of a prompt's length, of its client, and of its tokens."""
_TAIL = 0.005
"""Share of the outputs that the last bucket takes at least."""
_PENALTY = 2e-4


class OutputHistory:
    """How long the answers were behind beginnings that prompts share.

    Each block of a prompt that ended remembers the latest output behind it. A prompt that begins
    alike, such as a further turn of a conversation, finds it at the deepest block that it shares.
    """

    def __init__(self, *, most_blocks: int = 1_000_000) -> None:
        """Know nothing.

        Args:
            most_blocks: blocks that are remembered; those seen first are forgotten first.
        """
        self._latest: dict[int, int] = {}
        self._most = most_blocks

    def __len__(self) -> int:
        """Return the blocks that are remembered."""
        return len(self._latest)

    def seen(self, job: FleetJob) -> None:
        """Take in a request that has all its tokens."""
        # Put at the end, so that what is asked for again stays; ends of prompts first, so that they
        # are forgotten before their beginnings.
        for name in reversed(job.block_ids):
            self._latest.pop(name, None)
            self._latest[name] = job.output_tokens
        while len(self._latest) > self._most:
            del self._latest[next(iter(self._latest))]

    def latest(self, job: FleetJob) -> tuple[int, float]:
        """Return the latest output behind the longest known beginning, and the beginning's share.

        Args:
            job: request with ids of its blocks.

        Returns:
            Output tokens and share of the prompt's blocks; 0 and 0 where nothing is known.
        """
        names = job.block_ids
        # A beginning is known with all that lies before it, so that its end is found by halving.
        low, high = 0, len(names)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if names[middle - 1] in self._latest else (low, middle - 1)
        return (self._latest[names[low - 1]], low / len(names)) if low else (0, 0.0)


@dataclass
class LengthPredictor:
    """A softmax regression on length, client, tokens and history of a prompt.

    Attributes:
        bucket: tokens per bucket.
        weights: [features, buckets].
        means: mean output of each bucket in what it was fitted on.
        median_bucket: bucket of the median output there, the guess without any features.
        history: answers so far; it grows by `seen`.

    Source: Hu et al. 2025 (arXiv 2501.14417), section 5 (buckets of 128 tokens; a fine-tuned
    transformer there).
    """

    bucket: int
    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    median_bucket: int
    history: OutputHistory = field(default_factory=OutputHistory)

    @classmethod
    def fit(cls, jobs: Sequence[FleetJob], *, bucket: int = 128) -> "LengthPredictor":
        """Fit to requests whose outputs are known.

        A request learns from those that arrived before it, as if each had ended by then.

        Args:
            jobs: requests by arrival, at least 50.
            bucket: tokens per bucket, at least 1.

        Returns:
            The predictor, which knows these requests' outputs.

        Raises:
            FitError: there are too few requests, or the bucket is below 1.
        """
        if len(jobs) < 50 or bucket < 1:
            raise FitError(
                f"{len(jobs)} requests and buckets of {bucket} tokens",
                hint="give at least 50 requests and buckets of at least 1 token",
            )
        outputs = np.array([job.output_tokens for job in jobs])
        labels, means = _buckets(outputs, bucket)
        count, history = len(means), OutputHistory()
        rows = []
        for job in jobs:
            rows.append(_features(job, history, bucket, count))
            history.seen(job)
        weights = _softmax_fit(_matrix(rows, count), labels, count)
        median = min(int(np.median(outputs)) // bucket, count - 1)
        return cls(bucket, weights, means, median, history)

    def probabilities(self, job: FleetJob) -> NDArray[np.float64]:
        """Return the probability of each bucket."""
        count = len(self.means)
        names = _features(job, self.history, self.bucket, count)
        logits = self.weights[names].sum(axis=0)
        odds = np.exp(logits - logits.max())
        return odds / odds.sum()

    def bucket_of(self, job: FleetJob) -> int:
        """Return the likeliest bucket; the last one takes all longer outputs."""
        return int(self.probabilities(job).argmax())

    def expected(self, job: FleetJob) -> float:
        """Return the mean output tokens that are expected."""
        return float(self.probabilities(job) @ self.means)

    def true_bucket(self, output_tokens: int) -> int:
        """Return the bucket of an output."""
        return min(output_tokens // self.bucket, len(self.means) - 1)

    def seen(self, job: FleetJob) -> None:
        """Take in a request that has all its tokens."""
        self.history.seen(job)


def _buckets(outputs: NDArray[np.int64], bucket: int) -> tuple[NDArray[np.int64], NDArray]:
    """Return the bucket of each output and the mean output of each bucket."""
    last = max(int(np.quantile(outputs, 1 - _TAIL)) // bucket, 0)
    labels = np.minimum(outputs // bucket, last)
    sums = np.bincount(labels, outputs, minlength=last + 1)
    counts = np.bincount(labels, minlength=last + 1)
    middles = (np.arange(last + 1) + 0.5) * bucket
    return labels, np.where(counts > 0, sums / np.maximum(counts, 1), middles)


def _features(job: FleetJob, history: OutputHistory, bucket: int, count: int) -> list[int]:
    """Return the features that a request has, as rows of the weights."""
    latest, share = history.latest(job)
    before = 1 + min(latest // bucket, count - 1) if latest else 0
    found = [0]
    # Eight to an octave: the length of a fixed prompt tells the task apart.
    found.append(1 + min(int(8 * np.log2(job.input_tokens)), _LENGTHS - 1))
    base = 1 + _LENGTHS
    found.append(base + zlib.crc32(job.client.encode()) % _NAMES)
    base += _NAMES
    found.append(base + before)
    base += count + 1
    # A long common beginning is a conversation, a short one a common instruction.
    found.append(base + (min(int(4 * share), 3) * (count + 1) + before))
    base += 4 * (count + 1)
    words = {base + (token * 2654435761 >> 7) % _WORDS for token in job.prompt[:512]}
    return found + sorted(words)


def _matrix(rows: list[list[int]], count: int) -> csr_array:
    """Return features as a matrix of ones [requests, features]."""
    starts = np.cumsum([0, *map(len, rows)])
    names = np.concatenate([np.array(row) for row in rows])
    width = 1 + _LENGTHS + _NAMES + 5 * (count + 1) + _WORDS
    return csr_array((np.ones(len(names)), names, starts), shape=(len(rows), width))


def _softmax_fit(matrix: Any, labels: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return the weights that minimize the cross entropy with a penalty on their squares."""
    num = len(labels)
    # Where nothing occurs nothing is learned: those rows stay 0 and are not searched.
    used = np.flatnonzero(np.asarray(matrix.sum(axis=0)).ravel() > 0)
    part = csr_array(matrix[:, used])
    targets = np.zeros((num, count))
    targets[np.arange(num), labels] = 1.0

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(len(used), count)
        logits: NDArray[np.float64] = np.asarray(part @ weights)
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits)
        total = odds.sum(axis=1, keepdims=True)
        fit = float((np.log(total[:, 0]) - logits[np.arange(num), labels]).mean())
        slope = part.T @ ((odds / total - targets) / num) + 2 * _PENALTY * weights
        return fit + _PENALTY * float((weights**2).sum()), slope.ravel()

    options = {"maxiter": 200}
    found = minimize(
        loss, np.zeros(len(used) * count), jac=True, method="L-BFGS-B", options=options
    )
    weights = np.zeros((matrix.shape[1], count))
    weights[used] = found.x.reshape(len(used), count)
    return weights
