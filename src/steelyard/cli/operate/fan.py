"""A fan chart in characters, for terminals."""

import numpy as np

from steelyard.operate.forecast import SampleForecast

__all__ = ["fan_lines"]

_ROWS = 12
_COLUMNS = 72


def fan_lines(seen: np.ndarray, forecast: SampleForecast) -> list[str]:
    """Draw the end of a series and its forecast.

    Args:
        seen: values of the past [T]; NaN where nothing was observed.
        forecast: forecast of the steps behind them.

    Returns:
        Lines of text: dots are observed, shades the 80 % interval, dashes the median.
    """
    low, median, high = forecast.quantile([0.1, 0.5, 0.9])
    ahead = min(forecast.horizon, _COLUMNS // 2)
    past = seen[-3 * forecast.horizon :]
    columns = [
        _column(part, "•") for part in np.array_split(past, min(_COLUMNS - ahead, len(past)))
    ]
    parts = [np.array_split(item, ahead) for item in (low, median, high)]
    ends = [
        (float(a.min()), float(b.mean()), float(c.max())) for a, b, c in zip(*parts, strict=True)
    ]
    known = [item for column, _ in columns for item in column if np.isfinite(item)]
    bottom = min([*known, *(item[0] for item in ends)])
    top = max([*known, *(item[2] for item in ends)])
    grid = [[" "] * (len(columns) + ahead) for _ in range(_ROWS)]

    def row(value: float) -> int:
        share = (value - bottom) / (top - bottom) if top > bottom else 0.5
        return _ROWS - 1 - round(share * (_ROWS - 1))

    for place, (column, mark) in enumerate(columns):
        for value in column:
            if np.isfinite(value):
                grid[row(value)][place] = mark
    for place, (under, middle, over) in enumerate(ends, len(columns)):
        for line in range(row(over), row(under) + 1):
            grid[line][place] = "░"
        grid[row(middle)][place] = "━"
    labels = {0: f"{top:.4g}", _ROWS - 1: f"{bottom:.4g}"}
    return [f"{labels.get(line, ''):>10} {''.join(cells)}" for line, cells in enumerate(grid)]


def _column(values: np.ndarray, mark: str) -> tuple[list[float], str]:
    """Return what is drawn of the values that share a column: lowest, mean and highest."""
    known = values[np.isfinite(values)]
    if not len(known):
        return [float("nan")], mark
    return [float(known.min()), float(known.mean()), float(known.max())], mark
