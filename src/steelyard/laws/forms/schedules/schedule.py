"""Loss as a function of the learning-rate schedule: the multi-power law."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Array, Derivatives, Term, Transform
from steelyard.laws.forms.schedules.schedule_rates import (
    Drops,
    LearningRates,
    anneal,
    collect_drops,
)
from steelyard.laws.forms.terms import positive, real

__all__ = ["BELIEFS", "multi_power", "with_schedules"]

_LINEAR_FROM = 0.9
"""Where the annealed part takes more than this share of the rest, the log continues as a straight
line, so that no set of parameters gives a negative loss; fitted laws stay far below."""
_REMEMBERED = 4
BELIEFS = {"beta": Prior(0.6, 0.05), "gamma": Prior(0.65, 0.05)}
"""Published fits of 25M, 100M and 400M parameters lie within .58-.60 and .63-.66 (Luo et al. 2025);
wider here. A few curves fit many pairs of beta and gamma about equally well, and those far from
here predict longer decays worse."""


@dataclass(frozen=True)
class _MultiPowerTerm(Term):
    """L0 + A total^-alpha - B sum of drops x [1 - (1 + C rate^-gamma since)^-beta].

    Attributes:
        schedules: K of them; input "schedule" counts them from 1.
        growth: width of the lumped blocks, see `collect_drops`.
    """

    schedules: tuple[LearningRates, ...]
    growth: float = 1.15
    _drops: dict[bytes, Drops] = field(default_factory=dict, compare=False, repr=False)

    transforms: ClassVar[dict[str, Transform]] = {
        "L0": "log",
        "A": "log",
        "B": "log",
        "C": "log",
        "alpha": "identity",
        "beta": "identity",
        "gamma": "identity",
    }
    inputs: ClassVar[tuple[str, ...]] = ("schedule", "step")

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log loss, [S, n]; see `Term.evaluate`."""
        drops = self._collected(inputs)
        trunk = theta["A"] - theta["alpha"] * drops.log_total
        base = np.logaddexp(theta["L0"], trunk)
        share = np.exp(trunk - base)
        annealed, by_c, by_beta, by_gamma = anneal(drops, theta["C"], theta["beta"], theta["gamma"])
        scale = np.exp(np.minimum(theta["B"] - base, 500.0))  # beyond e^500 sums would overflow
        # Starts far from the optimum could take away more than the whole loss. From 90 % on the log
        # continues as its tangent, which is finite everywhere and leads back.
        part = scale * annealed
        over = part > _LINEAR_FROM
        left = np.where(over, 1 - _LINEAR_FROM, 1 - part)
        log = base + np.log(left) - np.where(over, (part - _LINEAR_FROM) / left, 0.0)
        by_base = 1 + part / left
        return log, {
            "L0": by_base * (1 - share),
            "A": by_base * share,
            "alpha": -by_base * share * drops.log_total,
            "B": -part / left,
            "C": -scale * by_c / left,
            "beta": -scale * by_beta / left,
            "gamma": -scale * by_gamma / left,
        }

    def _collected(self, inputs: Mapping[str, Array]) -> Drops:
        """Lump the drops once per set of points; the last few sets are remembered."""
        # The minimizer asks for the same points again and again; a bootstrap asks for a few sets.
        key = inputs["schedule"].tobytes() + inputs["step"].tobytes()
        if key not in self._drops:
            while len(self._drops) >= _REMEMBERED:
                self._drops.pop(next(iter(self._drops)))
            self._drops[key] = collect_drops(
                self.schedules, inputs["schedule"], inputs["step"], growth=self.growth
            )
        return self._drops[key]


def multi_power(schedules: Sequence[LearningRates], *, growth: float = 1.15) -> Law:
    """Loss = L0 + A S(t)^-alpha - B sum_k (eta_{k-1} - eta_k) G_k(t).

    G_k(t) = 1 - (1 + C eta_k^-gamma S_k(t))^-beta. S(t) is the sum of all learning rates up to step
    t, warm-up included, and S_k(t) that from step k on. The sum runs over all changes of the rate;
    the rise of the warm-up counts as negative drops, so schedules that are compared share their
    warm-up.

    Args:
        schedules: K of them, every step's rate.
        growth: ratio of successive distances at which older drops are lumped; 1.15 keeps the loss
            within 1e-4 nats of the exact sum, 1 is exact and many times slower.

    Returns:
        The law with inputs "schedule" (1..K) and "step", 7 parameters; B and C have the unit of a
        reciprocal learning rate.

    Raises:
        FitError: there is no schedule.

    Source: Luo et al. 2025 (Multi-Power Law, ICLR), equation 1; parameters and warm-up as in the
        authors' code.
    """
    if not schedules:
        raise FitError(
            "a multi-power law needs at least one schedule",
            hint="give the learning rates of every run, see LearningRates",
        )
    return Law(
        name="multi_power",
        term=_MultiPowerTerm(tuple(schedules), growth),
        parameters=_parameters(schedules),
        conditions=("schedule", "step"),
        formula="L0 + A S^-alpha - B sum_k (eta_{k-1} - eta_k) [1 - (1 + C eta_k^-gamma "
        "S_k)^-beta]",
    )


def _parameters(schedules: Sequence[LearningRates]) -> tuple[Parameter, ...]:
    """Declare the parameters; the starts of the scales follow from rates and lengths."""
    # B and C have the unit of a reciprocal rate, so no fixed start fits all peaks. With these the
    # trunk's power is .5 at a tenth of the longest sum of rates, a drop from the peak to 0 takes .1
    # off the loss, and C rate^-gamma since is 1 after about ten steps at the peak.
    peak = max(item.peak for item in schedules)
    middle = np.log(max(float(item.rates.sum()) for item in schedules) / 10)
    step_scale = float(np.log(0.1) - (1 - 0.6) * np.log(peak))
    trunk = float(np.log(0.5) + 0.5 * middle)
    fall = float(np.log(0.1 / peak))
    return (
        positive("L0", -7.0, 7.0, 0.0, 1.0),
        positive("A", -25.0, 25.0, trunk),
        real("alpha", 0.02, 3.0, 0.3, 0.6),
        positive("B", -25.0, 30.0, fall),
        positive("C", -25.0, 30.0, step_scale - 1.0, step_scale + 1.0),
        real("beta", 0.02, 5.0, 0.5, prior=BELIEFS["beta"]),
        real("gamma", -1.0, 3.0, 0.6, prior=BELIEFS["gamma"]),
    )


def with_schedules(law: Law, schedules: Sequence[LearningRates]) -> Law:
    """Return a law with other schedules; one of steps alone knows none.

    Args:
        law: multi-power law, or one without schedules.
        schedules: K of them.

    Returns:
        The law; fixed parameters stay fixed.

    Raises:
        FitError: a grouped law.
    """
    if law.name != "multi_power":
        return law
    if law.groups:
        raise FitError(
            "a grouped law has a set of parameters per group",
            hint="fit the curves of one group alone",
        )
    other = multi_power(schedules)
    return other.fix(**law.fixed) if law.fixed else other
