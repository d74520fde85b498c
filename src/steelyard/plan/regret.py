"""What choosing wrongly costs: the forecast's doubt carried through the choice."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError
from steelyard.plan.beliefs import Doubt

__all__ = ["Regret", "regret_of"]

Array = NDArray[np.float64]
_DRAWS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Regret:
    """How sure a choice among candidates is.

    Attributes:
        chosen: index of the candidate that is expected to be fastest.
        wins: probability that each candidate is the fastest, [candidates]; they add up to 1.
        runner_up: index of the candidate that most often beats the chosen one; -1 without others.
        lost_s: expected seconds of the chosen one over the fastest, relative to its expected time.
        lost_usd: the same in money for the whole run; NaN where the price is not known.
    """

    chosen: int
    wins: Array
    runner_up: int
    lost_s: float
    lost_usd: float

    @property
    def runner_up_wins(self) -> float:
        """Probability that the runner-up is the fastest; 0 without others."""
        return float(self.wins[self.runner_up]) if self.runner_up >= 0 else 0.0


def regret_of(
    seconds: ArrayLike, doubt: Doubt, *, run_usd: float = float("nan"), seed: int = 0
) -> Regret:
    """Say how often the chosen candidate loses, and what that costs.

    Args:
        seconds: forecast seconds of a step of each candidate, [candidates].
        doubt: what is believed of their errors.
        run_usd: money that the run costs with the chosen candidate.
        seed: seed of the draws.

    Returns:
        The regret, from 4,096 draws of all times together.

    Raises:
        ConfigError: times are not positive, or not those that the doubt is about.
    """
    times = np.asarray(seconds, dtype=float)
    if times.shape != (len(doubt.shares),) or not (times > 0).all():
        raise ConfigError(
            f"{times.size} forecast times, but the doubt is about {len(doubt.shares)} layouts with "
            "times above 0"
        )
    rng = np.random.default_rng(seed)
    # Both signs of each draw: half the noise for the same work.
    half = rng.standard_normal((_DRAWS // 2, len(times)))
    factor = np.linalg.cholesky(doubt.times_covariance)
    errors = doubt.shift + np.concatenate([half, -half]) @ factor.T
    drawn = times * np.exp(errors)
    expected = drawn.mean(axis=0)
    chosen = int(expected.argmin())
    wins = np.bincount(drawn.argmin(axis=1), minlength=len(times)) / len(drawn)
    lost = float((drawn[:, chosen] - drawn.min(axis=1)).mean() / expected[chosen])
    others = np.where(np.arange(len(times)) == chosen, -1.0, wins)
    return Regret(
        chosen=chosen,
        wins=wins,
        runner_up=int(others.argmax()) if len(times) > 1 else -1,
        lost_s=lost,
        lost_usd=lost * run_usd,
    )
