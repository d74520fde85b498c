"""How demand moves over a day, a week and a holiday."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import require

__all__ = ["DemandProfile"]

_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class DemandProfile:
    """Relative demand of callers; timers do not follow it.

    Attributes:
        diurnal: amplitude of the day's wave over its mean, in [0, 1].
        peak_hour: hour of the most demand.
        weekend: demand of days 5 and 6 of each week over other days.
        first_weekday: weekday of day 0, 0 for Monday.
        holiday_days: first day of a holiday and the first one after it; None for none.
        holiday: demand in the holiday over other days.
        rush: demand on the day before the holiday, and on the first after it.

    Source: defaults follow Joosen et al. 2025 (arXiv 2410.06145), figures 5 and 8.
    """

    diurnal: float = 0.25
    peak_hour: float = 10.0
    weekend: float = 0.8
    first_weekday: int = 0
    holiday_days: tuple[int, int] | None = None
    holiday: float = 0.75
    rush: float = 1.1

    def __post_init__(self) -> None:
        days = self.holiday_days
        require(
            self,
            diurnal=(0 <= self.diurnal <= 1, "in [0, 1]"),
            weekend=(self.weekend > 0, "above 0"),
            holiday=(self.holiday > 0, "above 0"),
            rush=(self.rush > 0, "above 0"),
            holiday_days=(days is None or 0 <= days[0] < days[1], "a rising pair of days"),
        )

    def at(self, time_s: ArrayLike) -> NDArray[np.float64]:
        """Return demand at times, seconds from the start of day 0; about 1 on weekdays."""
        times = np.asarray(time_s, dtype=np.float64)
        day = np.floor(times / _DAY_S).astype(int)
        turn = 2 * np.pi * (times / 3600.0 - self.peak_hour) / 24.0
        found = 1.0 + self.diurnal * np.cos(turn)
        found *= np.where((day + self.first_weekday) % 7 >= 5, self.weekend, 1.0)
        if self.holiday_days:
            begin, end = self.holiday_days
            found *= np.where((day >= begin) & (day < end), self.holiday, 1.0)
            found *= np.where((day == begin - 1) | (day == end), self.rush, 1.0)
        return found

    @property
    def most(self) -> float:
        """A bound on `at`."""
        # Factors may fall on one day, so their largest values multiply.
        edge = max(self.weekend, 1.0) * max(self.holiday, 1.0) * max(self.rush, 1.0)
        return (1.0 + self.diurnal) * edge
