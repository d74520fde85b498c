"""The critical batch on exactly solvable training runs, where its growth with data is known.

The runs are one-pass SGD on least squares (Zhang et al. 2024, arXiv 2410.21676). The smallest batch
sets the target at each number of examples; the learning rate is tuned for every batch and target;
batches that need three times the steps of linear scaling are stopped and count as "more than that".
The exponent is read off the tables and, apart from that, found through f(B) = a + b / B^alpha.
`_own_batches` does the same with small language models.

The censored likelihood is held to the better of the two things one does without it: to drop the
stopped runs, or to take their caps as steps. At the design tried here dropping them does as well:
the runs that ended place the caps already.
"""

import math
import warnings

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.laws._least_squares import LeastSquares, StepsTable
from benchmarks.laws._own_batches import own_critical_batches
from benchmarks.laws._shared import shared
from numpy.typing import NDArray

from steelyard import laws
from steelyard.errors import DataError, SteelyardWarning
from steelyard.laws.decisions.optima.optimum import optima
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.batch_size import critical_batch, fit_steps
from steelyard.laws.forms.named import law_named

PAPER = ["35-critical-batch-size"]

_PAIRS = ((1.5, 3.0), (1.5, 2.0), (3.0, 3.0), (2.0, 4.0), (1.5, 1.5))
_FEWEST_STEPS = 8
_Array = NDArray[np.float64]


def run(quick: bool) -> list[Check]:
    """Measure exponents, held-out batches, few batches against many, and censored runs."""
    checks = []
    tables = []
    with warnings.catch_warnings():
        # Five batches for three parameters are few on purpose.
        warnings.simplefilter("ignore", SteelyardWarning)
        for spectrum, source in _PAIRS[:3] if quick else _PAIRS:
            problem = LeastSquares(spectrum, source)
            table = problem.steps_table(
                2.0 ** np.arange(9, 14 if quick else 17), 2.0 ** np.arange(0, 11 if quick else 13)
            )
            tables.append(table)
            checks += _exponents(problem, table)
        checks += _predictions(tables[:3])
        checks += _censoring(30 if quick else 300)
        checks += own_critical_batches(quick)
    _print_sweep()
    return checks


def _exponents(problem: LeastSquares, table: StepsTable) -> list[Check]:
    """Compare the exponent of the critical batch by examples with the theory's, both ways."""
    read = table.critical_batches()
    fitted = np.array(
        [
            critical_batch(_steps_fit(table, row), reference=1.0).batch.value
            for row in range(len(table.examples))
        ]
    )
    exponents = [_exponent(table.examples, batches) for batches in (read, fitted)]
    name = f"a {problem.spectrum_exponent:g}, b {problem.source_exponent:g}"
    c = problem.critical_exponent
    print(
        f"  {name}: c {c:.3f}; read off {exponents[0]:.3f}, by f(B) {exponents[1]:.3f}; B* "
        f"{np.array2string(read, precision=1)}"
    )
    return [
        Check(f"1 exponent minus c, {name}", float(abs(exponents[0] - c)), 0.1, "lower"),
        Check(
            f"1 exponent by fits of f(B) minus c, {name}",
            float(abs(exponents[1] - c)),
            0.1,
            "lower",
        ),
    ]


def _exponent(examples: _Array, batches: _Array) -> float:
    """Fit the power of examples."""
    return laws.fit(
        law_named("batch_law:tokens"),
        {"tokens": examples},
        batches,
        delta=math.inf,
        bootstrap=laws.Bootstrap(count=0),
    ).params["q"]


def _steps_fit(table: StepsTable, row: int, keep: NDArray[np.int64] | None = None) -> laws.Fit:
    """Fit f(B) to one target, with batches of at least eight steps; `keep` chooses among them."""
    columns = np.flatnonzero(table.examples[row] / table.batches >= _FEWEST_STEPS)
    columns = columns if keep is None else columns[keep]
    return fit_steps(
        table.batches[columns],
        table.steps[row, columns],
        table.caps[row, columns],
        bootstrap=Bootstrap(count=0),
    )


def _predictions(tables: list[StepsTable]) -> list[Check]:
    """Leave each inner batch out; compare five batches with nine."""
    errors = []
    ratios = []
    for table in tables:
        row = len(table.examples) - 1
        full = _steps_fit(table, row, np.arange(9))
        for held in range(1, 8):
            if np.isfinite(table.steps[row, held]):
                fit = _steps_fit(table, row, np.delete(np.arange(9), held))
                said = float(fit.predict({"batch": table.batches[held]}).value[0])
                errors.append(abs(said / table.steps[row, held] - 1))
        few = critical_batch(_steps_fit(table, row, np.arange(0, 9, 2)), reference=1.0).batch.value
        ratios.append(abs(few / critical_batch(full, reference=1.0).batch.value - 1))
    print(
        f"  held-out batches: steps off by {100 * np.median(errors):.1f} % (median of "
        f"{len(errors)}), at most {100 * max(errors):.1f} %"
    )
    return [
        Check(
            "3 steps of a held-out batch, largest relative error", float(max(errors)), 0.10, "lower"
        ),
        Check(
            "3 B* of 5 batches against 9, largest relative error", float(max(ratios)), 0.25, "lower"
        ),
    ]


def _censoring(count: int) -> list[Check]:
    """Find B* of a known law when large batches were stopped early, in three ways."""
    batches = 2.0 ** np.arange(4, 13)
    clean = 1000.0 + 6e5 / batches
    truth = 1.2 * batches[0] + 0.2 * 600.0
    caps = 2 * clean[0] * batches[0] / batches
    errors = {"likelihood": [], "caps as steps": [], "dropped": []}
    inside = []
    for seed in range(count):
        steps = clean * np.exp(0.04 * np.random.default_rng(seed).standard_normal(len(batches)))
        seen = steps < caps
        found = critical_batch(
            fit_steps(
                batches,
                np.where(seen, steps, np.inf),
                caps,
                bootstrap=Bootstrap(count=200, seed=seed),
            ),
            reference=batches[0],
            level=0.9,
        )
        inside.append(found.batch.low <= truth <= found.batch.high)
        errors["likelihood"].append(abs(math.log(found.batch.value / truth)))
        for name, rows in (("caps as steps", np.ones_like(seen)), ("dropped", seen)):
            if rows.sum() >= 5:
                fit = fit_steps(
                    batches[rows], np.minimum(steps, caps)[rows], bootstrap=Bootstrap(count=0)
                )
                errors[name].append(
                    abs(
                        math.log(
                            min(critical_batch(fit, reference=batches[0]).batch.value, 1e6) / truth
                        )
                    )
                )
    for name, values in errors.items():
        print(
            f"  {name:14s} |ln B* / truth|: median {np.median(values):.3f}, 90 % below "
            f"{np.quantile(values, 0.9):.3f} ({len(values)} draws)"
        )
    medians = {name: float(np.median(values)) for name, values in errors.items()}
    print(
        f"  90 % intervals of B* with censored runs hold the truth in {100 * np.mean(inside):.0f} "
        f"% of draws"
    )
    chance = 2 * math.sqrt(0.9 * 0.1 / count)
    return [
        Check(
            "3 error of B*, better of stopped runs dropped and caps as steps, over likelihood",
            min(medians["caps as steps"], medians["dropped"]) / medians["likelihood"],
            1.0,
            "higher",
        ),
        Check(
            "3 90 % intervals of B* with stopped runs, coverage's distance from .9",
            abs(float(np.mean(inside)) - 0.9),
            max(0.05, chance),
            "lower",
        ),
    ]


def _print_sweep() -> None:
    """Print the exponent of the best batch in the published sweep, where it is on this machine."""
    try:
        table = pl.read_csv(shared("lr-batch-sweep") / "dense.csv")
    except DataError as error:
        print(f"  published sweep left out: {error}")
        return
    names = {
        "learning_rate": "lr",
        "loss": "smooth_loss",
        "parameters": "params",
        "tokens": "tokens",
        "batch": "batch_seqs",
    }
    columns = {ours: table[theirs].to_numpy().astype(np.float64) for ours, theirs in names.items()}
    cells = optima(columns, "learning_rate", "loss", ("parameters", "tokens", "batch"))
    best = optima(cells.columns, "batch", "least", ("parameters", "tokens"))
    fit = laws.fit(
        law_named("batch_law"), best.columns, "batch", weights=best.weights(), delta=math.inf
    )
    shown = ", ".join(
        f"{name} {fit.params[name]:.2f} [{fit.interval(name)[0]:.2f}, {fit.interval(name)[1]:.2f}]"
        for name in ("p", "q")
    )
    print(f"  best batch of the published sweep = c N^p D^q: {shown} (published without N: q .571)")
