"""Learning curves with known laws behind them, which check fits without training an agent."""

from dataclasses import dataclass, field

import numpy as np

from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.updates.return_curves import ReturnCurve

__all__ = ["PlantedReturns"]

_LEVELS = np.linspace(0.0, 999.0, 2000)
_ANCHOR = 800.0
"""Return at which `floor` and `beta` are stated."""


@dataclass(frozen=True, kw_only=True)
class PlantedReturns:
    """Tasks whose data need is Dmin_J + unit (utd / beta_J)^-alpha for every return J.

    Dmin_J and beta_J grow with J as a saturating curve needs them to; `floor` and `beta` are those
    at J = 800.

    Attributes:
        alpha: exponent of the excess.
        beta: updates per step (UTD) at which the excess is one unit, at return 800.
        floor: least data need Dmin at return 800, in units.
        unit: environment steps of a task of difficulty 1.
        difficulty: factor on all data needs, by task.
        batch_size: best batch size at UTD 1, by task; those of `difficulty` that are not named take
            512.
        batch_slope: the best batch size falls as utd^-batch_slope.
        learning_rate: best learning rate at UTD 1.
        rate_slope: the best learning rate falls as utd^-rate_slope.
        sensitivity: growth of the data need per squared log distance from the best batch size and
            learning rate.
        return_noise: standard deviation of one evaluation of one seed, return.
        seed_noise: standard deviation of the log of a seed's data need.
    """

    alpha: float = 0.9
    beta: float = 0.6
    floor: float = 1.0
    unit: float = 5e4
    difficulty: dict[str, float] = field(
        default_factory=lambda: {"easy": 0.5, "middle": 1.0, "hard": 2.0}
    )
    batch_size: dict[str, float] = field(default_factory=dict)
    batch_slope: float = 0.4
    learning_rate: float = 5e-4
    rate_slope: float = 0.3
    sensitivity: float = 0.3
    return_noise: float = 40.0
    seed_noise: float = 0.1

    def parameters(self, threshold: float) -> dict[str, float]:
        """Return Dmin in units, beta and alpha of a return below 1000."""
        grown = float(np.log1p(-threshold / 1000) / np.log1p(-_ANCHOR / 1000))
        return {"Dmin": self.floor * grown, "beta": self.beta * grown**0.5, "alpha": self.alpha}

    def needed(self, task: str, utd: float, thresholds: Array) -> Array:
        """Return the noiseless environment steps that the best settings need, [J]."""
        grown = np.log1p(-np.asarray(thresholds) / 1000) / np.log1p(-_ANCHOR / 1000)
        excess = (self.beta * np.sqrt(grown) / utd) ** self.alpha
        return self.unit * self.difficulty[task] * (self.floor * grown + excess)

    def best_settings(self, task: str, utd: float) -> tuple[float, float]:
        """Return the best batch size and learning rate."""
        batch = self.batch_size.get(task, 512.0) * utd**-self.batch_slope
        return batch, self.learning_rate * utd**-self.rate_slope

    def curve(
        self,
        task: str,
        utd: float,
        generator: np.random.Generator,
        *,
        seeds: int = 8,
        points: int = 400,
        settings: tuple[float, float] | None = None,
    ) -> ReturnCurve:
        """Draw the returns of some seeds at equal distances until well behind return 800.

        Args:
            task: one of `difficulty`.
            utd: gradient steps per environment step.
            generator: source of the noise.
            seeds: number of seeds.
            points: evaluations per seed.
            settings: batch size and learning rate; None for the best ones. Others stretch the
                curve.

        Returns:
            The curve.
        """
        ideal = self.best_settings(task, utd)
        stretch = np.exp(
            self.sensitivity
            * sum(
                np.log(used / best) ** 2
                for used, best in zip(settings or ideal, ideal, strict=True)
            )
        )
        end = 1.6 * self.needed(task, utd, np.array([_ANCHOR]))[0]
        step = np.linspace(end / points, end, points)
        pace = stretch * np.exp(self.seed_noise * generator.standard_normal(seeds))
        learned = np.interp(step[:, None] / pace, self.needed(task, utd, _LEVELS), _LEVELS)
        noise = self.return_noise * generator.standard_normal((points, seeds))
        return ReturnCurve(task=task, utd=utd, step=step, returns=learned + noise)

    def curves(
        self, utds: Array, generator: np.random.Generator, *, seeds: int = 8, points: int = 400
    ) -> list[ReturnCurve]:
        """Draw a curve per task and UTD with the best settings."""
        return [
            self.curve(task, float(utd), generator, seeds=seeds, points=points)
            for task in self.difficulty
            for utd in utds
        ]
