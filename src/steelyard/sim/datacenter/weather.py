"""Weather, grid carbon and load of a site over a year, joined in local time."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.errors import ConfigError, TraceError

__all__ = ["STEP_S", "SiteYear", "generated_year", "join_year", "read_column"]

STEP_S = 900.0
"""Length of a step: a quarter of an hour."""
_STEPS_PER_HOUR = 4
_MOST_MISSING = 0.05
_YEAR_HOURS = (8760, 8784)


@dataclass(frozen=True, slots=True)
class SiteYear:
    """A year at one place, in steps of 15 minutes of local standard time.

    Attributes:
        name: name of the place.
        outdoor_c: dry bulb temperature, [steps].
        wet_bulb_c: wet bulb temperature, [steps].
        carbon_g_per_kwh: average carbon intensity of the grid, [steps].
        source: where the series come from.
    """

    name: str
    outdoor_c: np.ndarray
    wet_bulb_c: np.ndarray
    carbon_g_per_kwh: np.ndarray
    source: str

    def __len__(self) -> int:
        """Steps of the year."""
        return len(self.outdoor_c)


def read_column(path: Path, column: str, *, most_missing: float = 0.0) -> np.ndarray:
    """Read a column of finite numbers from a CSV file, compressed or not.

    Args:
        path: the file; ends in .csv or .csv.gz.
        column: name of the column.
        most_missing: share of the rows that may be empty; they are interpolated.

    Returns:
        Values, float64.

    Raises:
        TraceError: the file or column is missing, or a row holds no finite number; file, row and
            column are named.
    """
    import polars as pl

    try:
        frame = pl.read_csv(path, columns=[column], schema_overrides={column: pl.String})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TraceError(
            f"cannot read column {column!r} of {path}: {str(error).splitlines()[0]}",
            hint="give a CSV file with a line of column names",
        ) from error
    values = frame[column].cast(pl.Float64, strict=False).to_numpy().copy()
    is_empty = frame[column].is_null().to_numpy()
    if 0 < is_empty.mean() <= most_missing:
        rows = np.arange(len(values))
        values[is_empty] = np.interp(rows[is_empty], rows[~is_empty], values[~is_empty])
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        row = int(wrong[0])
        raise TraceError(
            f"{path} row {row + 1}: {column} is {frame[column][row]!r}, not a finite number",
            hint="fill the gap before the series is used",
        )
    return values


def join_year(weather: Path, carbon: Path, *, utc_offset_h: float, name: str = "") -> SiteYear:
    """Join a year of hourly weather in local time with carbon in UTC.

    Temperatures are interpolated between hours; carbon, an average over the hour, is held. Local
    hours beyond the carbon's year take those of its other end. Up to 5 % of the carbon's rows may
    be empty, as records of grids have gaps: they are interpolated.

    Args:
        weather: CSV with dry_bulb_c and wet_bulb_c, 8760 or 8784 rows of local standard time.
        carbon: CSV with carbon_g_per_kwh, as many rows of UTC.
        utc_offset_h: local time minus UTC in whole hours, such as -8 for California.
        name: name of the place; the file's by default.

    Returns:
        The year.

    Raises:
        TraceError: a file has another number of rows, a value is not finite or impossible.
        ConfigError: the offset is not of whole hours in [-12, 14].
    """
    if not (float(utc_offset_h).is_integer() and -12 <= utc_offset_h <= 14):
        raise ConfigError(
            f"utc_offset_h is {utc_offset_h}, but must be whole hours in [-12, 14]",
            hint="give local standard time minus UTC",
        )
    dry, wet = read_column(weather, "dry_bulb_c"), read_column(weather, "wet_bulb_c")
    grams = read_column(carbon, "carbon_g_per_kwh", most_missing=_MOST_MISSING)
    for path, values in ((weather, dry), (carbon, grams)):
        if len(values) not in _YEAR_HOURS:
            raise TraceError(
                f"{path} has {len(values)} rows, but a year of hours has 8760 or 8784",
                hint="give one row per hour of a whole year",
            )
    if len(dry) != len(grams):
        raise TraceError(
            f"{weather} has {len(dry)} rows and {carbon} {len(grams)}: one is a leap year",
            hint="leave February 29 out of the longer one",
        )
    _check_range(weather, "dry_bulb_c", dry, -60, 60)
    _check_range(weather, "wet_bulb_c", wet, -60, 45)
    _check_range(carbon, "carbon_g_per_kwh", grams, 0, 3000)
    # Local midnight of a place behind UTC lies some hours into the UTC day.
    local = np.roll(grams, int(utc_offset_h))
    return SiteYear(
        name=name or weather.name.partition(".")[0],
        outdoor_c=_interpolated(dry),
        wet_bulb_c=_interpolated(wet),
        carbon_g_per_kwh=np.repeat(local, _STEPS_PER_HOUR),
        source=f"{weather}, {carbon} at UTC{utc_offset_h:+g} h",
    )


def _check_range(path: Path, column: str, values: np.ndarray, low: float, high: float) -> None:
    """Refuse values that no place on earth has."""
    wrong = np.flatnonzero((values < low) | (values > high))
    if wrong.size:
        row = int(wrong[0])
        raise TraceError(
            f"{path} row {row + 1}: {column} is {values[row]:g}, not in [{low}, {high}]",
            hint="check the unit: temperatures are in C, carbon in g/kWh",
        )


def _interpolated(hourly: np.ndarray) -> np.ndarray:
    """Return quarter hours between hourly values; the year closes on itself."""
    hours = np.arange(len(hourly) * _STEPS_PER_HOUR) / _STEPS_PER_HOUR
    return np.interp(hours, np.arange(len(hourly) + 1), np.append(hourly, hourly[0]))


def generated_year(
    seed: int = 0, *, mean_c: float = 15.0, mean_g_per_kwh: float = 300.0
) -> SiteYear:
    """Make a year of weather and carbon up: seasons, days, weather of some days, and solar power.

    Args:
        seed: seed of the weather.
        mean_c: mean temperature.
        mean_g_per_kwh: mean carbon intensity.

    Returns:
        A year of 8760 hours that no place had.
    """
    rng = np.random.default_rng(seed)
    steps = np.arange(8760 * _STEPS_PER_HOUR)
    day, hour = steps / 96, steps % 96 / 4
    season = -np.cos(2 * np.pi * (day - 15) / 365)
    front = _slow_noise(rng, steps.size, days=3.0)
    dry = mean_c + 9 * season - 5 * np.cos(2 * np.pi * (hour - 3) / 24) + 3 * front
    moist = 2.0 + 2.5 * np.clip(0.4 + 0.5 * _slow_noise(rng, steps.size, days=2.0), 0, 2)
    sun = np.clip(np.sin(np.pi * (hour - 6) / 12), 0, None) * (0.75 + 0.25 * season)
    clouds = np.clip(1 - 0.3 * np.abs(front), 0.2, 1)
    grams = 1.18 - 0.6 * sun * clouds + 0.08 * _slow_noise(rng, steps.size, days=1.0)
    held = np.repeat(grams.reshape(-1, _STEPS_PER_HOUR).mean(axis=1), _STEPS_PER_HOUR)
    return SiteYear(
        name="generated",
        outdoor_c=dry,
        wet_bulb_c=dry - moist,
        carbon_g_per_kwh=np.clip(mean_g_per_kwh * held / held.mean(), 1.0, None),
        source=f"generated, seed {seed}",
    )


def _slow_noise(rng: np.random.Generator, size: int, days: float) -> np.ndarray:
    """Return a first-order process of unit variance that forgets within some days."""
    from scipy.signal import lfilter

    keep = np.exp(-1 / (96 * days))
    start = rng.standard_normal()
    drawn = rng.standard_normal(size) * np.sqrt(1 - keep**2)
    return lfilter([1.0], [1.0, -keep], drawn, zi=np.array([keep * start]))[0]
