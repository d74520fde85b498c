"""The best learning rate across training lengths, on a published sweep of rate and batch.

The sweep of dense models is that of Li et al. 2025 (arXiv 2503.04715). Nested laws are compared by
predicting each training length from the others. The transfer test fits models of at most 429M
parameters and 25e9 tokens, picks the law by its errors among those, and recommends learning rate
and batch for 537M parameters at 28e9 and 50e9 tokens; the penalty is that of the nearest run of the
grid. Coverage is measured on generated sweeps. `_own_horizons` trains a sweep of our own.
"""

import math

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.laws._own_horizons import own_horizons
from benchmarks.laws._shared import shared
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.horizons import fit_learning_rate, leave_one_horizon_out
from steelyard.laws.decisions.optima.learning_rate import fit_penalty
from steelyard.laws.decisions.optima.optimum import Optima, optima, optimum
from steelyard.laws.decisions.optima.training_recipe import best_batch, recipe_for
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.learning_rate import LEARNING_RATE_LAWS, learning_rate

PAPER = ["88-lr-token-horizon"]

_Columns = dict[str, NDArray[np.float64]]
_CELL = ("parameters", "tokens", "batch_tokens")
_SEQUENCE = 2048
_LARGEST = 536_872_960


def run(quick: bool) -> list[Check]:
    """Fit the sweep, transfer, and draw sweeps of known optimum."""
    sweep = _sweep()
    cells = optima(sweep, "learning_rate", "loss", _CELL)
    print(
        f"{len(cells)} cells with an optimum, {len(cells.refused)} refused (least loss at an edge "
        f"of the grid)"
    )
    _print_penalty(sweep, cells)
    return [
        *_slopes(cells),
        *_horizons(cells),
        *_transfer(sweep),
        *_coverage(500 if quick else 4000),
        *own_horizons(quick),
    ]


def _sweep() -> _Columns:
    """Read the dense runs."""
    table = pl.read_csv(shared("lr-batch-sweep") / "dense.csv")
    names = {
        "lr": "learning_rate",
        "smooth_loss": "loss",
        "params": "parameters",
        "tokens": "tokens",
    }
    columns = {ours: table[theirs].to_numpy().astype(np.float64) for theirs, ours in names.items()}
    return {**columns, "batch_tokens": table["batch_seqs"].to_numpy() * float(_SEQUENCE)}


def _slopes(cells: Optima) -> list[Check]:
    """Fit each batch on its own; average the slopes by tokens, weighted by inverse variance."""
    batches = []
    slopes = []
    sds = []
    for batch in np.unique(cells.cells["batch_tokens"]):
        rows = cells.cells["batch_tokens"] == batch
        if rows.sum() >= 8:
            fit = fit_learning_rate(cells.where(rows), learning_rate("size"))
            low, high = fit.interval("slope_tokens", 0.68)
            batches.append(batch / _SEQUENCE)
            slopes.append(fit.params["slope_tokens"])
            sds.append((high - low) / 2)
            print(
                f"  batch {batch / _SEQUENCE:5.0f} sequences: d ln LR* / d ln D = "
                f"{slopes[-1]:+.2f} ± {sds[-1]:.2f}"
            )
    size = np.array(batches)
    slope = np.array(slopes)
    weight = 1 / (np.array(sds) ** 2 + 0.05**2)
    small = float(np.average(slope[size <= 128], weights=weight[size <= 128]))
    least = size[size >= 352][slope[size >= 352].argmin()]
    row = int(np.flatnonzero(size == least)[0])
    return [
        Check("1 mean slope by tokens, batch <= 128: at most", small, -0.10, "lower"),
        Check("1 mean slope by tokens, batch <= 128: at least", small, -0.35, "higher"),
        Check(
            "1 least slope by tokens, batch >= 352", float(slope[size >= 352].min()), 0.0, "higher"
        ),
        Check(
            "1 least slope by tokens, batch >= 352, less 1.64 of its standard deviations",
            slopes[row] - 1.64 * sds[row],
            0.0,
            "higher",
        ),
    ]


def _horizons(cells: Optima) -> list[Check]:
    """Leave each training length out, with the best batch published or fitted without it."""
    errors = {
        item.law.partition(":")[2]: item
        for item in leave_one_horizon_out(
            cells, [learning_rate(kind) for kind in LEARNING_RATE_LAWS]
        )
    }
    for kind in LEARNING_RATE_LAWS:
        print(
            f"  {kind:8s} {errors[kind].num_parameters} parameters: rms of ln LR* "
            f"{errors[kind].rms:.3f}, R2 {errors[kind].r2:.2f}"
        )
    own = _own_best_batch(cells)
    print(f"  smooth, best batch refitted without the held length: rms {own:.3f}")
    return [
        Check(
            "1 leave-one-horizon-out rms of ln LR*, smooth law", errors["smooth"].rms, 0.20, "lower"
        ),
        Check("1 the same with best batch refitted without the length", own, 0.20, "lower"),
        Check(
            "1 law without batch: rms minus .49, size",
            abs(errors["size"].rms - 0.49),
            0.02,
            "lower",
        ),
        Check(
            "1 law with ln batch only: rms minus .33, size",
            abs(errors["batch"].rms - 0.33),
            0.02,
            "lower",
        ),
    ]


def _print_penalty(sweep: _Columns, cells: Optima) -> None:
    """Print what runs beside the optimum lose, at batches within a factor 1.5 of the best one."""
    columns = cells.columns
    ratios = []
    rises = []
    best = 0.58 * columns["tokens"] ** 0.571
    for row in np.flatnonzero(np.abs(np.log(columns["batch_tokens"] / best)) < math.log(1.5)):
        rows = np.all([sweep[name] == columns[name][row] for name in _CELL], axis=0)
        ratios.append(sweep["learning_rate"][rows] / columns["learning_rate"][row])
        rises.append(sweep["loss"][rows] / columns["least"][row] - 1)
    found = fit_penalty(np.concatenate(ratios), np.concatenate(rises))
    half, twice = (100 * float(found.at(ratio)) for ratio in (0.5, 2.0))
    print(
        f"  near the best batch, LR 2x low +{half:.2f} %, 2x high +{twice:.2f} %: stay at the "
        f"{found.quantile:.2f} quantile of LR*"
    )


def _own_best_batch(cells: Optima) -> float:
    """Return the rms of ln LR* when the held length takes no part in anything."""
    squares = []
    for horizon in np.unique(cells.cells["tokens"]):
        held = cells.cells["tokens"] == horizon
        batch = best_batch(cells.where(~held), bootstrap=Bootstrap(count=0)).params
        fit = fit_learning_rate(
            cells.where(~held),
            learning_rate("smooth", batch["c"], batch["q"]),
            bootstrap=Bootstrap(count=0),
        )
        columns = cells.where(held).columns
        squares.append(
            (
                np.log(columns["learning_rate"])
                - fit.law.predict(fit.theta[None], {name: columns[name] for name in _CELL})[0]
            )
            ** 2
        )
    return float(np.sqrt(np.concatenate(squares).mean()))


def _transfer(sweep: _Columns) -> list[Check]:
    """Recommend for the largest model from smaller and shorter ones; look up the nearest run."""
    is_known = (sweep["parameters"] < _LARGEST) & (sweep["tokens"] <= 25e9)
    known = {name: column[is_known] for name, column in sweep.items()}
    checks = []
    for tokens in np.unique(
        sweep["tokens"][(sweep["parameters"] == _LARGEST) & (sweep["tokens"] > 25e9)]
    ):
        recipe = recipe_for(known, _LARGEST, float(tokens))
        size, advice = recipe.batch_tokens.value, recipe.learning_rate
        penalty, run_lr, run_batch = _nearest(sweep, tokens, advice.value, size)
        published, _, _ = _nearest(
            sweep, tokens, 1.79 * _LARGEST**-0.713 * tokens**0.307, 0.58 * tokens**0.571
        )
        print(
            f"  {tokens:.3g} tokens: LR {advice.value:.2e} (optimum "
            f"{advice.low:.2e}..{advice.high:.2e}), batch {size / _SEQUENCE:.0f}; "
            f"nearest run {run_lr:.2e}, {run_batch:.0f}: +{penalty:.3f} %; the published law, "
            f"fitted on all sizes: +{published:.3f} %"
        )
        checks.append(
            Check(f"2 loss above the grid's best at {tokens:.3g} tokens, %", penalty, 0.2, "lower")
        )
    return checks


def _nearest(
    sweep: _Columns, tokens: float, rate: float, batch_tokens: float
) -> tuple[float, float, float]:
    """Find the run nearest in log distance.

    Args:
        sweep: runs.
        tokens: training length of the runs to search.
        rate: wanted learning rate.
        batch_tokens: wanted batch.

    Returns:
        Its loss over the best of its grid in percent, its learning rate, its batch in sequences.
    """
    rows = np.flatnonzero((sweep["parameters"] == _LARGEST) & (sweep["tokens"] == tokens))
    distance = (
        np.log(sweep["learning_rate"][rows] / rate) ** 2
        + np.log(sweep["batch_tokens"][rows] / batch_tokens) ** 2
    )
    row = rows[distance.argmin()]
    excess = sweep["loss"][row] / sweep["loss"][rows].min() - 1
    return (
        100 * float(excess),
        float(sweep["learning_rate"][row]),
        float(sweep["batch_tokens"][row]) / _SEQUENCE,
    )


def _coverage(count: int) -> list[Check]:
    """Draw noisy quadratic sweeps; count the 90 % intervals that hold the optimum."""
    checks = []
    for interval in ("delta", "bootstrap"):
        inside = [
            _covers(interval, spacing, share, seed)
            for first, spacing in enumerate((0.35, 0.69))
            for share in (0.05, 0.15)
            # Sweeps of one seed differ by a scale only, so each spacing has seeds of its own.
            for seed in range(first, count // 2, 2)
        ]
        share, edges = np.mean(inside, axis=0)
        print(
            f"  {interval}: {share:.3f} of {len(inside)} intervals of 90 % hold the optimum; "
            f"{edges:.3f} of the draws have their least loss at an edge"
        )
        checks.append(
            Check(
                f"5 coverage of 90 % intervals, {interval}: at least",
                float(share),
                0.85,
                "higher",
            )
        )
        checks.append(
            Check(
                f"5 coverage of 90 % intervals, {interval}: at most",
                float(share),
                0.95,
                "lower",
            )
        )
    return checks


def _covers(interval: str, spacing: float, noise_share: float, seed: int) -> tuple[bool, bool]:
    """Draw one sweep of nine learning rates whose optimum lies anywhere among them.

    Args:
        interval: "delta" or "bootstrap".
        spacing: distance of the rates, factors of e.
        noise_share: noise of a loss over its rise two spacings from the optimum.
        seed: seed of the draw.

    Returns:
        Whether the interval holds the optimum, and whether the least loss lies at an edge, where
        the interval has one end only. Both count, and so does a refused sweep, as a miss.
    """
    generator = np.random.default_rng(seed)
    log_rate = math.log(1e-3) + spacing * (np.arange(9) - 4)
    best = math.log(1e-3) + spacing * generator.uniform(-4, 4)
    noise = noise_share * 0.02 * (2 * spacing) ** 2
    loss = 2.5 + 0.02 * (log_rate - best) ** 2 + noise * generator.standard_normal(9)
    try:
        found = optimum(
            np.exp(log_rate),
            loss,
            interval=interval,  # pyright: ignore[reportArgumentType]
            level=0.9,
            at_edge="keep",
            seed=seed,
        )
    except FitError:
        return False, False
    return found.low <= math.exp(best) <= found.high, found.edge != "none"
