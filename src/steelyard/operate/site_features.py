"""What a learned controller sees of a site, and how its moves become decisions."""

import numpy as np

from steelyard.sim.datacenter import SiteView

__all__ = ["NUM_FEATURES", "site_features"]

_STEPS_PER_DAY, _DAYS = 96, 365
NUM_FEATURES = 12
"""Numbers that a controller sees of each scenario."""


def site_features(view: SiteView) -> np.ndarray:
    """Return what is known before a step, scaled to about [-1, 1].

    Args:
        view: the site.

    Returns:
        float32 of shape [scenarios, 12]: hour and day of the year as sine and cosine, temperatures,
        carbon now and against the day before, load, setpoint, battery and waiting work.
    """
    drivers, step, spec = view.drivers, view.step, view.center.plant.spec
    place = drivers.first_step + step
    hour = 2 * np.pi * place / _STEPS_PER_DAY
    day = hour / _DAYS
    carbon = drivers.carbon_g_per_kwh[step]
    # Grids differ by ten times: beside its own last day an intensity is high or low on any of them.
    seen = drivers.carbon_g_per_kwh[max(step - _STEPS_PER_DAY + 1, 0) : step + 1].mean(axis=0)
    middle = (spec.setpoint_low_c + spec.setpoint_high_c) / 2
    half = (spec.setpoint_high_c - spec.setpoint_low_c) / 2
    capacity = max(view.center.limits.capacity_j, 1.0)
    return np.stack(
        [
            np.sin(hour),
            np.cos(hour),
            np.sin(day),
            np.cos(day),
            drivers.outdoor_c[step] / 20 - 1,
            drivers.wet_bulb_c[step] / 20 - 0.5,
            carbon / 500 - 1,
            np.clip(carbon / np.maximum(seen, 1.0) - 1, -1, 1),
            2 * drivers.load[step] - 1,
            (view.state.setpoint_c - middle) / half,
            2 * view.state.stored_j / capacity - 1,
            np.minimum(view.state.queue.sum(axis=1) / 2.5 - 1, 1.0),
        ],
        axis=1,
    ).astype(np.float32)
