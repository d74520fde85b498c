"""Survival of stored data: how likely none is lost, by how it is copied or coded and repaired."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import expm_multiply

from steelyard.errors import ConfigError, require

__all__ = ["Coded", "Copies", "SurvivalEstimate", "sample_survival", "survival"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """Each shard stands whole on several nodes.

    Attributes:
        replicas: copies r of a shard, at least 1.
        groups: different sets of nodes that hold copies of a shard together. A scatter width S over
            n nodes makes about n S / (r (r - 1)) of them; as many as there are shards where each
            shard draws its own.

    Source: Cidon et al. 2013 (copysets), section 3.
    """

    replicas: int
    groups: int = 1

    def __post_init__(self) -> None:
        require(
            self,
            replicas=(self.replicas >= 1, "at least 1"),
            groups=(self.groups >= 1, "at least 1"),
        )

    @property
    def members(self) -> int:
        """Nodes of a group."""
        return self.replicas

    @property
    def needed(self) -> int:
        """Nodes of a group that must be left."""
        return 1

    @property
    def overhead(self) -> float:
        """Bytes kept for each byte of data."""
        return float(self.replicas)


@dataclass(frozen=True, kw_only=True, slots=True)
class Coded:
    """Each shard is cut into k fragments, and m more are coded of them (RS(k, m)).

    Attributes:
        data: fragments k, at least 1.
        parity: fragments m, at least 0.
        groups: different sets of nodes that hold the fragments of a shard together.
    """

    data: int
    parity: int
    groups: int = 1

    def __post_init__(self) -> None:
        require(
            self,
            data=(self.data >= 1, "at least 1"),
            parity=(self.parity >= 0, "at least 0"),
            groups=(self.groups >= 1, "at least 1"),
        )

    @property
    def members(self) -> int:
        """Nodes of a group."""
        return self.data + self.parity

    @property
    def needed(self) -> int:
        """Nodes of a group that must be left."""
        return self.data

    @property
    def overhead(self) -> float:
        """Bytes kept for each byte of data."""
        return (self.data + self.parity) / self.data


@dataclass(frozen=True, slots=True)
class SurvivalEstimate:
    """How long data last.

    Attributes:
        probability: probability that no group loses data within the horizon, 0 to 1.
        loss: its complement, exact also where it is far below the spacing of floats near 1.
        mean_time_s: mean time until the first group loses data, seconds.
        overhead: bytes kept for each byte of data.
    """

    probability: float
    loss: float
    mean_time_s: float
    overhead: float


def survival(
    scheme: Copies | Coded, node_lambda: float, repair_time: float, *, horizon_s: float = 3.156e7
) -> SurvivalEstimate:
    """Compute the probability that a scheme loses nothing.

    The lost members of a group are a Markov chain: i of n are lost, another is at rate
    (n - i) lambda, and each lost one is back at rate 1 / repair time. Groups are taken as
    independent; those that share nodes lose data together rather than one by one, so that the
    result is a lower bound.

    Args:
        scheme: copies or code.
        node_lambda: failures of a node, 1/s; at least 0.
        repair_time: mean time until a lost member is back elsewhere, seconds, exponential; above 0.
        horizon_s: time that the data should last, seconds; a year by default.

    Returns:
        Survival over the horizon.

    Raises:
        ConfigError: a rate or time is out of range.

    Source: Trivedi, Probability and Statistics with Reliability, 2nd ed., section 8.3 (birth-death
        chain with an absorbing state); groups as in Cidon et al. 2013.
    """
    if not (node_lambda >= 0 and repair_time > 0 and 0 <= horizon_s < math.inf):
        raise ConfigError(
            f"node_lambda {node_lambda}, repair_time {repair_time} and horizon_s {horizon_s}: "
            "a rate is at least 0, a repair time above 0",
            hint="give failures per second and seconds",
        )
    if node_lambda == 0:
        return SurvivalEstimate(1.0, 0.0, math.inf, scheme.overhead)
    steps = scheme.members - scheme.needed + 1
    fail = np.array([(scheme.members - lost) * node_lambda for lost in range(steps)])
    back = np.arange(steps) / repair_time
    one = _absorbed(fail, back, horizon_s)
    loss = -math.expm1(scheme.groups * math.log1p(-min(one, 1 - 1e-16)))
    return SurvivalEstimate(
        1 - loss, loss, _mean_absorption_s(fail, back) / scheme.groups, scheme.overhead
    )


def _absorbed(fail: np.ndarray, back: np.ndarray, horizon_s: float) -> float:
    """Return the probability that a birth-death chain has left its states within the horizon."""
    steps = len(fail)
    # The absorbing state is a row of its own: its probability is a sum of positive terms and keeps
    # its relative precision, where 1 minus the others would be rounding.
    rates = np.zeros((steps + 1, steps + 1))
    for lost in range(steps):
        rates[lost + 1, lost] += fail[lost]
        rates[lost, lost] -= fail[lost] + back[lost]
        if lost:
            rates[lost - 1, lost] += back[lost]
    start = np.zeros(steps + 1)
    start[0] = 1.0
    if np.abs(rates).max() * horizon_s > 1e4:
        # Repairs are then far shorter than the horizon, and the first loss is all but exponential.
        return -math.expm1(-horizon_s / _mean_absorption_s(fail, back))
    return float(min(max(expm_multiply(csc_matrix(rates * horizon_s), start)[-1], 0.0), 1.0))


def _mean_absorption_s(fail: np.ndarray, back: np.ndarray) -> float:
    """Return the mean time until a birth-death chain leaves its last state, seconds."""
    total, up = 0.0, 0.0
    for lost in range(len(fail)):
        # Time from i to i + 1: waiting there, and coming again from every fall to i - 1.
        up = 1 / fail[lost] + (back[lost] / fail[lost]) * up
        total += up
    return total


def sample_survival(
    scheme: Copies | Coded,
    node_lambda: float,
    repair_time: float,
    *,
    horizon_s: float,
    trials: int,
    generator: np.random.Generator,
) -> float:
    """Simulate groups failure by failure; the check of `survival`.

    Args:
        scheme: copies or code.
        node_lambda: failures of a node, 1/s; above 0.
        repair_time: mean repair time, seconds.
        horizon_s: time that the data should last, seconds.
        trials: systems simulated.
        generator: source of the times.

    Returns:
        Share of the systems that lost nothing.
    """
    count = trials * scheme.groups
    lost, now, alive = np.zeros(count, np.int64), np.zeros(count), np.ones(count, bool)
    active = np.arange(count)
    while active.size:
        fail = (scheme.members - lost[active]) * node_lambda
        back = lost[active] / repair_time
        now[active] += generator.exponential(1 / (fail + back))
        active = active[now[active] < horizon_s]
        chance = (scheme.members - lost[active]) * node_lambda
        total = chance + lost[active] / repair_time
        lost[active] += np.where(generator.random(active.size) * total < chance, 1, -1)
        dead = scheme.members - lost[active] < scheme.needed
        alive[active[dead]] = False
        active = active[~dead]
    return float(alive.reshape(trials, scheme.groups).all(axis=1).mean())
