"""A small learned controller of setpoints: proximal policy optimization on batched sites."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from steelyard.errors import require
from steelyard.operate.site_features import NUM_FEATURES, site_features
from steelyard.sim.datacenter import (
    RUN,
    DataCenter,
    SiteAction,
    SitePolicy,
    SiteView,
    SiteYear,
    windows,
)
from steelyard.sim.datacenter.columns import COLUMNS
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.optimizer import make_optimizers

__all__ = ["PPOConfig", "PPOPolicy", "train_ppo", "trained_for"]

_MOVES_C = np.array([-1.0, 0.0, 1.0])
_GRID, _INLET = COLUMNS.index("carbon_g"), COLUMNS.index("inlet_c")
_STEPS_PER_WEEK = 672


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of proximal policy optimization.

    Source: Schulman et al. 2017 (arXiv 1707.06347); network of arXiv 2404.12498's successor.

    Attributes:
        hidden_size: units of each of the two layers.
        steps: steps of a site to learn from, over all scenarios.
        rollout_steps: steps of each scenario between updates.
        epochs: passes over what was seen, per update.
        minibatch: steps per update of the weights.
        learning_rate: learning rate of AdamW, falling to 0.
        discount: weight of the next step's reward.
        trace: lambda of the generalized advantage.
        clip: largest change of a move's probability that counts.
        entropy: weight of the entropy bonus.
        heat_penalty: reward lost per kelvin of an inlet above its limit.
        seed: seed of weights, moves and order.
    """

    hidden_size: int = 64
    steps: int = 200_000
    rollout_steps: int = 32
    epochs: int = 4
    minibatch: int = 512
    learning_rate: float = 1e-3
    discount: float = 0.9
    trace: float = 0.9
    clip: float = 0.2
    entropy: float = 0.001
    heat_penalty: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that cannot learn."""
        require(
            self,
            steps=(self.steps > 0, "positive"),
            rollout_steps=(self.rollout_steps > 0, "positive"),
            discount=(0 <= self.discount < 1, "in [0, 1)"),
            clip=(self.clip > 0, "positive"),
        )


class _ActorCritic(nn.Module):
    """Two towers of two layers: logits of the three moves, and the value."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()

        def tower(outputs: int) -> nn.Sequential:
            inner = (nn.Linear(NUM_FEATURES, hidden_size), nn.Tanh())
            last = (nn.Linear(hidden_size, hidden_size), nn.Tanh())
            return nn.Sequential(*inner, *last, nn.Linear(hidden_size, outputs))

        self.actor, self.critic = tower(len(_MOVES_C)), tower(1)
        # All moves are as likely at first: large logits would stop the search before it began.
        nn.init.normal_(self.actor[-1].weight, std=0.01)  # pyright: ignore[reportArgumentType]

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(features), self.critic(features)[..., 0]


class PPOPolicy:
    """Takes the move that the network holds for the best."""

    def __init__(self, network: nn.Module) -> None:
        """Keep the network.

        Args:
            network: network that `train_ppo` trained.
        """
        self._network = network

    def decide(self, view: SiteView) -> np.ndarray:
        """Return the setpoints, [scenarios]."""
        with torch.no_grad():
            logits, _ = self._network(torch.from_numpy(site_features(view)))
        return view.state.setpoint_c + _MOVES_C[logits.argmax(dim=1).numpy()]


@dataclass(slots=True)
class _Rollout:
    """What was seen, done and earned, each of shape [steps, scenarios, ...]."""

    features: Tensor
    moves: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    last_value: Tensor


def train_ppo(
    draw: Callable[[np.random.Generator], DataCenter], config: PPOConfig | None = None
) -> PPOPolicy:
    """Train a controller of setpoints; a reward is minus the carbon against setpoints held.

    Args:
        draw: makes sites of many scenarios with fresh weeks, once an episode.
        config: settings.

    Returns:
        The controller.

    Raises:
        CapacityError: the chiller of a site is too small.

    Source: Schulman et al. 2017 (arXiv 1707.06347), clipped objective and generalized advantage.
    """
    chosen = config or PPOConfig()
    torch.manual_seed(chosen.seed)
    rng = np.random.default_rng(chosen.seed)
    network = _ActorCritic(chosen.hidden_size)
    rate = EstimatorConfig(
        steps=chosen.steps,
        batch_size=chosen.minibatch,
        learning_rate=chosen.learning_rate,
        weight_decay=0.0,
    )
    (optimizer,) = make_optimizers(network, rate)
    done = 0
    while done < chosen.steps:
        center = draw(rng)
        episode = _Episode(center, rng)
        while episode.step + chosen.rollout_steps <= center.drivers.steps:
            seen = _collect(network, episode, chosen)
            done += seen.rewards.numel()
            for group in optimizer.param_groups:
                group["lr"] = chosen.learning_rate * max(1 - done / chosen.steps, 0.0)
            _update(network, optimizer, seen, chosen)
            if done >= chosen.steps:
                break
    return PPOPolicy(network)


class _Episode:
    """One pass through a site's drivers."""

    def __init__(self, center: DataCenter, rng: np.random.Generator) -> None:
        """Begin at setpoints drawn over the record's range."""
        self.center, self.step = center, 0
        state, spec = center.start(), center.plant.spec
        drawn = rng.uniform(spec.setpoint_low_c, spec.setpoint_high_c, center.drivers.scenarios)
        self.state = state._replace(setpoint_c=drawn)
        self._queue = np.full(drawn.size, RUN)
        # Carbon of the room's middle setpoint: what a move saves is small beside what all emit.
        middle = center.plant.meters(
            (spec.setpoint_low_c + spec.setpoint_high_c) / 2,
            center.drivers.load,
            center.drivers.outdoor_c,
            center.drivers.wet_bulb_c,
            is_metered=center.is_metered,
        )
        self._usual_w = middle.facility_w
        self._heat_limit = spec.inlet_limit_c

    def view(self) -> SiteView:
        """Return what is known before the step; the last one's drivers stand after the end."""
        last = min(self.step, self.center.drivers.steps - 1)
        return SiteView(last, self.center.drivers, self.state, self.center)

    def advance(self, moves: np.ndarray, heat_penalty: float) -> np.ndarray:
        """Move the setpoints, step, and return the rewards in percent of the usual power."""
        action = SiteAction(
            self.state.setpoint_c + _MOVES_C[moves], self._queue, np.zeros(moves.size)
        )
        self.state, rows = self.center.step(self.state, self.step, action)
        usual = self._usual_w[self.step] * self.center.drivers.carbon_g_per_kwh[self.step] / 4e3
        self.step += 1
        heat = np.maximum(rows[:, _INLET] - self._heat_limit, 0.0)
        return 100 * (1 - rows[:, _GRID] / usual) - heat_penalty * heat


def _collect(network: nn.Module, episode: _Episode, config: PPOConfig) -> _Rollout:
    """Play some steps of every scenario."""
    columns: list[list[Tensor]] = [[], [], [], [], []]
    with torch.no_grad():
        for _ in range(config.rollout_steps):
            features = torch.from_numpy(site_features(episode.view()))
            logits, value = network(features)
            chances = Categorical(logits=logits)
            move = chances.sample()
            reward = episode.advance(move.numpy(), config.heat_penalty)
            parts = (features, move, chances.log_prob(move), value, torch.from_numpy(reward))
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
        _, last = network(torch.from_numpy(site_features(episode.view())))
    features, moves, log_probs, values, rewards = map(torch.stack, columns)
    return _Rollout(features, moves, log_probs, values, rewards.float(), last)


def _advantages(seen: _Rollout, config: PPOConfig) -> Tensor:
    """Return generalized advantages, [steps, scenarios]."""
    found, carried, after = torch.empty_like(seen.rewards), 0.0, seen.last_value
    for step in range(len(found) - 1, -1, -1):
        gap = seen.rewards[step] + config.discount * after - seen.values[step]
        carried = gap + config.discount * config.trace * carried
        found[step], after = carried, seen.values[step]
    return found


def _update(
    network: nn.Module, optimizer: torch.optim.Optimizer, seen: _Rollout, config: PPOConfig
) -> None:
    """Improve the network on what was seen, by the clipped objective."""
    gains = _advantages(seen, config)
    goals = (gains + seen.values).flatten()
    gains = ((gains - gains.mean()) / (gains.std() + 1e-8)).flatten()
    features = seen.features.flatten(0, 1)
    moves, before = seen.moves.flatten(), seen.log_probs.flatten()
    for _ in range(config.epochs):
        for batch in torch.randperm(len(goals)).split(config.minibatch):
            logits, value = network(features[batch])
            chances = Categorical(logits=logits)
            ratio = torch.exp(chances.log_prob(moves[batch]) - before[batch])
            held = ratio.clamp(1 - config.clip, 1 + config.clip)
            gain = torch.minimum(ratio * gains[batch], held * gains[batch]).mean()
            miss = (value - goals[batch]).square().mean()
            loss = 0.5 * miss - gain - config.entropy * chances.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()


def trained_for(
    steps: int, seed: int = 0, scenarios: int = 32
) -> Callable[[DataCenter, SiteYear, np.ndarray], SitePolicy]:
    """Return what trains a controller for a site on other weeks of its year than those asked.

    Args:
        steps: steps to learn from.
        seed: seed of all that is drawn.
        scenarios: weeks that are played side by side.

    Returns:
        A function of the site, its year and its load.
    """

    def train(center: DataCenter, year: SiteYear, load: np.ndarray) -> SitePolicy:
        first, length = int(center.drivers.first_step[0]), center.drivers.steps
        # Weeks that begin after the asked ones and end before them: the year closes on itself.
        room = len(year) - length - _STEPS_PER_WEEK
        reach = room if room > 0 else len(year)

        def draw(rng: np.random.Generator) -> DataCenter:
            starts = (first + length + rng.integers(0, reach, scenarios)) % len(year)
            drivers = windows(
                [year] * scenarios, starts.tolist(), [load] * scenarios, _STEPS_PER_WEEK
            )
            return DataCenter(center.plant.spec, drivers, is_metered=center.is_metered)

        return train_ppo(draw, PPOConfig(steps=steps, seed=seed))

    return train
