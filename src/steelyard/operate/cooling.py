"""Setpoints of the air supplied to a room: fixed, by rule, and by a plan over a forecast."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.datacenter import DataCenter, Drivers, SiteView

__all__ = [
    "DriverForecast",
    "FixedSetpoint",
    "SetpointPlan",
    "TrimAndRespond",
    "as_yesterday",
    "best_setpoints",
    "perfect",
    "setpoint_carbon_g",
    "setpoint_grid",
    "yesterday",
]

_DAY_STEPS = 96

DriverForecast = Callable[[SiteView, int], Drivers]
"""Makes the drivers of a number of steps, of which the first is the present one."""


def yesterday(view: SiteView, steps: int) -> Drivers:
    """Forecast that the next steps are as they were a day ago.

    On the first day everything stays as it is.

    Args:
        view: the present; nothing after it is read.
        steps: steps, the present one included; at most a day.

    Returns:
        Drivers of those steps.
    """
    start = view.step - _DAY_STEPS
    places = np.arange(start, start + steps) if start >= 0 else np.full(steps, view.step)
    return _rows(view.drivers, places)


def as_yesterday(view: SiteView, steps: int) -> Drivers:
    """Forecast that the next steps change as they did a day ago, from where they are now.

    Args:
        view: the present; nothing after it is read.
        steps: steps, the present one included; at most a day.

    Returns:
        Drivers of those steps.
    """
    past, drivers = yesterday(view, steps), view.drivers

    def moved(name: str, low: float = -np.inf, high: float = np.inf) -> np.ndarray:
        values = getattr(past, name)
        return np.clip(values + getattr(drivers, name)[view.step] - values[0], low, high)

    return replace(
        past,
        outdoor_c=moved("outdoor_c"),
        wet_bulb_c=moved("wet_bulb_c"),
        carbon_g_per_kwh=moved("carbon_g_per_kwh", low=0.0),
        load=moved("load", 0.0, 1.0),
    )


def perfect(view: SiteView, steps: int) -> Drivers:
    """Return what will be; for oracles. The last step stands for those after it.

    Args:
        view: the present.
        steps: steps, the present one included.

    Returns:
        Drivers of those steps.
    """
    places = np.minimum(np.arange(view.step, view.step + steps), view.drivers.steps - 1)
    return _rows(view.drivers, places)


def _rows(drivers: Drivers, places: np.ndarray) -> Drivers:
    """Return some steps of drivers."""
    return Drivers(
        outdoor_c=drivers.outdoor_c[places],
        wet_bulb_c=drivers.wet_bulb_c[places],
        carbon_g_per_kwh=drivers.carbon_g_per_kwh[places],
        load=drivers.load[places],
        first_step=drivers.first_step,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedSetpoint:
    """Keeps one setpoint.

    Attributes:
        setpoint_c: temperature of the air supplied.
    """

    setpoint_c: float = 18.0

    def decide(self, view: SiteView) -> np.ndarray:
        """Return the setpoint, [scenarios]."""
        return np.full(view.drivers.scenarios, self.setpoint_c)


@dataclass(kw_only=True, slots=True)
class TrimAndRespond:
    """Raises the setpoint slowly while all is cool, and lowers it at once when not.

    The monitored temperature is the warmest inlet.

    Source: ASHRAE Guideline 36, trim and respond, in the form of arXiv 2404.12498.

    Attributes:
        step_c: change of the setpoint.
        hold_steps: steps at or below the limit after which the setpoint is raised.
        limit_c: limit of the inlet; by default a step below the record's, so that raising the
            setpoint once more breaks nothing.
    """

    step_c: float = 0.5
    hold_steps: int = 4
    limit_c: float | None = None
    _calm: np.ndarray | None = field(default=None, repr=False)

    def decide(self, view: SiteView) -> np.ndarray:
        """Return the setpoints, [scenarios]."""
        setpoint = view.state.setpoint_c
        if view.step == 0 or self._calm is None:
            self._calm = np.zeros(setpoint.size, int)
        plant = view.center.plant
        limit = plant.spec.inlet_limit_c - self.step_c if self.limit_c is None else self.limit_c
        is_calm = setpoint + plant.highest_approach_c <= limit + 1e-9
        self._calm = np.where(is_calm, self._calm + 1, 0)
        is_raised = self._calm > self.hold_steps
        self._calm = np.where(is_raised, 0, self._calm)
        return setpoint + self.step_c * is_raised - self.step_c * ~is_calm


def setpoint_grid(center: DataCenter, spacing_c: float) -> np.ndarray:
    """Return the setpoints of a record's range whose inlets stay within the limit.

    Args:
        center: the site.
        spacing_c: distance between neighbours.

    Returns:
        Setpoints in rising order; the last may be nearer to its neighbour.

    Raises:
        ConfigError: even the lowest setpoint breaks the limit.
    """
    plant = center.plant
    highest = min(plant.spec.setpoint_high_c, plant.spec.inlet_limit_c - plant.highest_approach_c)
    low = plant.spec.setpoint_low_c
    if highest < low:
        raise ConfigError(
            f"{plant.spec.name}: inlets are up to {plant.highest_approach_c:g} C above the "
            f"setpoint, so that even {low:g} C breaks the limit of {plant.spec.inlet_limit_c:g} C",
            hint="lower setpoint_low_c or the racks' supply_approach_c",
        )
    return np.append(np.arange(low, highest - 1e-9, spacing_c), highest)


def setpoint_carbon_g(center: DataCenter, drivers: Drivers, grid: np.ndarray) -> np.ndarray:
    """Return the carbon rate of every setpoint, in power times intensity.

    Args:
        center: the site; its battery and queue rest.
        drivers: drivers of some steps.
        grid: setpoints.

    Returns:
        Values of shape [steps, scenarios, setpoints].

    Raises:
        CapacityError: the chiller is too small for a setpoint.
    """
    meters = center.plant.meters(
        grid,
        drivers.load[..., None],
        drivers.outdoor_c[..., None],
        drivers.wet_bulb_c[..., None],
        is_metered=center.is_metered,
    )
    return meters.facility_w * drivers.carbon_g_per_kwh[..., None]


@dataclass(frozen=True, kw_only=True, slots=True)
class SetpointPlan:
    """Model predictive control: follows the plan of least carbon over a forecast, step by step.

    A plan moves to one setpoint as fast as it may and stays there; all of them are metered in one
    call of the plant. Setpoints whose inlets would pass the limit are no plans.

    Source: receding horizon over enumerated plans, as the baseline of arXiv 2404.12498 asks for.

    Attributes:
        horizon_steps: steps that are planned, the present one included.
        spacing_c: distance between setpoints that are tried.
        fastest_c: most that the setpoint changes in a step.
        forecast: makes the drivers of the horizon.
    """

    horizon_steps: int = 8
    spacing_c: float = 0.5
    fastest_c: float = 1.0
    forecast: DriverForecast = as_yesterday

    def decide(self, view: SiteView) -> np.ndarray:
        """Return the setpoints, [scenarios]."""
        goals = setpoint_grid(view.center, self.spacing_c)
        ahead = self.forecast(view, self.horizon_steps)
        now = view.state.setpoint_c[:, None]
        reach = self.fastest_c * np.arange(1, self.horizon_steps + 1)[:, None, None]
        plans = np.clip(goals, now - reach, now + reach)
        grams = setpoint_carbon_g(view.center, ahead, plans).sum(axis=0)
        best = grams.argmin(axis=1)
        return np.take_along_axis(plans[0], best[:, None], axis=1)[:, 0]


def best_setpoints(
    center: DataCenter, *, start_c: float = 18.0, spacing_c: float = 0.5, fastest_c: float = 1.0
) -> tuple[np.ndarray, float]:
    """Return the setpoints of least carbon for drivers known in advance, and the best fixed one.

    Exact over a grid of setpoints, by dynamic programming over steps.

    Args:
        center: the site, with one scenario.
        start_c: setpoint before the first step.
        spacing_c: distance between setpoints.
        fastest_c: most that the setpoint changes in a step.

    Returns:
        Setpoints by step, and the single setpoint that emits least.

    Raises:
        ConfigError: there are several scenarios.
    """
    if center.drivers.scenarios != 1:
        raise ConfigError(f"best_setpoints takes one scenario, not {center.drivers.scenarios}")
    grid = setpoint_grid(center, spacing_c)
    grams = setpoint_carbon_g(center, center.drivers, grid)[:, 0]
    may = np.abs(grid[:, None] - grid) <= fastest_c + 1e-9
    moves = np.where(may, 0.0, np.inf)
    best, came = grams[-1], np.empty(grams.shape, int)
    # From the last step backwards: least carbon from each setpoint on, and the setpoint after it.
    for step in range(len(grams) - 2, -1, -1):
        after = moves + best
        came[step] = after.argmin(axis=1)
        best = grams[step] + after[np.arange(grid.size), came[step]]
    first = np.where(np.abs(grid - start_c) <= fastest_c + 1e-9, best, np.inf)
    place, path = int(first.argmin()), []
    for step in range(len(grams)):
        path.append(grid[place])
        place = came[step][place] if step < len(grams) - 1 else place
    return np.array(path), float(grid[grams.sum(axis=0).argmin()])
