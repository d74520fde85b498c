"""Linear models by stochastic descent: logistic, hinge and squared loss, rows read in blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.learners import FitJob, FittedLearner, Needs
from steelyard.data.learning.linear_kernels import HINGE, LOGISTIC, SOFTMAX, SQUARED, descend
from steelyard.data.learning.losses import mean_loss, start_scores
from steelyard.errors import ConfigError, require

__all__ = ["LinearConfig", "LinearModel", "descended"]

_BLOCK = 4096
"""Rows of a block; blocks and the rows in them come in drawn orders, so that files are read on."""
_MOST_MEASURED = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearConfig:
    """How a linear model is fitted.

    Attributes:
        loss: "log" (classes), "hinge" (classes) or "squared" (numbers); None by the target.
        rate: factor of each step.
        l2: weight of half the squared weights in the loss of a row.
        epochs: most passes over the rows.
        patience: passes without gain on the rows kept aside after which it ends; 0 never ends.
    """

    needs: ClassVar[Needs] = "features"
    loss: Literal["log", "hinge", "squared"] | None = None
    rate: float = 0.1
    l2: float = 1e-6
    epochs: int = 20
    patience: int = 2

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        require(
            self,
            rate=(self.rate > 0, "above 0"),
            l2=(self.l2 >= 0, "at least 0"),
            epochs=(self.epochs >= 1, "at least 1"),
            patience=(self.patience >= 0, "at least 0"),
        )

    def fit(self, job: FitJob) -> "LinearModel":
        """Fit a linear model.

        Args:
            job: features of rows, and what is predicted.

        Returns:
            The weights of the best pass, averaged over all steps but the first pass's.

        Raises:
            ConfigError: the loss is of another task.
            DataError: no rows are left to learn from, or a class has none among them.
        """
        is_number = job.target.task == "regress"
        if is_number != ((self.loss or ("squared" if is_number else "log")) == "squared"):
            raise ConfigError(
                f"loss {self.loss!r} does not fit {job.target.name}",
                hint="squared for numbers, log or hinge for classes",
            )
        return _Descent(self, job).run()


Lift = Callable[[NDArray[Any]], NDArray[np.float32]]


def descended(config: LinearConfig, job: FitJob, lift: Lift, count: int) -> "LinearModel":
    """Fit a linear model to what features become, which is made block by block.

    Args:
        config: how.
        job: features of rows, and what is predicted.
        lift: makes inputs [N, count] of features [N, D].
        count: inputs.

    Returns:
        Weights of the inputs.
    """
    return _Descent(config, job, lift, count).run()


class _Descent:
    """Weights while passes are made."""

    def __init__(
        self, config: LinearConfig, job: FitJob, lift: Lift | None = None, count: int = 0
    ) -> None:
        self.config, self.job, self.lift = config, job, lift
        start = start_scores(job.store.targets, job.store.is_held, job.target)
        width = job.target.width
        self.weights = np.zeros((width, (count or job.features.shape[1]) + 1))
        self.middle, self.scale = 0.0, 1.0
        if job.target.task == "regress":
            self.loss = SQUARED
            self.middle = float(start[0])
            spread = float(np.std(job.store.targets[job.rows], dtype=np.float64))
            self.scale = spread or 1.0
        else:
            self.loss = HINGE if config.loss == "hinge" else SOFTMAX if width > 1 else LOGISTIC
            if self.loss != HINGE:
                self.weights[:, -1] = start
        self.squares = np.zeros_like(self.weights)
        targets = (np.asarray(job.store.targets, np.float64) - self.middle) / self.scale
        self.targets = targets.astype(np.float32)

    def run(self) -> "LinearModel":
        """Return the best weights."""
        rng, rows = np.random.default_rng(self.job.seed), self.job.rows
        held = self.job.held[:_MOST_MEASURED]
        best, least, waited, steps = self._model(self.weights), np.inf, 0, 0
        means = self.weights.copy()
        for epoch in range(self.config.epochs):
            if epoch == 1:
                # The first pass is far from where it ends.
                steps, means = 0, self.weights.copy()
            for order in _drawn(rows, rng):
                given = (self.loss, self.config.rate, self.config.l2)
                arrays = (self.weights, self.squares, means)
                inputs, targets, places = self._block(order)
                steps = descend(inputs, targets, places, *given, *arrays, steps)
            made = self._model(means)
            loss = self._loss(made, held)
            waited = 0 if not loss >= least * (1 - 1e-4) else waited + 1
            if not len(held) or loss < least:
                best, least = made, loss
            told = best if self.lift is None else None
            self.job.done(told, (epoch + 1) / self.config.epochs)
            if len(held) and self.config.patience and waited >= self.config.patience:
                break
        return self._calibrated(best) if self.loss == HINGE else best

    def _block(
        self, order: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """Return inputs, targets, and places in them that are gone through."""
        if self.lift is None:
            return self.job.features, self.targets, order
        inputs = self.lift(self.job.features[order])
        return inputs, self.targets[order], np.arange(len(order))

    def _scores(self, model: "LinearModel", rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the scores of rows; what features become is held of some at a time."""
        if self.lift is None:
            return model.scores(self.job.features[rows])
        blocks = (rows[first : first + _BLOCK] for first in range(0, len(rows), _BLOCK))
        parts = [model.scores(self.lift(self.job.features[block])) for block in blocks]
        none = np.empty((len(self.weights), 0), np.float32)
        return np.concatenate(parts or [none], axis=1)

    def _model(self, weights: NDArray[np.float64]) -> "LinearModel":
        """Return weights in the target's own scale."""
        own = weights * self.scale
        own[:, -1] += self.middle
        return LinearModel(coefficients=own)

    def _loss(self, model: "LinearModel", held: NDArray[np.int64]) -> float:
        """Return the mean loss of rows kept aside."""
        scores = self._scores(model, held)
        return mean_loss(self.job.target, np.asarray(self.job.store.targets[held]), scores)

    def _calibrated(self, model: "LinearModel") -> "LinearModel":
        """Return the model whose scores are log odds.

        Source: Platt 1999, "Probabilistic outputs for support vector machines"; Newton's steps.
        """
        rows = self.job.rows[:_MOST_MEASURED]
        scores = self._scores(model, rows).astype(np.float64)
        targets = np.asarray(self.job.store.targets[rows])
        own = model.coefficients.copy()
        for k in range(len(scores)):
            is_own = targets == (k if len(scores) > 1 else 1)
            slope, constant = _platt(scores[k], is_own.astype(np.float64))
            own[k] *= slope
            own[k, -1] += constant
        return LinearModel(coefficients=own)


def _platt(scores: NDArray[np.float64], is_own: NDArray[np.float64]) -> tuple[float, float]:
    """Return slope and constant that turn scores into log odds."""
    inputs, found = np.column_stack([scores, np.ones_like(scores)]), np.array([1.0, 0.0])
    # Shares of 0 and 1 are out of reach, so that separate classes have a finite slope.
    total = is_own.sum()
    aims = np.where(is_own > 0, (total + 1) / (total + 2), 1 / (len(is_own) - total + 2))
    for _ in range(30):
        share = 1 / (1 + np.exp(-np.clip(inputs @ found, -30, 30)))
        slope = inputs.T @ (share - aims)
        curve = (inputs * (share * (1 - share))[:, None]).T @ inputs + 1e-9 * np.eye(2)
        step = np.linalg.solve(curve, slope)
        step *= min(1.0, 5 / max(float(np.abs(step).max()), 1e-12))
        found = found - step
        if np.abs(step).max() < 1e-7:
            break
    return float(found[0]), float(found[1])


def _drawn(rows: NDArray[np.int64], rng: np.random.Generator) -> Any:
    """Return rows in drawn blocks, each in a drawn order."""
    firsts = np.arange(0, len(rows), _BLOCK)
    for first in rng.permutation(firsts):
        yield rng.permutation(rows[first : first + _BLOCK])


@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """Weights of features.

    Attributes:
        coefficients: the last of each line is the constant [K, D + 1].
    """

    kind: ClassVar[str] = "linear"
    coefficients: NDArray[np.float64]

    def scores(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Score rows by their features [N, D]."""
        found = given @ self.coefficients[:, :-1].T + self.coefficients[:, -1]
        return np.ascontiguousarray(found.T, np.float32)

    def weights(self, count: int) -> NDArray[np.float64]:
        """Return the share of the sizes of all weights that each feature's have [count]."""
        found = np.abs(self.coefficients[:, :-1]).sum(axis=0)
        return found / max(found.sum(), 1e-300)

    def about(self) -> dict[str, Any]:
        """Return the plain values: none."""
        return {}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {"coefficients": self.coefficients}

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> FittedLearner:
        """Return the model of arrays by name."""
        return cls(coefficients=np.array(sections["coefficients"]))
