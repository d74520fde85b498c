"""Power of one accelerator by how busy it is, by its clock and by the prompt it works on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError, require

__all__ = ["PowerCurve"]

Array = NDArray[np.float64]
_HALVINGS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerCurve:
    """Power of one accelerator as shares of its rating.

    The mean is linear in the rates that are reached. The peak is what a prompt reaches for moments
    and what a power supply has to bear: it rises with the prompt tokens in flight and saturates
    above the rating, so a mean never stands for it. Whatever lies above idle falls with the clock.

    Source: arXiv 2308.12908 (phases of prompts and tokens, locked clocks); arXiv 2403.20306.

    Attributes:
        rated_w: thermal design power.
        idle: share without work.
        static: share while kernels are resident, at no rate at all.
        compute: share added at the peak rate of matrix products.
        memory: share added at the peak bandwidth of the memory.
        top: peak share that long prompts reach; above 1.
        ramp_tokens: prompt tokens per accelerator at which a peak has come 63 % of its way.
        ramp_power: steepness of that rise.
        cubic: share of the power above idle that falls with the third power of the clock, where the
            voltage falls too; the rest falls with the clock itself.
        relative_spread: root mean square of the fit's relative errors of the mean.
        source: measurements it was fitted on.
    """

    rated_w: float
    idle: float
    static: float
    compute: float
    memory: float
    top: float
    ramp_tokens: float
    ramp_power: float
    cubic: float = 0.7
    relative_spread: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse curves that no chip has."""
        require(
            self,
            rated_w=(self.rated_w > 0, "above 0"),
            idle=(0 <= self.idle < 1, "in [0, 1)"),
            cubic=(0 <= self.cubic <= 1, "in [0, 1]"),
            ramp_tokens=(self.ramp_tokens > 0, "above 0"),
        )

    @property
    def idle_w(self) -> float:
        """Power without work."""
        return self.idle * self.rated_w

    def mean_w(
        self, compute_use: ArrayLike, memory_use: ArrayLike, clock: ArrayLike = 1.0
    ) -> Array:
        """Return the mean power at reached rates.

        Args:
            compute_use: rate of products over the peak, at the full clock, [...].
            memory_use: bandwidth over the peak, at the full clock, [...].
            clock: clock over the highest, in (0, 1], [...].

        Returns:
            Watts, at most those of a peak, [...].
        """
        share = (
            self.static
            + self.compute * np.asarray(compute_use, float)
            + self.memory * np.asarray(memory_use, float)
        )
        return self.clocked_w(np.minimum(share, self.top) * self.rated_w, clock)

    def peak_w(self, tokens: ArrayLike, floor_w: ArrayLike, clock: ArrayLike = 1.0) -> Array:
        """Return the highest power while prompts are processed.

        Args:
            tokens: prompt tokens in flight per accelerator, [...].
            floor_w: power of the phase in which tokens are generated, at the full clock, [...].
            clock: clock over the highest, [...].

        Returns:
            Watts, [...].
        """
        floor = np.asarray(floor_w, float) / self.rated_w
        rise = -np.expm1(-((np.asarray(tokens, float) / self.ramp_tokens) ** self.ramp_power))
        share = floor + np.maximum(self.top - floor, 0.0) * rise
        return self.clocked_w(share * self.rated_w, clock)

    def clocked_w(self, full_w: ArrayLike, clock: ArrayLike) -> Array:
        """Return what a power at the full clock is at another one, both in watts, [...]."""
        # Idle power does not fall with the clock: a mean below it is a measurement's artefact.
        above = np.maximum(np.asarray(full_w, float) - self.idle_w, 0.0)
        return self.idle_w + above * self.dynamic(clock)

    def dynamic(self, clock: ArrayLike) -> Array:
        """Return the share of the power above idle that is left at a clock, [...]."""
        at = np.asarray(clock, float)
        return (1 - self.cubic) * at + self.cubic * at**3

    def clock_under(self, cap_w: float, full_w: float) -> float:
        """Return the highest clock at which a load stays under a power cap.

        A cap holds for what lasts. Prompts shorter than its reaction, some tenths of a second, pass
        above it (arXiv 2308.12908): only a locked clock lowers their peaks.

        Args:
            cap_w: limit of the power.
            full_w: power of the load at the full clock.

        Returns:
            Clock over the highest, in (0, 1].

        Raises:
            ConfigError: the cap is not above the power without work.
        """
        if cap_w <= self.idle_w:
            raise ConfigError(
                f"a power cap of {cap_w:g} W, but it must be above the {self.idle_w:g} W without "
                "work",
                hint="raise the cap",
            )
        if full_w <= cap_w:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = float(self.clocked_w(full_w, middle)) <= cap_w
            low, high = (middle, high) if fits else (low, middle)
        return low
