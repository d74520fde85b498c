"""Which single measurement narrows a plan's interval most, and what its answer changes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError
from steelyard.plan.beliefs import PARTS, Doubt

__all__ = ["PartProbe", "Probe", "probes_of", "with_answer"]

Array = NDArray[np.float64]

_SCATTER = 0.02
"""Standard deviation of the logarithm of a measured time, repeated until its median is that good;
assumed."""
_STAND_IN = 0.05
"""The same of how far a part measured alone is from the part within a step; assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A measurement that could be made.

    Attributes:
        name: what is measured, in words.
        layout: index of the layout whose step it is; -1 for a part alone.
        mix: how much of each part it shows, [parts].
        noise: standard deviation of the logarithm of what it has of its own.
        spread: standard deviation of the target's logarithm once it is known.
        forecast_s: seconds that are forecast of it.
    """

    name: str
    layout: int
    mix: Array
    noise: float
    spread: float
    forecast_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PartProbe:
    """A measurement of one part of a step alone.

    Attributes:
        name: what is measured, in words.
        part: the part, of `PARTS`.
        forecast_s: seconds that are forecast of it.
    """

    name: str
    part: str
    forecast_s: float


def probes_of(
    doubt: Doubt,
    target: int,
    seconds: ArrayLike,
    *,
    names: Sequence[str] = (),
    parts: Sequence[PartProbe] = (),
) -> list[Probe]:
    """List measurements by how little doubt about one layout they leave.

    Args:
        doubt: what is believed of the candidates' times.
        target: index of the layout that matters; its own step is no candidate, as running it is
            what the plan is for.
        seconds: forecast seconds of a step of each candidate, [candidates].
        names: words for the layouts; their numbers when empty.
        parts: measurements of parts alone that could be made.

    Returns:
        The probes, the best first.

    Raises:
        ConfigError: there is no such layout.
    """
    count = len(doubt.shares)
    if not 0 <= target < count:
        raise ConfigError(f"layout {target} is none of the {count} candidates")
    times = np.asarray(seconds, dtype=float)
    found = [
        (item.name, -1, np.isin(PARTS, item.part).astype(float), _STAND_IN, item.forecast_s)
        for item in parts
    ]
    # What another layout has of its own blurs what its step says of the shared parts.
    step_noise = float(np.hypot(doubt.own, _SCATTER))
    for place in range(count):
        if place != target:
            told = names[place] if names else f"layout {place}"
            told = f"a step of {told}"
            found.append((told, place, doubt.shares[place], step_noise, float(times[place])))
    probes = [
        Probe(
            name=name,
            layout=place,
            mix=mix,
            noise=noise,
            # How narrow a normal distribution becomes does not depend on the answer: 0 stands for
            # any.
            spread=float(doubt.after(mix, 0.0, noise).spread[target]),
            forecast_s=forecast_s,
        )
        for name, place, mix, noise, forecast_s in found
    ]
    return sorted(probes, key=lambda probe: probe.spread)


def with_answer(doubt: Doubt, probe: Probe, measured_s: float) -> Doubt:
    """Return what is believed once a probe has been answered.

    Args:
        doubt: what was believed.
        probe: what was measured.
        measured_s: seconds that it took.

    Returns:
        The new doubt about all candidates.

    Raises:
        ConfigError: the time is not positive.
    """
    if not measured_s > 0:
        raise ConfigError(f"{probe.name} took {measured_s} s, but it must take more than 0")
    return doubt.after(probe.mix, float(np.log(measured_s / probe.forecast_s)), probe.noise)
