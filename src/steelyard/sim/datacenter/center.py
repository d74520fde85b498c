"""A data center in time: load that waits, a plant, a battery and the grid, for many scenarios."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from steelyard.catalog.datacenter import DataCenterSpec
from steelyard.cost.energy import J_PER_KWH
from steelyard.errors import ConfigError
from steelyard.jit import njit
from steelyard.sim.datacenter.battery import BatteryLimits, battery_step
from steelyard.sim.datacenter.columns import COLUMNS, PLANT_COLUMNS
from steelyard.sim.datacenter.parts import PlantParts
from steelyard.sim.datacenter.plant import Plant, check_rows, plant_row
from steelyard.sim.datacenter.queue import QueueRules, queue_step
from steelyard.sim.datacenter.weather import STEP_S, SiteYear

__all__ = ["DataCenter", "Drivers", "SiteAction", "SiteState", "windows"]

_PLANT = len(PLANT_COLUMNS)


@dataclass(frozen=True, slots=True)
class Drivers:
    """What drives scenarios, each of shape [steps, scenarios].

    Attributes:
        outdoor_c: temperature outdoors.
        wet_bulb_c: wet bulb temperature.
        carbon_g_per_kwh: carbon intensity of the grid.
        load: utilisation in [0, 1].
        first_step: step of the year at which each scenario begins, [scenarios].
    """

    outdoor_c: np.ndarray
    wet_bulb_c: np.ndarray
    carbon_g_per_kwh: np.ndarray
    load: np.ndarray
    first_step: np.ndarray

    @property
    def steps(self) -> int:
        """Steps of every scenario."""
        return self.load.shape[0]

    @property
    def scenarios(self) -> int:
        """Scenarios side by side."""
        return self.load.shape[1]


class SiteState(NamedTuple):
    """What lasts from step to step, one value per scenario.

    Attributes:
        setpoint_c: temperature of the air supplied, [scenarios].
        stored_j: energy in the battery, [scenarios].
        queue: work that waits by age, [scenarios, ages].
    """

    setpoint_c: np.ndarray
    stored_j: np.ndarray
    queue: np.ndarray


class SiteAction(NamedTuple):
    """What is decided for one step, one value per scenario.

    Attributes:
        setpoint_c: temperature of the air supplied.
        queue: `DEFER`, `RUN` or `DRAIN`.
        battery_w: power to charge with; negative to discharge.
    """

    setpoint_c: np.ndarray
    queue: np.ndarray
    battery_w: np.ndarray


def windows(
    years: Sequence[SiteYear], starts: Sequence[int], loads: Sequence[np.ndarray], steps: int
) -> Drivers:
    """Cut stretches out of years, one per scenario; years and loads close on themselves.

    Args:
        years: year of each scenario.
        starts: step of the year at which it begins.
        loads: utilisation by step of the year, of each scenario.
        steps: length of all.

    Returns:
        The drivers.

    Raises:
        ConfigError: the lists differ in length, or a load is outside [0, 1].
    """
    if not (len(years) == len(starts) == len(loads) > 0 and steps > 0):
        raise ConfigError(
            f"{len(years)} years, {len(starts)} starts and {len(loads)} loads of {steps} steps, "
            "but each scenario needs one of each, and steps",
            hint="give lists of one length",
        )
    for place, load in enumerate(loads):
        wrong = np.flatnonzero(~((load >= 0) & (load <= 1)))
        if wrong.size:
            raise ConfigError(
                f"load {place} is {load[wrong[0]]:g} at step {int(wrong[0])}, not in [0, 1]",
                hint="give utilisation as a fraction; powers by Plant.load_of",
            )

    def cut(series: Sequence[np.ndarray]) -> np.ndarray:
        taken = [
            np.take(values, np.arange(start, start + steps), mode="wrap")
            for values, start in zip(series, starts, strict=True)
        ]
        return np.ascontiguousarray(np.array(taken, float).T)

    return Drivers(
        outdoor_c=cut([year.outdoor_c for year in years]),
        wet_bulb_c=cut([year.wet_bulb_c for year in years]),
        carbon_g_per_kwh=cut([year.carbon_g_per_kwh for year in years]),
        load=cut(loads),
        first_step=np.array(starts),
    )


class DataCenter:
    """A plant with drivers; all scenarios of the drivers are stepped at once."""

    def __init__(
        self,
        spec: DataCenterSpec,
        drivers: Drivers,
        *,
        rules: QueueRules | None = None,
        limits: BatteryLimits | None = None,
        is_metered: bool = False,
    ) -> None:
        """Size the plant.

        Args:
            spec: the record.
            drivers: weather, carbon and load.
            rules: what may wait; nothing by default.
            limits: limits of the battery; those of the record's capacity by default.
            is_metered: whether the load stands for a metered power, as from `Plant.load_of`.

        Raises:
            CatalogError: the record contradicts itself.
        """
        self.plant = Plant(spec)
        self.drivers = drivers
        self.rules = rules or QueueRules()
        self.limits = limits or BatteryLimits(spec.battery_j)
        self.is_metered = is_metered

    def start(self, setpoint_c: float = 18.0, charge_share: float = 0.0) -> SiteState:
        """Return the state before the first step: nothing waits.

        Args:
            setpoint_c: temperature of the air supplied.
            charge_share: energy in the battery over its capacity.

        Returns:
            The state.

        Raises:
            ConfigError: the setpoint is outside the record's bounds.
        """
        spec, count = self.plant.spec, self.drivers.scenarios
        if not spec.setpoint_low_c <= setpoint_c <= spec.setpoint_high_c:
            raise ConfigError(
                f"setpoint_c is {setpoint_c}, but {spec.name} has {spec.setpoint_low_c} to "
                f"{spec.setpoint_high_c} C"
            )
        return SiteState(
            np.full(count, float(setpoint_c)),
            np.full(count, charge_share * self.limits.capacity_j),
            np.zeros((count, self.rules.deadline_steps + 1)),
        )

    def step(self, state: SiteState, step: int, action: SiteAction) -> tuple[SiteState, np.ndarray]:
        """Advance all scenarios by one step; the given state is left as it was.

        Args:
            state: before the step.
            step: number of the step in the drivers.
            action: what is decided; setpoints are held within the record's bounds.

        Returns:
            State afterwards, and meters of shape [scenarios, `COLUMNS`].

        Raises:
            CapacityError: the chiller is too small for a scenario.
        """
        after = SiteState(self.held(action.setpoint_c), state.stored_j.copy(), state.queue.copy())
        rows = np.empty((self.drivers.scenarios, len(COLUMNS)))
        self.advance(after, step, action, rows)
        check_rows(self.plant, rows)
        return after, rows

    def held(self, setpoint_c: np.ndarray) -> np.ndarray:
        """Return setpoints within the record's bounds."""
        spec = self.plant.spec
        return np.minimum(np.maximum(setpoint_c, spec.setpoint_low_c), spec.setpoint_high_c)

    def advance(self, state: SiteState, step: int, action: SiteAction, rows: np.ndarray) -> None:
        """Advance a state in place, without checks of what was metered.

        Args:
            state: its setpoints are those of this step already.
            step: number of the step in the drivers.
            action: what is decided.
            rows: filled with meters, [scenarios, `COLUMNS`].
        """
        drivers = self.drivers
        # Arrays of another layout or type would compile the kernel anew.
        action = SiteAction(
            state.setpoint_c,
            np.ascontiguousarray(action.queue, np.int64),
            np.ascontiguousarray(action.battery_w, np.float64),
        )
        _site_rows(
            self.plant.parts,
            self.limits,
            self.rules,
            state,
            action,
            drivers.outdoor_c[step],
            drivers.wet_bulb_c[step],
            drivers.carbon_g_per_kwh[step],
            drivers.load[step],
            self.is_metered,
            rows,
        )


@njit()
def _site_rows(
    plant: PlantParts,
    limits: BatteryLimits,
    rules: QueueRules,
    state: SiteState,
    action: SiteAction,
    outdoor: np.ndarray,
    wet_bulb: np.ndarray,
    carbon: np.ndarray,
    load: np.ndarray,
    is_metered: bool,
    rows: np.ndarray,
) -> None:
    """Advance scenarios by one step, and fill one row of `COLUMNS` for each."""
    for place in range(rows.shape[0]):
        row = rows[place]
        executed, waiting, overdue = queue_step(
            state.queue[place], load[place], action.queue[place], rules
        )
        setpoint = state.setpoint_c[place]
        plant_row(plant, setpoint, executed, outdoor[place], wet_bulb[place], is_metered, row)
        facility = row[0] + row[2] + row[3] + row[4] + row[5]
        stored, charge, discharge = battery_step(
            state.stored_j[place], action.battery_w[place], facility, limits, STEP_S
        )
        state.stored_j[place] = stored
        grid = facility + charge - discharge
        row[_PLANT] = facility
        row[_PLANT + 1] = executed
        row[_PLANT + 2] = waiting
        row[_PLANT + 3] = overdue
        row[_PLANT + 4] = charge
        row[_PLANT + 5] = discharge
        row[_PLANT + 6] = stored
        row[_PLANT + 7] = grid
        row[_PLANT + 8] = grid * STEP_S / J_PER_KWH * carbon[place]
