"""Gymnasium environments of a site: cooling, waiting work, battery, all three, and many at once.

Needs the extra `[operate]`; nothing else of the package imports this module.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from steelyard.catalog.datacenter import DataCenterSpec
from steelyard.errors import BackendError, ConfigError, require
from steelyard.operate.site_features import NUM_FEATURES, site_features
from steelyard.sim.datacenter import (
    RUN,
    DataCenter,
    QueueRules,
    SiteAction,
    SiteView,
    SiteYear,
    windows,
)
from steelyard.sim.datacenter.columns import COLUMNS

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:  # pragma: no cover
    raise BackendError(
        "the environments need gymnasium", hint="pip install 'steelyard[operate]'"
    ) from error

__all__ = [
    "BatteryEnv",
    "CoolingEnv",
    "DataCenterEnv",
    "DataCenterVectorEnv",
    "ShiftingEnv",
    "SiteTask",
]

_MOVES_C = np.array([-1.0, 0.0, 1.0])
_POWERS_W = np.array([-np.inf, 0.0, np.inf])
_CARBON, _INLET, _OVERDUE = (COLUMNS.index(name) for name in ("carbon_g", "inlet_c", "overdue"))
_RULES = QueueRules(flexible_share=0.2)


@dataclass(frozen=True, kw_only=True)
class SiteTask:
    """What an episode is drawn from, and how it is rewarded.

    Attributes:
        spec: the data center.
        year: weather and carbon.
        load: utilisation by step of the year.
        steps: steps of an episode; a week by default.
        rules: what may wait.
        reward: "carbon" is minus the kilograms of the step; "sustaindc" adds that model's
            penalties of overdue work, with carbon and energy scaled by the site's rating.
        heat_penalty: reward lost per kelvin of an inlet above its limit.
        start_c: setpoint before the first step.
    """

    spec: DataCenterSpec
    year: SiteYear
    load: np.ndarray
    steps: int = 672
    rules: QueueRules = _RULES
    reward: Literal["carbon", "sustaindc"] = "carbon"
    heat_penalty: float = 10.0
    start_c: float = 18.0

    def __post_init__(self) -> None:
        """Refuse tasks without steps."""
        require(
            self,
            steps=(0 < self.steps <= len(self.year), f"in [1, {len(self.year)}]"),
            heat_penalty=(self.heat_penalty >= 0, "0 or more"),
        )


class _Episodes:
    """Sites of one task side by side: what all environments share."""

    def __init__(self, task: SiteTask, count: int) -> None:
        self.task, self.count = task, count
        self.center = self._drawn(np.random.default_rng(0))
        self.state, self.step = self.center.start(task.start_c), 0
        self.rows = np.zeros((count, len(COLUMNS)))

    def _drawn(self, rng: np.random.Generator) -> DataCenter:
        """Make sites whose episodes begin at drawn steps of the year."""
        task = self.task
        starts = rng.integers(0, len(task.year), self.count)
        drivers = windows(
            [task.year] * self.count, starts.tolist(), [task.load] * self.count, task.steps
        )
        return DataCenter(task.spec, drivers, rules=task.rules)

    def reset(self, rng: np.random.Generator) -> np.ndarray:
        """Begin all episodes anew and return what is seen."""
        self.center = self._drawn(rng)
        self.state, self.step = self.center.start(self.task.start_c), 0
        self.rows[:] = 0.0
        return self.seen()

    def seen(self) -> np.ndarray:
        """Return what is known before the step, [scenarios, features]."""
        last = min(self.step, self.task.steps - 1)
        return site_features(SiteView(last, self.center.drivers, self.state, self.center))

    def advance(self, moves: np.ndarray) -> np.ndarray:
        """Take moves of setpoint, queue and battery, [scenarios, 3], and return the rewards."""
        action = SiteAction(
            self.state.setpoint_c + _MOVES_C[moves[:, 0]], moves[:, 1], _POWERS_W[moves[:, 2]]
        )
        self.state, self.rows = self.center.step(self.state, self.step, action)
        self.step += 1
        return self._rewards()

    def _rewards(self) -> np.ndarray:
        """Return minus the carbon, less what heat and overdue work cost."""
        task, rows = self.task, self.rows
        heat = np.maximum(rows[:, _INLET] - task.spec.inlet_limit_c, 0.0)
        if task.reward == "carbon":
            return -rows[:, _CARBON] / 1e3 - task.heat_penalty * heat
        rated_g = self.center.plant.parts.rated_w / 4e3 * task.year.carbon_g_per_kwh.mean()
        tasks = rows[:, _OVERDUE] * 100
        ages = self.state.queue[:, ::-1] > 0
        oldest = np.where(ages.any(axis=1), 1 - ages.argmax(axis=1) / ages.shape[1], 0.0)
        late = np.where(tasks > 0, 0.3 - 0.3 * np.sqrt(tasks), 0.0)
        return -rows[:, _CARBON] / rated_g / 0.5 + late - 0.1 * oldest

    @property
    def is_over(self) -> bool:
        """Whether the last step is done."""
        return self.step >= self.task.steps

    def told(self, place: int) -> dict[str, float]:
        """Return the last meters of one scenario by name; what a site lacks is left out."""
        pairs = zip(COLUMNS, self.rows[place].tolist(), strict=True)
        # NaN is unequal to itself: equal episodes would not compare as equal.
        return {name: value for name, value in pairs if math.isfinite(value)}


def _box() -> spaces.Box:
    """Return the space of what is seen of one site."""
    return spaces.Box(-10.0, 10.0, (NUM_FEATURES,), np.float32)


class DataCenterEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One site with three decisions: of the setpoint, of waiting work and of the battery.

    The setpoint falls, stays or rises by a kelvin; work waits, runs or is caught up on; the battery
    discharges, rests or charges.

    Source: arXiv 2404.12498 and SustainDC (NeurIPS 2024), with rewards of its own.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, task: SiteTask) -> None:
        """Make the site.

        Args:
            task: what episodes are drawn from.
        """
        self._episodes = _Episodes(task, 1)
        self.observation_space = _box()
        self.action_space = spaces.MultiDiscrete([3, 3, 3])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode at a drawn step of the year; the seed decides which."""
        super().reset(seed=seed, options=options)
        return self._episodes.reset(self.np_random)[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance by 15 minutes; an episode is truncated after its last step, never terminated.

        Args:
            action: three numbers in {0, 1, 2}.

        Returns:
            What is seen, the reward, False, whether the episode is over, and the meters by name.

        Raises:
            ConfigError: the action has another form, or the episode is over.
        """
        episodes = self._episodes
        moves = np.asarray(action).reshape(-1)
        if moves.size != 3 or moves.min() < 0 or moves.max() > 2 or episodes.is_over:
            raise ConfigError(
                f"action {action!r} in step {episodes.step} of {episodes.task.steps}",
                hint="give three numbers in {0, 1, 2}, and reset after the last step",
            )
        reward = float(episodes.advance(moves[None])[0])
        return episodes.seen()[0], reward, False, episodes.is_over, episodes.told(0)


class _OneDecision(DataCenterEnv):
    """A site with one of the three decisions; the other two are held."""

    _place = 0

    def __init__(self, task: SiteTask) -> None:
        super().__init__(task)
        self.action_space = spaces.Discrete(3)  # pyright: ignore[reportAttributeAccessIssue]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance by 15 minutes.

        Args:
            action: 0, 1 or 2.

        Returns:
            As of `DataCenterEnv`.
        """
        moves = np.array([1, RUN, 1])
        moves[self._place] = int(action)
        return super().step(moves)


class CoolingEnv(_OneDecision):
    """One site whose setpoint falls by a kelvin, stays or rises."""

    _place = 0


class ShiftingEnv(_OneDecision):
    """One site whose flexible work waits, runs as it comes, or is caught up on."""

    _place = 1


class BatteryEnv(_OneDecision):
    """One site whose battery discharges, rests or charges."""

    _place = 2


class DataCenterVectorEnv(gymnasium.vector.VectorEnv):
    """Many sites of one task, stepped by one call of the plant.

    All episodes end together; the step after the last one begins new ones.
    """

    metadata: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, task: SiteTask, num_envs: int) -> None:
        """Make the sites.

        Args:
            task: what episodes are drawn from.
            num_envs: sites side by side.
        """
        self.num_envs = num_envs
        self._episodes = _Episodes(task, num_envs)
        self.single_observation_space = _box()
        self.single_action_space = spaces.MultiDiscrete([3, 3, 3])
        batch: Callable[..., Any] = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin all episodes at drawn steps of the year.

        Args:
            seed: seed of all of them; of a list the first counts.
            options: none are known.

        Returns:
            What is seen of each site, and no further words.
        """
        super().reset(seed=seed[0] if isinstance(seed, list) else seed, options=options)
        return self._episodes.reset(self.np_random), {}

    def step(
        self, actions: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance all sites by 15 minutes.

        Args:
            actions: actions of shape [num_envs, 3], each in {0, 1, 2}.

        Returns:
            What is seen, rewards, and whether episodes ended or were cut, of each site.
        """
        episodes, never = self._episodes, np.zeros(self.num_envs, bool)
        if episodes.is_over:
            return self._episodes.reset(self.np_random), np.zeros(self.num_envs), never, never, {}
        rewards = episodes.advance(np.asarray(actions))
        over = np.full(self.num_envs, episodes.is_over)
        return episodes.seen(), rewards, never.copy(), over, {}
