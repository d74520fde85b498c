"""Which single measurement narrows a plan's interval most, and what its answer changes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.plan.beliefs import PARTS, Doubt

__all__ = ["Probe", "best_probe", "probes_of", "with_answer"]

Array = NDArray[np.float64]

_ALONE = {
    "a matrix product of the model's size": ("compute_s",),
    "an all-reduce of the tensor-parallel group": ("tensor_s",),
    "an all-to-all of the expert group": ("expert_s",),
    "a reduce-scatter and all-gather of the data-parallel group": ("data_s",),
    "a copy to the host's memory": ("host_s",),
}
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
    """

    name: str
    layout: int
    mix: Array
    noise: float
    spread: float


def probes_of(doubt: Doubt, target: int, names: Sequence[str] = ()) -> list[Probe]:
    """List measurements by how little doubt about one layout they leave.

    Args:
        doubt: what is believed of the candidates' times.
        target: index of the layout that matters; its own step is no candidate, as running it is
            what the plan is for.
        names: words for the layouts; their numbers when empty.

    Returns:
        The probes, the best first.

    Raises:
        ConfigError: there is no such layout.
    """
    count = len(doubt.shares)
    if not 0 <= target < count:
        raise ConfigError(f"layout {target} is none of the {count} candidates")
    found = [
        (name, -1, np.isin(PARTS, parts).astype(float), _STAND_IN) for name, parts in _ALONE.items()
    ]
    step_noise = float(np.hypot(doubt.own, _SCATTER))
    for place in range(count):
        if place != target:
            told = names[place] if names else f"layout {place}"
            found.append((f"a step of {told}", place, doubt.shares[place], step_noise))
    probes = [
        Probe(
            name=name,
            layout=place,
            mix=mix,
            noise=noise,
            spread=float(doubt.after(mix, 0.0, noise).spread[target]),
        )
        for name, place, mix, noise in found
    ]
    return sorted(probes, key=lambda probe: probe.spread)


def best_probe(doubt: Doubt, target: int, names: Sequence[str] = ()) -> Probe:
    """Return the measurement that leaves the least doubt about a layout's time.

    Args:
        doubt: what is believed of the candidates' times.
        target: index of the layout that matters.
        names: words for the layouts.

    Returns:
        The probe.
    """
    return probes_of(doubt, target, names)[0]


def with_answer(doubt: Doubt, probe: Probe, *, measured_s: float, forecast_s: float) -> Doubt:
    """Return what is believed once a probe has been answered.

    Args:
        doubt: what was believed.
        probe: what was measured.
        measured_s: seconds that it took.
        forecast_s: seconds that were forecast of it.

    Returns:
        The new doubt about all candidates.

    Raises:
        ConfigError: a time is not positive.
    """
    if not (measured_s > 0 and forecast_s > 0):
        raise ConfigError(
            f"measured {measured_s} s and forecast {forecast_s} s, but both must be above 0"
        )
    return doubt.after(probe.mix, float(np.log(measured_s / forecast_s)), probe.noise)
