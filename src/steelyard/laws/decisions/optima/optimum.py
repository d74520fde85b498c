"""The best value of a swept setting, by a local polynomial of the loss, and that of every cell."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.valley import choose_polynomial
from steelyard.laws.fitting.points import refuse_rows
from steelyard.laws.fitting.terms import Array

__all__ = ["Optima", "Optimum", "optima", "optimum"]

Edge = Literal["none", "low", "high"]
_FEWEST = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimum:
    """The best value of one setting.

    Attributes:
        value: setting where the fitted loss is least, natural units; the grid's outermost value
            when it lies at an edge.
        low: lower end of the interval, natural units.
        high: upper end; infinite at an upper edge.
        level: probability inside the interval.
        sd: standard deviation of the value, of its natural log for a "log" transform; infinite at
            an edge.
        least: fitted loss at the value.
        curvature: half the second derivative there: the loss rises by this per squared unit
            (squared factor e for "log").
        skew: cubic coefficient there; 0 when the quadratic predicts left-out points better.
        noise: standard deviation of the losses around the polynomial.
        num_points: distinct settings the polynomial was fitted to.
        num_diverged: runs of the grid that diverged.
        stable_to: largest setting below every diverged one above the least; infinite when none
            there diverged.
        edge: whether the least loss lies at the lower or upper end of what converged.
        further: settings to run next when at an edge, natural units; empty otherwise.
    """

    value: float
    low: float
    high: float
    level: float
    sd: float
    least: float
    curvature: float
    skew: float
    noise: float
    num_points: int
    num_diverged: int
    stable_to: float
    edge: Edge
    further: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Grid:
    """Distinct settings that converged, rising, and where others diverged."""

    position: Array
    loss: Array
    weight: Array
    diverged: Array
    num_diverged: int

    @property
    def best(self) -> int:
        return int(self.loss.argmin())

    @property
    def edge(self) -> Edge:
        return "low" if self.best == 0 else "high" if self.best == len(self.loss) - 1 else "none"


def optimum(
    x: ArrayLike,
    loss: ArrayLike,
    *,
    transform: Literal["log", "identity"] = "log",
    local: int = 5,
    seeds: Literal["mean", "min"] = "mean",
    sd: ArrayLike | None = None,
    divergence_ratio: float = 2.0,
    at_edge: Literal["refuse", "keep"] = "refuse",
    interval: Literal["delta", "bootstrap"] = "delta",
    level: float = 0.8,
    seed: int = 0,
) -> Optimum:
    """Find the best value of a swept setting, such as the learning rate.

    Runs of the same setting are merged, the `local` settings around the least loss get a quadratic
    in ln x, and two more on each side a cubic, which is taken when it predicts the local points
    better with each left out in turn. Points farther away would bend the polynomial, because the
    side of divergence is steeper.

    Args:
        x: settings, [n], positive for "log"; repeated ones are seeds of one setting.
        loss: [n]; NaN and +inf are diverged runs: they are not fitted but kept for `stable_to`.
        transform: coordinate of the setting in which the loss is a polynomial.
        local: settings the quadratic uses, at least 4.
        seeds: how converged runs of one setting are merged.
        sd: known standard deviation of each loss, [n]; None estimates it from seeds, and weights
            equally without them.
        divergence_ratio: a loss above this multiple of the least counts as diverged; `math.inf` for
            none.
        at_edge: refuse an optimum at the end of the grid, or keep it with an endless interval.
        interval: "delta" propagates the residual variance with Student's t; "bootstrap" redraws
            noise and its size 2000 times, which follows skewed intervals of flat optima.
        level: probability inside the interval, 0..1.
        seed: seed of the bootstrap.

    Returns:
        The optimum.

    Raises:
        FitError: fewer than four settings converged, a setting is not positive, the optimum lies at
            an edge of the grid (the hint says what to run), or the local points do not curve
            upwards.

    Source: Bjorck et al. 2024 (arXiv 2409.19913), quadratics of the loss in the log of the learning
        rate.
    """
    if local < _FEWEST or not 0 < level < 1 or not divergence_ratio > 1:
        raise FitError(
            f"local {local} must be at least {_FEWEST}, level {level} in 0..1 and "
            f"divergence_ratio {divergence_ratio} above 1"
        )
    grid = _merge(x, loss, sd, transform, seeds, divergence_ratio)
    if grid.edge != "none":
        return _at_edge(grid, transform, at_edge, level)
    curve = choose_polynomial(grid.position, grid.loss, grid.weight, local)
    if interval == "delta":
        low, high = curve.delta_interval(level)
    else:
        low, high = curve.bootstrap_interval(level, np.random.default_rng(seed))
    return Optimum(
        value=_natural(curve.center + curve.offset, transform),
        low=_natural(low, transform),
        high=_natural(high, transform),
        level=level,
        sd=curve.sd,
        least=curve.least,
        curvature=curve.curvature,
        skew=curve.skew,
        noise=curve.noise,
        num_points=curve.freedom + len(curve.coefficients),
        num_diverged=grid.num_diverged,
        stable_to=_stable_to(grid, transform),
        edge="none",
        further=(),
    )


def _natural(position: float, transform: str) -> float:
    """Turn a coordinate into natural units."""
    if transform == "identity":
        return float(position)
    return math.exp(position) if position < 700 else math.inf


def _merge(
    x: ArrayLike, loss: ArrayLike, sd: ArrayLike | None, transform: str, seeds: str, ratio: float
) -> _Grid:
    """Check the runs and merge those of one setting."""
    setting = np.asarray(x, dtype=np.float64).ravel()
    value = np.asarray(loss, dtype=np.float64).ravel()
    spread = np.broadcast_to(
        (np.nan if sd is None else np.asarray(sd, dtype=np.float64)), setting.shape
    )
    if setting.shape != value.shape or not len(setting):
        raise FitError(
            f"{len(setting)} settings and {len(value)} losses: give one loss per run, and at "
            f"least {_FEWEST} settings"
        )
    refuse_rows(
        ~np.isfinite(setting) | ((setting <= 0) & (transform == "log")),
        f"settings must be {'positive and ' if transform == 'log' else ''}finite",
        setting,
        "drop those rows; only transform='identity' takes settings of 0 or less",
    )
    if sd is not None and not (np.isfinite(spread).all() and (spread > 0).all()):
        raise FitError("sd must be positive and finite for every run")
    # NaN and +inf both are runs that diverged; -inf is a mistake.
    value = np.where(np.isnan(value), np.inf, value)
    refuse_rows(value == -np.inf, "losses must be above -inf", value, "NaN says: it diverged")
    finite = np.isfinite(value)
    # A finite loss far above the least one is on its way to diverging and would bend any
    # polynomial.
    if finite.any() and value[finite].min() > 0:
        finite &= value <= ratio * value[finite].min()
    position = np.log(setting) if transform == "log" else setting
    places = [place for place in np.unique(position) if (finite & (position == place)).any()]
    if len(places) < _FEWEST:
        raise FitError(
            f"only {len(places)} settings converged; an optimum with an interval needs {_FEWEST}",
            hint="run more and smaller settings",
        )
    members = [finite & (position == place) for place in places]
    merged = np.array(
        [value[rows].min() if seeds == "min" else value[rows].mean() for rows in members]
    )
    return _Grid(
        np.array(places),
        merged,
        _weights(value, spread, members),
        np.unique(position[~finite]),
        int((~finite).sum()),
    )


def _weights(value: Array, spread: Array, members: list[NDArray[np.bool_]]) -> Array:
    """Return the weight of each merged loss, 1 / its variance; equal ones without seeds."""
    count = np.array([rows.sum() for rows in members], dtype=np.float64)
    if np.isfinite(spread).all():
        return count / np.array([np.mean(spread[rows] ** 2) for rows in members])
    variance = np.array([value[rows].var(ddof=1) if rows.sum() > 1 else np.nan for rows in members])
    if not np.isfinite(variance).any() or not np.nanmean(variance) > 0:
        return count / count.mean()
    # A variance of two or three seeds is hardly known: it is drawn half way to the pooled one, and
    # settings with a single seed take the pooled one.
    pooled = np.nanmedian(variance) if np.nanmedian(variance) > 0 else np.nanmean(variance)
    return count / (np.where(np.isnan(variance), pooled, variance) + pooled) * 2 * pooled


def _stable_to(grid: _Grid, transform: str) -> float:
    """Return the largest converged setting below the first diverged one above the best."""
    beyond = grid.diverged[grid.diverged > grid.position[grid.best]]
    return (
        math.inf
        if not len(beyond)
        else _natural(float(grid.position[grid.position < beyond.min()].max()), transform)
    )


def _at_edge(grid: _Grid, transform: str, at_edge: str, level: float) -> Optimum:
    """Refuse, or keep what is known: the outermost setting and a side without end."""
    best = grid.position[grid.best]
    is_high = grid.edge == "high"
    beyond = grid.diverged[grid.diverged > best] if is_high else grid.diverged[grid.diverged < best]
    inner = grid.position[grid.best - 1] if is_high else grid.position[1]
    # What to run next lies between the edge and the nearest run that diverged; where none did, one
    # and two steps of the grid further out.
    if len(beyond):
        wall = beyond.min() if is_high else beyond.max()
        further = tuple(best + (wall - best) * part for part in (1 / 3, 2 / 3))
    else:
        further = tuple(best + (best - inner) * step for step in (1, 2))
    to_run = tuple(_natural(float(place), transform) for place in further)
    value = _natural(float(best), transform)
    if at_edge == "refuse":
        raise FitError(
            f"the least loss lies at the {grid.edge} edge of the grid, {value:g}, so it may lie "
            f"beyond",
            hint=f"run {to_run[0]:.4g} and {to_run[1]:.4g} too, or pass at_edge='keep'",
        )
    outermost = -math.inf if transform == "identity" else 0.0
    return Optimum(
        value=value,
        low=_natural(float(inner), transform) if is_high else outermost,
        high=math.inf if is_high else _natural(float(inner), transform),
        level=level,
        sd=math.inf,
        least=float(grid.loss[grid.best]),
        curvature=math.nan,
        skew=0.0,
        noise=math.nan,
        num_points=1,
        num_diverged=grid.num_diverged,
        stable_to=_stable_to(grid, transform),
        edge=grid.edge,
        further=to_run,
    )


@dataclass(frozen=True, slots=True)
class Optima:
    """Optima by cell.

    Attributes:
        x: name of the swept column.
        cells: values of the columns that make the cells, [n] each, sorted.
        found: the optimum of each cell, [n].
        refused: cells without one, each with the reason.
    """

    x: str
    cells: dict[str, Array]
    found: tuple[Optimum, ...]
    refused: tuple[tuple[dict[str, float], str], ...]

    def __len__(self) -> int:
        """Count the cells that have an optimum."""
        return len(self.found)

    @property
    def columns(self) -> dict[str, Array]:
        """Columns of the cells, best values, "least" losses and "sd" of the best values, [n]."""
        own = {self.x: "value", "least": "least", "sd": "sd"}
        return {
            **self.cells,
            **{
                name: np.array([getattr(item, part) for item in self.found])
                for name, part in own.items()
            },
        }

    def weights(self, floor: float = 0.1) -> Array:
        """Return 1 / (sd^2 + floor^2), scaled to mean 1, [n]."""
        # A law of the optimum is itself off by about the floor, in the unit of sd; without it a few
        # cells whose valley happens to be very sharp would decide the fit alone.
        weight = 1 / (self.columns["sd"] ** 2 + floor**2)
        return weight / weight.mean()

    def where(self, rows: ArrayLike) -> "Optima":
        """Keep the cells that a mask [n] or row numbers choose."""
        chosen = np.arange(len(self))[np.asarray(rows)]
        cells = {name: column[chosen] for name, column in self.cells.items()}
        return Optima(self.x, cells, tuple(self.found[row] for row in chosen), self.refused)


def optima(
    table: Mapping[str, ArrayLike],
    x: str,
    target: str,
    by: Sequence[str],
    *,
    same: Sequence[str] = (),
    **options: Any,
) -> Optima:
    """Find the optimum of each cell of a sweep.

    Args:
        table: columns, [n] each.
        x: name of the swept column, such as "learning_rate".
        target: name of the column to be least, such as "loss".
        by: names of the columns whose values make a cell.
        same: names of columns that must have one value in a cell, such as "schedule" or
            "final_fraction"; runs of mixed schedules have no common optimum.
        **options: options of `optimum`; an edge is refused unless `at_edge="keep"`.

    Returns:
        The optima, and the cells that have none with the reason.

    Raises:
        FitError: a column is missing, a cell mixes what must be the same, or no cell has an
            optimum.
    """
    missing = [name for name in (x, target, *by, *same) if name not in table]
    if missing:
        raise FitError(
            f"the table has no column {', '.join(missing)}", hint=f"it has {', '.join(table)}"
        )
    columns = {name: np.asarray(table[name], dtype=np.float64) for name in (x, target, *by)}
    keys = (
        np.stack([columns[name] for name in by], axis=1) if by else np.zeros((len(columns[x]), 1))
    )
    cells, member = np.unique(keys, axis=0, return_inverse=True)
    kept, found, refused = [], [], []
    for index, cell in enumerate(cells):
        rows = member.ravel() == index
        _refuse_mixed(table, same, rows, dict(zip(by, cell.tolist(), strict=True)))
        try:
            found.append(optimum(columns[x][rows], columns[target][rows], **options))
            kept.append(cell)
        except FitError as error:
            refused.append((dict(zip(by, cell.tolist(), strict=True)), str(error)))
    if not found:
        raise FitError(f"none of the {len(cells)} cells has an optimum; the first: {refused[0][1]}")
    values = np.array(kept)
    return Optima(
        x, {name: values[:, index] for index, name in enumerate(by)}, tuple(found), tuple(refused)
    )


def _refuse_mixed(
    table: Mapping[str, ArrayLike],
    same: Sequence[str],
    rows: NDArray[np.bool_],
    cell: dict[str, float],
) -> None:
    """Refuse a cell whose runs differ in more than the swept column."""
    for name in same:
        values = np.unique(np.asarray(table[name])[rows])
        if len(values) > 1:
            where = ", ".join(f"{key} {value:g}" for key, value in cell.items())
            shown = ", ".join(str(value) for value in values[:4])
            raise FitError(
                f"{name} is mixed in the cell {where}: {shown}",
                hint=f"make {name} one of the columns of a cell, or drop runs",
            )
