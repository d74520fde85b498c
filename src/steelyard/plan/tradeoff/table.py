"""Where configurations lie by context, accuracy and performance, and which moves are no noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import t as student

from steelyard.errors import ConfigError
from steelyard.plan.tradeoff.cells import Measured, QualityCell, SpeedCell
from steelyard.plan.tradeoff.configuration import Configuration

__all__ = ["GoalChange", "TradeoffMove", "TradeoffPoint", "TradeoffTable", "tabulate"]

_LEAST_CONTEXT = math.log(1.1)
"""Least change of context that counts: lengths are measured on a grid."""
_LEAST_LOSS = 0.005
"""Least change of loss that counts, nats per token: below it no user sees a difference."""
_TINY = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class GoalChange:
    """How one goal changed against the baseline.

    Attributes:
        value: mean over repeats: a logarithm of a ratio, or a difference.
        band: half-width within which it may be noise: a 95 % interval over repeats, and no less
            than what the baseline differs from itself or the smallest step that can be seen.
    """

    value: float
    band: float

    @property
    def sign(self) -> int:
        """1 or -1 outside the band, else 0."""
        return int(np.sign(self.value)) if abs(self.value) > self.band else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeoffMove:
    """How a configuration differs from another in all goals; positive is better.

    Attributes:
        context: logarithm of the ratio of longest contexts.
        recall: difference of the share of right answers at reference lengths.
        loss: what the loss on text fell by at reference lengths, nats per token.
        performance: logarithm of the ratio of rates.
    """

    context: GoalChange
    recall: GoalChange
    loss: GoalChange
    performance: GoalChange

    @property
    def accuracy(self) -> int:
        """-1 where recall or loss is worse, 1 where one is better and none worse, else 0."""
        signs = (self.recall.sign, self.loss.sign)
        return -1 if min(signs) < 0 else max(signs)

    @property
    def signs(self) -> tuple[int, int, int]:
        """Signs of context, accuracy and performance."""
        return self.context.sign, self.accuracy, self.performance.sign

    @property
    def type(self) -> str:
        """Letters of the goals that became better: "C", "AP", ..., or "" for none.

        Source: Zeng et al. 2024 (arXiv 2405.11299), six types; "CAP" would be all three.
        """
        return "".join(letter for letter, sign in zip("CAP", self.signs, strict=True) if sign > 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeoffPoint:
    """One configuration among the goals.

    Attributes:
        configuration: how the model is served.
        context_tokens: longest context that fits and is recalled, mean over seeds.
        fits_tokens: longest context that the memory holds; infinite for a bounded cache.
        effective_tokens: longest context that is recalled, whatever memory it takes.
        recall: share of right answers at reference lengths.
        loss: nats per token of text at reference lengths.
        tokens_per_s: geometric mean of rates over reference lengths, median of rounds.
        ttft_s: mean time to the first token at the longest reference length, median of rounds.
        tpot_s: the same of further tokens.
        recall_at: share of right answers at each length.
        loss_at: nats per token at each length.
        move: against the baseline.
    """

    configuration: Configuration
    context_tokens: float
    fits_tokens: float
    effective_tokens: float
    recall: float
    loss: float
    tokens_per_s: float
    ttft_s: float
    tpot_s: float
    recall_at: tuple[float, ...]
    loss_at: tuple[float, ...]
    move: TradeoffMove


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeoffTable:
    """All points of a measurement.

    Attributes:
        measured: the cells they come from.
        threshold: share of right answers from which a length counts as recalled.
        points: one for each configuration, the baseline first.
        noise: largest logarithm of a ratio between two measurements of the baseline's rate.
    """

    measured: Measured
    threshold: float
    points: tuple[TradeoffPoint, ...]
    noise: float

    def point(self, name: str) -> TradeoffPoint:
        """Return the point of a configuration.

        Args:
            name: its name.

        Returns:
            The point.

        Raises:
            ConfigError: there is none of this name.
        """
        for item in self.points:
            if item.configuration.name == name:
                return item
        names = ", ".join(item.configuration.name for item in self.points)
        raise ConfigError(f"no configuration {name!r} was measured", hint=f"measured: {names}")

    def move(self, name: str, base: str) -> TradeoffMove:
        """Return how one configuration differs from any other."""
        one, other = self.point(name).configuration.name, self.point(base).configuration.name
        return _Series(self.measured, self.threshold).move(one, other, self.noise)

    def violations(self) -> list[TradeoffPoint]:
        """Return single techniques that are better in all three goals: findings, no errors."""
        return [
            item
            for item in self.points
            if len(item.configuration.techniques) == 1 and item.move.type == "CAP"
        ]

    def front(self) -> list[TradeoffPoint]:
        """Return the points that no other beats in context, recall and rate."""
        rows = [(item.context_tokens, item.recall, item.tokens_per_s) for item in self.points]
        return [
            item
            for item, row in zip(self.points, rows, strict=True)
            if not any(_beats(other, row) for other in rows)
        ]


def tabulate(measured: Measured, *, kept: float = 0.7) -> TradeoffTable:
    """Derive points, noise and moves from cells.

    Args:
        measured: the cells.
        kept: a length counts as recalled where the share of right answers is at least this part of
            the baseline's at reference lengths.

    Returns:
        The table.

    Raises:
        ConfigError: `kept` is out of range, or the baseline answers nothing.
    """
    if not 0 < kept <= 1:
        raise ConfigError(f"kept is {kept}, but must lie in (0, 1]")
    base = measured.configurations[0].name
    series = _Series(measured, 0.0)
    usual = float(series.recall(base).mean())
    if usual <= 0:
        raise ConfigError(
            f"{base} answers none of the questions at reference lengths",
            hint="give records in a form that the model knows, or shorter reference lengths",
        )
    series.threshold = kept * usual
    noise = series.noise(base)
    return TradeoffTable(
        measured=measured,
        threshold=series.threshold,
        points=tuple(series.point(item, base, noise) for item in measured.configurations),
        noise=noise,
    )


class _Series:
    """Repeats of each goal, by configuration."""

    def __init__(self, measured: Measured, threshold: float) -> None:
        """Sort the cells."""
        self.threshold = threshold
        self.plan = measured.plan
        self._places = [self.plan.lengths.index(length) for length in self.plan.reference]
        self._quality: dict[str, list[QualityCell]] = {}
        self._speed: dict[str, list[SpeedCell]] = {}
        for item in sorted(measured.quality, key=lambda item: item.seed):
            self._quality.setdefault(item.configuration, []).append(item)
        for item in sorted(measured.speed, key=lambda item: item.round):
            self._speed.setdefault(item.configuration, []).append(item)

    def curves(self, name: str) -> np.ndarray:
        """Return the share of right answers by seed and length, mean over tasks [S, N]."""
        return np.array(
            [np.mean(list(item.accuracy.values()), axis=0) for item in self._quality[name]]
        )

    def losses(self, name: str) -> np.ndarray:
        """Return nats per token by seed and length [S, N]."""
        return np.array([item.loss for item in self._quality[name]])

    def recall(self, name: str) -> np.ndarray:
        """Return the share of right answers at reference lengths by seed [S]."""
        return self.curves(name)[:, self._places].mean(1)

    def effective(self, name: str) -> np.ndarray:
        """Return the longest context that is recalled, by seed [S]."""
        return np.array(
            [effective_tokens(self.plan.lengths, row, self.threshold) for row in self.curves(name)]
        )

    def fits(self, name: str) -> float:
        """Return the longest context that the memory holds."""
        return self._speed[name][0].fits_tokens

    def rates(self, name: str) -> np.ndarray:
        """Return the geometric mean rate over reference lengths, by round."""
        rows = np.array([item.tokens_per_s for item in self._speed[name]])
        return np.exp(np.log(np.maximum(rows, _TINY)).mean(1))

    def noise(self, base: str) -> float:
        """Return how far two measurements of the baseline's rate were apart at most."""
        rates = np.log(self.rates(base))
        half = len(rates) // 2
        return float(np.abs(rates[half:] - rates[:half]).max()) if half else 0.0

    def move(self, name: str, base: str, noise: float) -> TradeoffMove:
        """Return how a configuration differs from another."""
        questions = self.plan.count * len(self._places) * len(self._quality[base][0].accuracy)
        context = [
            np.log(np.maximum(np.minimum(self.effective(one), self.fits(one)), 1.0))
            for one in (name, base)
        ]
        rounds = self.plan.rounds
        rates = [np.log(self.rates(one)[:rounds]) for one in (name, base)]
        loss = [self.losses(one)[:, self._places].mean(1) for one in (base, name)]
        one_answer = 1.0 / (questions * len(self._quality[base]))
        return TradeoffMove(
            context=_change(context[0] - context[1], _LEAST_CONTEXT),
            recall=_change(self.recall(name) - self.recall(base), one_answer),
            loss=_change(loss[0] - loss[1], _LEAST_LOSS),
            performance=_change(rates[0] - rates[1], noise if name != base else np.inf),
        )

    def point(self, chosen: Configuration, base: str, noise: float) -> TradeoffPoint:
        """Return where a configuration lies."""
        name = chosen.name
        effective = self.effective(name)
        speed = self._speed[name]
        return TradeoffPoint(
            configuration=chosen,
            context_tokens=float(np.minimum(effective, self.fits(name)).mean()),
            fits_tokens=self.fits(name),
            effective_tokens=float(effective.mean()),
            recall=float(self.recall(name).mean()),
            loss=float(self.losses(name)[:, self._places].mean()),
            tokens_per_s=float(np.median(self.rates(name))),
            ttft_s=float(np.median([item.ttft_s[-1] for item in speed])),
            tpot_s=float(np.median([item.tpot_s[-1] for item in speed])),
            recall_at=tuple(self.curves(name).mean(0).tolist()),
            loss_at=tuple(self.losses(name).mean(0).tolist()),
            move=self.move(name, base, noise),
        )


def effective_tokens(lengths: Sequence[int], recall: Sequence[float], threshold: float) -> float:
    """Return the longest context at which recall has not fallen below a threshold.

    The curve is first made to fall, as noise would else end it early, and is read between lengths
    along their logarithm.

    Args:
        lengths: tokens, rising.
        recall: share of right answers at each.
        threshold: least share.

    Returns:
        Tokens: at most the longest length; below the shortest where even that is not recalled, by
        the share of the threshold that is reached.
    """
    falling = np.asarray(isotonic_regression(recall, increasing=False).x)
    if falling[0] < threshold:
        return float(lengths[0] * falling[0] / threshold)
    below = np.flatnonzero(falling < threshold)
    if not len(below):
        return float(lengths[-1])
    after = int(below[0])
    share = (falling[after - 1] - threshold) / (falling[after - 1] - falling[after])
    near, far = math.log(lengths[after - 1]), math.log(lengths[after])
    return math.exp(near + share * (far - near))


def _change(differences: np.ndarray, least: float) -> GoalChange:
    """Return the mean of paired differences, with its band."""
    count = len(differences)
    spread = float(differences.std(ddof=1)) if count > 1 else math.inf
    half = float(student.ppf(0.975, max(count - 1, 1))) * spread / math.sqrt(count)
    return GoalChange(value=float(differences.mean()), band=max(half, least))


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Return whether a point is nowhere worse than another, and somewhere better."""
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
