"""A site in virtual time under policies that are handed in, and what it metered."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from steelyard.sim.datacenter.center import DataCenter, Drivers, SiteAction, SiteState
from steelyard.sim.datacenter.columns import COLUMNS
from steelyard.sim.datacenter.plant import check_rows
from steelyard.sim.datacenter.queue import DRAIN, RUN
from steelyard.sim.datacenter.weather import STEP_S

__all__ = ["SitePolicy", "SiteRun", "SiteView", "simulate_site"]


class SiteView(NamedTuple):
    """What a policy sees before a step.

    Attributes:
        step: number of the step in the drivers.
        drivers: weather, carbon and load; a policy reads no row after `step`.
        state: setpoint, battery and queue.
        center: the site, whose plant a policy may ask.
    """

    step: int
    drivers: Drivers
    state: SiteState
    center: DataCenter


class SitePolicy(Protocol):
    """Decides one value per scenario: a setpoint, an action of the queue, or a battery's power."""

    def decide(self, view: SiteView) -> np.ndarray:
        """Return the decision for this step, [scenarios]."""
        ...


@dataclass(frozen=True)
class SiteRun:
    """What a site metered: rows of shape [steps, scenarios, `COLUMNS`].

    Attributes:
        rows: the meters.
        setpoint_c: temperatures of the air supplied, [steps, scenarios].
        inlet_limit_c: warmest inlet without a violation.
        liquid_limit_c: warmest water without one.
    """

    rows: np.ndarray
    setpoint_c: np.ndarray
    inlet_limit_c: float
    liquid_limit_c: float

    def after(self, steps: int) -> "SiteRun":
        """Return the run without its first steps."""
        return replace(self, rows=self.rows[steps:], setpoint_c=self.setpoint_c[steps:])

    def column(self, name: str) -> np.ndarray:
        """Return one meter by its name in `COLUMNS`, [steps, scenarios]."""
        return self.rows[..., COLUMNS.index(name)]

    def energy_j(self, name: str) -> np.ndarray:
        """Return the energy of one power by its name, [scenarios]."""
        return self.column(name).sum(axis=0) * STEP_S

    @property
    def cooling_j(self) -> np.ndarray:
        """Energy of everything beside the racks, [scenarios]."""
        return self.energy_j("facility_w") - self.energy_j("it_w")

    @property
    def pue(self) -> np.ndarray:
        """Energy of the site over that of the racks, [scenarios]."""
        return self.energy_j("facility_w") / self.energy_j("it_w")

    @property
    def water_l(self) -> np.ndarray:
        """Water of the tower, [scenarios]."""
        return self.column("water_l_per_s").sum(axis=0) * STEP_S

    @property
    def carbon_g(self) -> np.ndarray:
        """Carbon of the energy from the grid, [scenarios]."""
        return self.column("carbon_g").sum(axis=0)

    @cached_property
    def is_violated(self) -> np.ndarray:
        """Whether an inlet, or warm water, is above its limit, [steps, scenarios]."""
        is_hot = self.column("inlet_c") > self.inlet_limit_c + 1e-9
        # Without liquid cooling its temperature is NaN, which is above nothing.
        return is_hot | (self.column("liquid_c") > self.liquid_limit_c)

    @property
    def violations(self) -> np.ndarray:
        """Steps with a temperature above its limit, [scenarios]."""
        return self.is_violated.sum(axis=0)

    @property
    def overdue(self) -> np.ndarray:
        """Steps in which work past its deadline waited, [scenarios]."""
        return (self.column("overdue") > 1e-9).sum(axis=0)

    def account_gap(self, start_stored_j: float, efficiencies: tuple[float, float]) -> float:
        """Return the largest relative gap in the account of electric energy, over all steps.

        Grid power is that of the racks, each part of the cooling, and the battery's; what the
        battery holds changes by what was charged and discharged, less losses.

        Args:
            start_stored_j: energy in the battery before the first step.
            efficiencies: efficiencies of charging and of discharging.

        Returns:
            The gap; about 1e-16 by rounding alone.
        """
        parts = ("it_w", "crac_w", "chiller_w", "tower_w", "pumps_w", "charge_w")
        spent = sum(self.column(name) for name in parts) - self.column("discharge_w")
        # Over the site's power: nothing is bought while the battery carries all of it.
        grid = (np.abs(self.column("grid_w") - spent) / self.column("facility_w")).max()
        stored = self.column("stored_j")
        before = np.concatenate([np.full((1, stored.shape[1]), start_stored_j), stored[:-1]])
        kept = self.column("charge_w") * efficiencies[0]
        change = (kept - self.column("discharge_w") / efficiencies[1]) * STEP_S
        held = np.abs(stored - before - change).max() / max(stored.max(), 1.0)
        return float(max(grid, held, self.column("gap").max()))


def simulate_site(
    center: DataCenter,
    cooling: SitePolicy,
    *,
    shifting: SitePolicy | None = None,
    battery: SitePolicy | None = None,
    start_c: float = 18.0,
    start_charge: float = 0.0,
    closing_steps: int = 0,
) -> SiteRun:
    """Run a site over all its steps.

    Args:
        center: plant and drivers.
        cooling: decides setpoints.
        shifting: decides what waits; work runs as it comes by default.
        battery: decides charging; the battery rests by default.
        start_c: setpoint before the first step.
        start_charge: energy in the battery over its capacity before the first step; what it holds
            after the last one is worth nothing.
        closing_steps: last steps in which waiting work is run and the battery emptied, whatever the
            policies say, so that runs of equal work and energy are compared.

    Returns:
        The meters.

    Raises:
        CapacityError: the chiller is too small for a step.
    """
    drivers, state = center.drivers, center.start(start_c, start_charge)
    count, steps = drivers.scenarios, drivers.steps
    rows = np.empty((steps, count, len(COLUMNS)))
    setpoints = np.empty((steps, count))
    runs, rests = np.full(count, RUN), np.zeros(count)
    ends = np.full(count, DRAIN), np.full(count, -np.inf)
    for step in range(steps):
        view = SiteView(step, drivers, state, center)
        is_open = step < steps - closing_steps
        queue = shifting.decide(view) if shifting and is_open else ends[0] if shifting else runs
        power = battery.decide(view) if battery and is_open else ends[1] if battery else rests
        setpoints[step] = center.held(cooling.decide(view))
        state = state._replace(setpoint_c=setpoints[step])
        center.advance(state, step, SiteAction(setpoints[step], queue, power), rows[step])
    check_rows(center.plant, rows)
    spec = center.plant.spec
    return SiteRun(rows, setpoints, spec.inlet_limit_c, spec.liquid_limit_c)
