"""Own runs on few tokens seen often: three sizes, seven nested amounts of text, three lengths.

The grid has 10 to 655 thousand unique tokens of abstracts and 164 to 655 thousand tokens trained
on, so 1 to 64 epochs; one seed.
"""

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import repeat_runs
from benchmarks.train._own_study import OwnRun
from numpy.typing import NDArray

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.learning_curves.learning_curve import fit_learning_curve

__all__ = ["own_learning_curves", "own_repeats"]

Array = NDArray[np.float64]
_FEW_EPOCHS = 8
_SHARE = 4
"""Learning curves are fitted to a quarter of the data and forecast all of it: from an eighth, four
amounts, they are refused."""


def own_repeats(quick: bool) -> list[Check]:
    """Measure what repeated tokens are worth, and forecast 16 epochs from 8."""
    runs = [run for run in repeat_runs(quick) if not run.is_trunk]
    if not runs:
        return []
    return [_four_epochs(runs), _many_epochs(runs), *_sixteen_epochs(runs)]


def _table(runs: list[OwnRun]) -> dict[str, Array]:
    """Return columns of the law and the losses."""
    names = ("parameters", "tokens", "unique_tokens", "loss")
    return {name: np.array([getattr(run, name) for run in runs], dtype=float) for name in names}


def _loss(runs: list[OwnRun], parameters: int, tokens: int, unique: int) -> float:
    """Return the loss of one cell."""
    wanted = (parameters, tokens, unique)
    return next(
        run.loss for run in runs if (run.parameters, run.tokens, run.unique_tokens) == wanted
    )


def _four_epochs(runs: list[OwnRun]) -> Check:
    """Compare four epochs or so with unique tokens, at the longest length."""
    most = max(run.tokens for run in runs)
    amounts = sorted({run.unique_tokens for run in runs})
    four = min(amounts, key=lambda unique: abs(np.log(most / unique / 4)))
    more = {
        size: _loss(runs, size, most, four) / _loss(runs, size, most, amounts[-1]) - 1
        for size in sorted({run.parameters for run in runs})
    }
    shown = ", ".join(f"{size} parameters {value:+.2%}" for size, value in more.items())
    print(f"  {most / four:.0f} epochs against {most / amounts[-1]:.0f}: {shown}")
    return Check(
        "5 own runs: loss of 4 epochs over unique, worst excess", max(more.values()), 0.02, "lower"
    )


def _many_epochs(runs: list[OwnRun]) -> Check:
    """Compare what a doubling of the length gains at 32 epochs with what it gains when unique."""
    most = max(run.tokens for run in runs)
    unique = max(run.unique_tokens for run in runs)
    few = most // 32
    shares = [
        (_loss(runs, size, most // 2, few) - _loss(runs, size, most, few))
        / (_loss(runs, size, most // 2, unique) - _loss(runs, size, most, unique))
        for size in sorted({run.parameters for run in runs})
    ]
    print(f"  gain of 16 to 32 epochs over that of unique tokens, by size: {np.round(shares, 2)}")
    return Check(
        "5 own runs: gain of doubling at 32 epochs over unique, most", max(shares), 0.25, "lower"
    )


def _sixteen_epochs(runs: list[OwnRun]) -> list[Check]:
    """Fit both forms to runs of at most 8 epochs and forecast those of 16."""
    table = _table(runs)
    epochs = table["tokens"] / table["unique_tokens"]
    seen = {name: column[epochs <= _FEW_EPOCHS] for name, column in table.items()}
    held = {name: column[epochs == 2 * _FEW_EPOCHS] for name, column in table.items()}
    fits = {
        law.name.split(":")[0]: laws.fit(law, seen, seen["loss"], bootstrap=Bootstrap(count=0))
        for law in (laws.data.data_constrained(), laws.data.overfitting_penalty())
    }
    for name, fit in fits.items():
        error = fit.predict(held, extrapolate=True).value / held["loss"] - 1
        shown = ", ".join(f"{key} {value:.3g}" for key, value in fit.params.items())
        print(
            f"  {name}: objective {fit.objective:.5f} of {len(seen['loss'])} runs ({shown}), 16 "
            f"epochs off by {np.round(100 * error, 1)} %"
        )
    chosen = min(fits.values(), key=lambda fit: fit.objective)
    error = np.abs(chosen.predict(held, extrapolate=True).value / held["loss"] - 1)
    return [
        Check("5 own runs: 16 epochs from 8, median error", float(np.median(error)), 0.02, "lower"),
        Check("5 own runs: 16 epochs from 8, worst error", float(error.max()), 0.02, "lower"),
    ]


def own_learning_curves(quick: bool) -> list[Check]:
    """Fit each size's curve over amounts of text up to a quarter, and forecast the whole.

    A size's loss at an amount is the best of its lengths, as if stopped early. The best over sizes
    is no fifth curve: from 80 thousand tokens on it is that of the largest size, whose floor is the
    length of the runs.
    """
    runs = [run for run in repeat_runs(quick) if not run.is_trunk]
    if not runs:
        return []
    amounts = np.array(sorted({run.unique_tokens for run in runs}), dtype=float)
    seen = amounts <= amounts[-1] / _SHARE
    ours, lines = [], []
    best = np.full(len(amounts), np.inf)
    sizes = []
    for size in sorted({run.parameters for run in runs}):
        loss = np.array(
            [
                min(
                    run.loss
                    for run in runs
                    if (run.parameters, run.unique_tokens) == (size, unique)
                )
                for unique in amounts
            ]
        )
        sizes.append(size)
        best = np.minimum(best, loss)
        said = _forecast(amounts[seen], loss[seen], amounts[-1])
        line = np.polyfit(np.log(amounts[seen]), np.log(loss[seen]), 1)
        straight = float(np.exp(np.polyval(line, np.log(amounts[-1]))))
        ours.append(abs(said / loss[-1] - 1))
        lines.append(abs(straight / loss[-1] - 1))
        print(
            f"  {size} parameters: losses {np.round(loss, 3)}; from {seen.sum()} amounts said "
            f"{said:.3f}, a line {straight:.3f}"
        )
    median = float(np.median(ours))
    return [
        Check(f"4 own runs: median error at {_SHARE}x the data", median, 0.05, "lower"),
        Check(
            "4 own runs: log-log line over ours, median error",
            float(np.median(lines)) / median,
            2.0,
            "higher",
        ),
        Check(
            "5 own runs: best loss falls with data, steps of 6",
            float((np.diff(best) < 0).sum()),
            6,
            "higher",
        ),
    ]


def _forecast(samples: Array, loss: Array, target: float) -> float:
    """Return the loss that a learning curve says at more data; NaN where it refuses."""
    try:
        found = fit_learning_curve(
            samples, loss, num_validation=10**7, bootstrap=Bootstrap(count=0)
        )
    except FitError as error:
        print(f"  refused: {error}")
        return float("nan")
    return float(found.fit.predict({"samples": np.array([target])}, extrapolate=True).value[0])
