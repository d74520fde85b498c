"""Which requests gain by prefill and decode apart: a map over prompt length and answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import FEATURES
from steelyard.errors import CapacityError, ConfigError, DataError, require
from steelyard.files import read_json, write_json
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

__all__ = ["HeatMap", "prompt_s", "simulated_map"]


@dataclass(frozen=True)
class HeatMap:
    """Completion time together over that apart, less 1, by load, prompt length and ratio.

    Attributes:
        loads: share of the time [K], rising, in which prompts alone keep the fleet busy that runs
            both phases together; the rates of a cell follow from its prompts.
        prompts: prompt lengths in tokens [P], rising.
        ratios: output tokens over prompt tokens [R], rising.
        values: [K, P, R]; above 0 apart is quicker, NaN where one of them cannot run it.
        source: what was measured or simulated.

    Source: Hu et al. 2025 (arXiv 2501.14417), section 5 (PD-aware scheduling).
    """

    loads: NDArray[np.float64]
    prompts: NDArray[np.float64]
    ratios: NDArray[np.float64]
    values: NDArray[np.float64]
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("loads", "prompts", "ratios", "values"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        axes = (self.loads, self.prompts, self.ratios)
        shape = tuple(len(axis) for axis in axes)
        rises = all(axis.size and (np.diff(axis) > 0).all() and axis[0] > 0 for axis in axes)
        require(
            self,
            values=(
                self.values.shape == shape and rises,
                f"of the shape of its axes {shape}, which rise and lie above 0",
            ),
        )

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean of the values over the loads [P, R]; NaN counts as 0."""
        return self.sums / len(self.loads)

    @property
    def sums(self) -> NDArray[np.float64]:
        """Sum of the values over the loads [P, R]; NaN counts as 0."""
        return np.nansum(self.values, axis=0)

    def sign_stability(self, tolerance: float = 0.0) -> float:
        """Return the share of cells in which every load agrees on what is quicker.

        Args:
            tolerance: values this close to 0 agree with either sign.

        Returns:
            In [0, 1]; cells without any value are left out.
        """
        known = np.isfinite(self.values).any(axis=0)
        low = np.nanmin(np.where(np.isfinite(self.values), self.values, np.inf), axis=0)
        high = np.nanmax(np.where(np.isfinite(self.values), self.values, -np.inf), axis=0)
        agrees = (low >= -tolerance) | (high <= tolerance)
        return float(agrees[known].mean())

    def score(self, input_tokens: float, output_tokens: float) -> float:
        """Return the gain by apart, summed over the loads; above 0 for apart.

        Args:
            input_tokens: prompt length, above 0.
            output_tokens: tokens that are expected, above 0.

        Returns:
            Interpolated in the logarithms of prompt and ratio; the map's edges hold beyond it.
        """
        prompt = _place(self.prompts, input_tokens)
        ratio = _place(self.ratios, output_tokens / input_tokens)
        table, found = self.sums, 0.0
        for row, share in prompt:
            for column, other in ratio:
                found += share * other * float(table[row, column])
        return found

    def save(self, path: Path) -> None:
        """Write the map as JSON."""
        columns: dict[str, Any] = {
            name: getattr(self, name).tolist() for name in ("loads", "prompts", "ratios")
        }
        cells = self.values.astype(object)
        cells[~np.isfinite(self.values)] = None  # JSON has no NaN
        write_json(path, columns | {"values": cells.tolist(), "source": self.source})

    @classmethod
    def load(cls, path: Path) -> "HeatMap":
        """Read a map that `save` wrote.

        Args:
            path: JSON file.

        Returns:
            The map.

        Raises:
            DataError: the file is missing, not JSON, or lacks a field.
            ConfigError: its table has not the shape of its axes.
        """
        value = read_json(path)
        try:
            return cls(
                value["loads"],
                value["prompts"],
                value["ratios"],
                np.array(value["values"], dtype=float),
                str(value["source"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path} holds no heat map: {error!r}",
                hint="make it with steelyard sim serve --heat-map-out",
            ) from error


def _place(axis: NDArray[np.float64], value: float) -> list[tuple[int, float]]:
    """Return the cells beside a value and their shares, in the logarithm; the edges hold."""
    if value <= axis[0] or len(axis) == 1:
        return [(0, 1.0)]
    if value >= axis[-1]:
        return [(len(axis) - 1, 1.0)]
    left = int(np.searchsorted(axis, value, side="right")) - 1
    share = float(np.log(value / axis[left]) / np.log(axis[left + 1] / axis[left]))
    return [(left, 1 - share), (left + 1, share)]


def simulated_map(
    together: ReplicaGroup,
    apart: tuple[ReplicaGroup, ReplicaGroup],
    *,
    loads: Sequence[float] = (0.05, 0.1, 0.2, 0.4),
    prompts: Sequence[int] = (512, 2048, 8192, 32_768),
    ratios: Sequence[float] = (0.01, 0.03, 0.1, 0.3, 1.0),
    requests: int = 200,
    spread: float = 0.2,
    seed: int = 0,
) -> HeatMap:
    """Simulate the map: requests of like lengths, on as many accelerators together and apart.

    Both sides serve the same arrivals and lengths.

    Args:
        together: replicas that run both phases.
        apart: those that run prompts, and those that decode.
        loads: shares of the time in which prompts alone keep the replicas of `together` busy; where
            half as many run them apart, twice that.
        prompts: mean prompt lengths.
        ratios: mean output tokens over mean prompt tokens.
        requests: requests of each run, Poisson.
        spread: lengths are uniform within this share of their mean.
        seed: seed of arrivals and lengths.

    Returns:
        The map; NaN where a request does not fit.

    Raises:
        ConfigError: an axis does not rise, or a setting is out of range.

    Source: Hu et al. 2025 (arXiv 2501.14417), section 5.
    """
    if not (requests >= 1 and 0 <= spread < 1):
        raise ConfigError(f"{requests} requests with a spread of {spread}: at least 1, in [0, 1)")
    values = np.full((len(loads), len(prompts), len(ratios)), np.nan)
    for row, prompt in enumerate(prompts):
        for column, ratio in enumerate(ratios):
            # One draw for all loads of a cell, so that signs differ by the load alone.
            generator = np.random.default_rng((seed, row, column))
            gaps = generator.exponential(1.0, requests).cumsum()
            inputs, outputs = (
                np.maximum(np.rint(mean * generator.uniform(1 - spread, 1 + spread, requests)), 1)
                for mean in (prompt, prompt * ratio)
            )
            each_s = prompt_s(together.step_time, prompt) / together.count
            for layer, load in enumerate(loads):
                times = gaps * each_s / load, inputs.astype(np.int64), outputs.astype(np.int64)
                values[layer, row, column] = _gain(together, apart, times)
    kinds = f"{together.count} together, {apart[0].count} + {apart[1].count} apart"
    source = f"simulated, {kinds}; {together.step_time.source}"
    return HeatMap(np.array(loads), np.array(prompts), np.array(ratios), values, source)


def prompt_s(step_time: PhaseStepTime, length: int) -> float:
    """Return the seconds of a prompt that runs alone, undivided."""
    features = np.zeros(len(FEATURES))
    features[[FEATURES.index("steps"), FEATURES.index("sequences")]] = 1
    features[FEATURES.index("prefill_tokens")] = length
    features[FEATURES.index("prefill_kv")] = length * (length + 1) / 2
    return float(np.asarray(step_time.predict(features[None]))[0])


def _gain(
    together: ReplicaGroup, apart: tuple[ReplicaGroup, ReplicaGroup], times: tuple[NDArray, ...]
) -> float:
    """Return completion time together over apart, less 1; NaN where one cannot hold a request."""
    means = []
    for groups in ((together,), apart):
        try:
            timeline = simulate_fleet(groups, *times).timeline
        except CapacityError:
            return np.nan
        means.append(float((timeline.last_token_s - timeline.arrival_s).mean()))
    return means[0] / means[1] - 1
