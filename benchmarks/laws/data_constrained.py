"""Repeated tokens: published runs refitted, ladders forecast, sizes chosen under unique data.

The 182 runs are those of Muennighoff et al. 2023 (arXiv 2305.16264). Generators with known truth
follow the design of the published runs, one of them of another form than the law fitted, and
published runs that share budget and unique tokens judge the choice of a size. `_own_repeats` trains
a grid of our own.

The band of a ladder's forecast is the bootstrap's alone, which holds six of ten runs: single runs
differ by .002 to .02 nats from seed to seed, and that is not in it. The bar is missed. So is that
of the generator: with even noise twenty times delta the fit is one of medians, whose bootstrap is a
tenth too narrow for R_N, and profiles, which take their scale from it, hold 81 to 85 %.
"""

import csv
import os
import time
from unittest import mock

import numpy as np
import scipy.optimize
from benchmarks.common import Check
from benchmarks.laws._own_repeats import own_repeats
from benchmarks.laws._shared import shared
from numpy.typing import NDArray

from steelyard import laws
from steelyard.laws.fitting.minimizer import huber
from steelyard.laws.fitting.terms import Array

PAPER = ["85-data-constrained"]

Runs = dict[str, Array]
Rows = NDArray[np.bool_] | NDArray[np.int64]
_BASE = laws.published["muennighoff2023_c4"]
_PAIR = {"R_D": 15.387756, "R_N": 5.309743}
_LADDERS = ((2.81e9, 5.5e10), (4.2465e9, 8.4e10), (8.67e9, 1.78e11))
_LADDER_EPOCHS = 7.2
_SAME_BUDGET = 0.1
_GENERATED_BUDGETS = ((1e19, 1e8), (4e19, 4e8), (3e20, 1.5e9), (1e21, 4e9), (1e22, 1.2e10))
"""FLOP and unique tokens, near the published runs."""


def run(quick: bool) -> list[Check]:
    """Check against the published table; `quick` repeats the generators less often."""
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):
        table = _table()
        paper = _take(table, table["in_paper_fit"] == 1)
        return [
            *_published_numbers(paper),
            *_own_fit(paper),
            *_ladders(table, paper),
            *_recovery(paper, 25 if quick else 100),
            *_chosen_sizes(paper),
            *_published_budgets(paper),
            *own_repeats(quick),
        ]


def _table() -> Runs:
    """Read the runs of the main recipe, one seed each."""
    with (shared("datablations-losses") / "runs.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["variant"] == "" and row["seed"] == "0"]
    names = {"params": "parameters", "val_loss": "loss"} | {
        name: name for name in ("tokens", "unique_tokens", "in_paper_fit")
    }
    return {new: np.array([float(row[old]) for row in rows]) for old, new in names.items()}


def _take(runs: Runs, rows: Rows) -> Runs:
    return {name: column[rows] for name, column in runs.items()}


def _pair() -> laws.Fit:
    law = laws.data.data_constrained(base=_BASE.params)
    return laws.Fit(
        law=law, theta=law.coordinates(_PAIR), samples=np.zeros((0, 2)), provenance="published"
    )


def _r_squared(fit: laws.Fit, runs: Runs) -> float:
    said = fit.predict(runs, extrapolate=True).value
    return float(
        1 - np.sum((runs["loss"] - said) ** 2) / np.sum((runs["loss"] - runs["loss"].mean()) ** 2)
    )


def _published_numbers(paper: Runs) -> list[Check]:
    """Reproduce R2 of the published pair and of the law without decay."""
    both = _r_squared(_pair(), paper)
    none = _r_squared(_BASE.fit(), paper)
    print(
        f"{len(paper['loss'])} runs; R2 of the published pair {both:.5f}, without decay {none:.5f}"
    )
    return [
        Check("1 runs of the published fit missing", 182 - len(paper["loss"]), 0, "lower"),
        Check("1 R2 of the published pair, error against .7722", abs(both - 0.7722), 1e-3, "lower"),
        Check("1 R2 without decay, error against .4452", abs(none - 0.4452), 1e-3, "lower"),
    ]


def _own_fit(paper: Runs) -> list[Check]:
    """Fit the two constants, time it, profile them, and compare with 16 starts of scipy."""
    law = laws.data.data_constrained(base=_BASE.params)
    fit = laws.fit(law, paper, paper["loss"])
    times = []
    for _ in range(5):
        start = time.process_time()
        laws.fit(law, paper, paper["loss"])
        times.append(time.process_time() - start)
    seconds = min(times)
    found = laws.data.repetition_constants(fit)
    print(
        f"own fit {fit.params}, objective {fit.objective:.7f}, R2 {_r_squared(fit, paper):.4f}, "
        f"{seconds:.2f} s CPU with 300 bootstraps"
    )
    print(found)
    for form in (
        laws.data.data_constrained("geometric", base=_BASE.params),
        laws.data.data_constrained(),
        laws.data.overfitting_penalty(),
    ):
        other = laws.fit(form, paper, paper["loss"], bootstrap=laws.Bootstrap(count=0))
        said = (
            f"objective {other.objective:.5f}, R2 {_r_squared(other, paper):.4f}, at bounds "
            f"{other.at_bounds}"
        )
        print(f"{form.name}, {len(form.names)} free: {said}")
    ends = [profile.high / profile.low for profile in (found.repeats, found.excess)]
    return [
        Check("1 objective of the own fit", fit.objective, 0.0158259, "lower"),
        Check(
            "1 objective above the best of 16 L-BFGS starts, relative",
            fit.objective / _scipy(law, paper) - 1,
            1e-6,
            "lower",
        ),
        Check("1 ratio of the 90 % interval's ends, R_D", min(ends[0], 1e9), 5.0, "higher"),
        Check("1 ratio of the 90 % interval's ends, R_N", min(ends[1], 1e9), 5.0, "higher"),
        Check(
            "1 constants flagged as flat, of 2",
            float(found.repeats.is_flat) + found.excess.is_flat,
            2.0,
            "higher",
        ),
        Check("CPU seconds of the fit with 300 bootstraps, least of 5", seconds, 1.0, "lower"),
    ]


def _scipy(law: laws.Law, paper: Runs) -> float:
    """Return the best objective of L-BFGS with numeric gradients from 16 starts."""
    goal = np.log(paper["loss"])

    def objective(theta: Array) -> float:
        return float(huber(law.predict(theta[None], paper)[0] - goal, 1e-3).sum()) * 1e3

    starts = [np.log([r_d, r_n]) for r_d in (2, 8, 30, 120) for r_n in (0.5, 2, 8, 30)]
    return (
        min(scipy.optimize.minimize(objective, start, method="L-BFGS-B").fun for start in starts)
        / 1e3
    )


def _ladders(table: Runs, paper: Runs) -> list[Check]:
    """Forecast 2 to 7 epochs of each ladder by fits that saw its single-epoch run only."""
    on_ladder = np.array(
        [(n, d) in _LADDERS for n, d in zip(paper["parameters"], paper["tokens"], strict=True)]
    )
    others = _take(paper, ~(on_ladder & (paper["tokens"] > paper["unique_tokens"])))
    forms = {
        "base fixed": laws.data.data_constrained(base=_BASE.params),
        "base free": laws.data.data_constrained(),
        "penalty": laws.data.overfitting_penalty(),
    }
    errors: dict[str, float] = {}
    inside = flat = 0.0
    for name, law in forms.items():
        fit = laws.fit(law, others, others["loss"])
        errors[name], flat, covered = _ladder_error(fit, table)
        inside = covered if name == "base fixed" else inside
        every = _ladder_error(
            laws.fit(law, paper, paper["loss"], bootstrap=laws.Bootstrap(count=0)), table
        )[0]
        print(
            f"ladders, {name}: mean error {errors[name]:.4f} nats without their runs, {every:.4f} "
            f"with all; no change {flat:.4f}"
        )
    return [
        Check(
            "2 ladder forecasts, mean error in nats, base fixed",
            errors["base fixed"],
            0.02,
            "lower",
        ),
        Check(
            "2 ladder forecasts, mean error in nats, base free", errors["base free"], 0.02, "lower"
        ),
        Check(
            "2 error of forecasting no change over ours", flat / errors["base fixed"], 1.0, "higher"
        ),
        Check("2 ladder runs inside the bootstrap's 90 %, fraction", inside, 0.8, "higher"),
    ]


def _ladder_error(fit: laws.Fit, table: Runs) -> tuple[float, float, float]:
    """Return mean errors of the fit and of no change, and the share of runs in 90 % intervals.

    The band is the bootstrap's and nothing else: it holds what the parameters leave open, and not
    the noise of single runs.
    """
    thetas = np.concatenate([fit.theta[None], fit.samples])
    ours = []
    flat = []
    inside = []
    for size, tokens in _LADDERS:
        rungs = _take(table, (table["parameters"] == size) & (table["tokens"] == tokens))
        rungs = _take(rungs, np.argsort(-rungs["unique_tokens"]))
        rungs = _take(rungs, rungs["tokens"] / rungs["unique_tokens"] < _LADDER_EPOCHS)
        loss = rungs["loss"]
        said = np.exp(fit.law.predict(thetas, rungs))
        forecast = (loss[0] + said - said[:, :1])[:, 1:]
        ours.extend(np.abs(forecast[0] - loss[1:]))
        flat.extend(np.abs(loss[0] - loss[1:]))
        if len(thetas) > 1:
            low, high = np.quantile(forecast[1:], (0.05, 0.95), axis=0)
            inside.extend((low <= loss[1:]) & (loss[1:] <= high))
    return float(np.mean(ours)), float(np.mean(flat)), float(np.mean(inside)) if inside else 0.0


def _recovery(paper: Runs, rounds: int) -> list[Check]:
    """Draw losses of a known law on the published design; profile intervals should hold it."""
    truth = _pair()
    law = laws.data.data_constrained(base=_BASE.params)
    clean = truth.predict(paper, extrapolate=True).value
    generator = np.random.default_rng(0)
    held = flat = 0
    for _ in range(rounds):
        loss = clean * np.exp(0.02 * generator.standard_normal(len(clean)))
        found = laws.data.repetition_constants(
            laws.fit(law, paper, loss, bootstrap=laws.Bootstrap(count=0))
        )
        held += sum(
            profile.low <= _PAIR[profile.name] <= profile.high
            for profile in (found.repeats, found.excess)
        )
        flat += found.repeats.is_flat
    print(
        f"{rounds} generated tables: {held / rounds / 2:.2f} of the 90 % intervals hold the truth"
    )
    return [
        Check("3 generator, coverage of 90 % intervals", held / rounds / 2, 0.85, "higher"),
        Check(
            "3 generator, determined R_D wrongly called flat, fraction", flat / rounds, 0.1, "lower"
        ),
    ]


def _chosen_form(runs: Runs) -> laws.Fit:
    """Fit both forms with a free base and take the one that lies closer to the runs."""
    fits = [
        laws.fit(law, runs, runs["loss"], bootstrap=laws.Bootstrap(count=0))
        for law in (laws.data.data_constrained(), laws.data.overfitting_penalty())
    ]
    return min(fits, key=lambda fit: fit.objective)


def _chosen_sizes(paper: Runs) -> list[Check]:
    """Choose form and size by tables of known truth: once the law itself, once the penalty form."""
    penalty = laws.fit(
        laws.data.overfitting_penalty(), paper, paper["loss"], bootstrap=laws.Bootstrap(count=0)
    )
    checks = []
    for name, truth in (("of the law", _pair()), ("of the penalty form", penalty)):
        noise = 0.02 * np.random.default_rng(1).standard_normal(len(paper["loss"]))
        fit = _chosen_form(
            paper | {"loss": truth.predict(paper, extrapolate=True).value * np.exp(noise)}
        )
        print(f"generator {name}, chosen form {fit.law.name}")
        wins = sum(_wins(fit, truth, flops, unique) for flops, unique in _GENERATED_BUDGETS)
        checks.append(Check(f"4 generator {name}: budgets won, of 5", wins, 4.0, "higher"))
    return checks


def _wins(fit: laws.Fit, truth: laws.Fit, flops: float, unique: float) -> bool:
    """Say whether the chosen size truly loses less than Chinchilla's and the single-epoch one."""
    chosen = laws.data.allocate_repeated(fit, flops, unique, extrapolate=True)
    sizes = np.array(
        [chosen.best.parameters.value, chosen.chinchilla_parameters, flops / 6 / unique]
    )
    runs = {"parameters": sizes, "tokens": flops / 6 / sizes, "unique_tokens": np.full(3, unique)}
    loss = truth.predict(runs, extrapolate=True).value
    said = f"{sizes[0]:.2e} parameters, {chosen.best.tokens.value / unique:.1f} epochs"
    print(
        f"  {flops:.0e} FLOP, {unique:.1e} unique: {said} {loss[0]:.4f}, Chinchilla's size "
        f"{loss[1]:.4f}, one epoch {loss[2]:.4f}"
    )
    return bool(loss[0] <= loss[1:].min())


def _published_budgets(paper: Runs) -> list[Check]:
    """Choose form and size for published runs of one budget and data set by all other runs.

    A choice wins when its measured loss is no higher than that of the runs nearest to Chinchilla's
    size and to one epoch.
    """
    wins = []
    regrets = []
    usual = []
    for rows in _budgets(paper):
        seen = _take(paper, np.setdiff1d(np.arange(len(paper["loss"])), rows))
        cell = _take(paper, rows)
        fit = _chosen_form(seen)
        loss = _picked(fit, cell)
        unique = cell["unique_tokens"][0]
        said = (
            f"chosen by {fit.law.name} {loss[0]:.3f}, Chinchilla's size {loss[1]:.3f}, one "
            f"epoch {loss[2]:.3f}"
        )
        print(
            f"  published, {unique:.1e} unique, {len(rows)} sizes: {said}, best "
            f"{cell['loss'].min():.3f}"
        )
        wins.append(loss[0] <= loss[1:].min())
        regrets.append(loss[0] - cell["loss"].min())
        usual.append(loss[1] - cell["loss"].min())
    print(
        f"{len(wins)} published budgets: mean regret {np.mean(regrets):.3f} nats, Chinchilla's "
        f"size {np.mean(usual):.3f}"
    )
    return [
        Check("4 published budgets won, fraction", float(np.mean(wins)), 0.8, "higher"),
        Check(
            "4 published budgets, regret over that of Chinchilla's size",
            float(np.mean(regrets) / np.mean(usual)),
            1.0,
            "lower",
        ),
    ]


def _picked(fit: laws.Fit, cell: Runs) -> Array:
    """Return losses of the chosen run and of those nearest Chinchilla's size and one epoch, [3]."""
    flops = 6 * float(np.median(cell["parameters"] * cell["tokens"]))
    unique = float(cell["unique_tokens"][0])
    chinchilla = laws.data.allocate_repeated(
        fit, flops, unique, extrapolate=True
    ).chinchilla_parameters
    picks = [int(fit.predict(cell, extrapolate=True).value.argmin())]
    picks += [
        int(np.abs(np.log(cell["parameters"] / size)).argmin())
        for size in (chinchilla, flops / 6 / unique)
    ]
    return cell["loss"][picks]


def _budgets(table: Runs) -> list[NDArray[np.int64]]:
    """List rows of at least four sizes with one budget (within 10 %) and the same unique tokens."""
    flops = 6 * table["parameters"] * table["tokens"]
    cells = []
    used = np.zeros(len(table["loss"]), dtype=bool)
    for row in np.argsort(flops):
        near = (np.abs(np.log(flops / flops[row] / (1 + _SAME_BUDGET / 2))) < _SAME_BUDGET) & ~used
        near &= table["unique_tokens"] == table["unique_tokens"][row]
        if (
            len(set(table["parameters"][near])) >= 4
            and (table["tokens"] > 1.5 * table["unique_tokens"])[near].any()
        ):
            used |= near
            cells.append(np.flatnonzero(near))
    return cells
