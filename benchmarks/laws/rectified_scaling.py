"""Fine-tuning curves of 30 models: the rectified law, and choosing a model from less data.

Losses and published scores are those of Lin et al. 2024 (arXiv 2402.02314); the transition is found
on generated curves.
"""

import csv
import multiprocessing
import os
import time
from typing import Any
from unittest import mock

import numpy as np
import scipy.optimize
from benchmarks.common import Check
from benchmarks.laws._selection_scores import relative_accuracy, score_correlation
from benchmarks.laws._shared import shared

from steelyard.laws.decisions.selection.select import (
    Candidate,
    Selection,
    select_model,
)
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.rectified import fit_rectified, fit_vanilla, rectified, transition

PAPER = ["62-rectified-scaling"]

_TASKS = ("flan", "wmt19")
_TARGET = 1_638_400
_RATIOS = (8, 16, 32, 64, 128, 256, 512)
_NOISE = 0.005

_Task = tuple[list[Candidate], dict[str, dict[int, float]]]


def run(quick: bool) -> list[Check]:
    """Check the fits, the selection, the extrapolation and the transition."""
    tasks = {name: _read(name) for name in _TASKS}
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    with (
        mock.patch.dict(os.environ, one_thread),
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        seconds = pool.apply(_seconds, (3,))
    print(f"CPU seconds of 30 rectified fits: {seconds:.2f}")
    return [
        *_fits(tasks, quick),
        Check("1 seconds of 30 fits", seconds, 2.0, "lower"),
        *_selection(tasks),
        *_extrapolation(tasks, quick),
        *_transition(60 if quick else 200),
    ]


def _read(name: str) -> _Task:
    """Read a task's models and losses by model and examples."""
    with (shared("finetune-scaling") / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    models = [
        Candidate(name=row["config name"], parameters=float(row["size"]), tokenizer=row["family"])
        for row in rows
    ]
    return models, {
        row["config name"]: {int(key): float(value) for key, value in row.items() if key.isdigit()}
        for row in rows
    }


def _curves(task: _Task, most: int = _TARGET) -> list[tuple[Array, Array]]:
    """Return sizes and losses of every model up to a size, without the loss before tuning."""
    return [
        (
            np.array([size for size in row if 0 < size <= most], dtype=np.float64),
            np.array([row[size] for size in row if 0 < size <= most]),
        )
        for row in task[1].values()
    ]


def _seconds(rounds: int) -> float:
    """Return CPU seconds of 30 fits of the dearer task, the median of some rounds."""
    tasks = [_curves(_read(name)) for name in _TASKS]
    fit_rectified(*tasks[0][0], bootstrap=Bootstrap(count=0))
    samples = []
    for _ in range(rounds):
        for curves in tasks:
            start = time.process_time()
            for sizes, loss in curves:
                fit_rectified(sizes, loss, bootstrap=Bootstrap(count=0))
            samples.append(time.process_time() - start)
    return max(float(np.median(samples[offset::2])) for offset in (0, 1))


def _fits(tasks: dict[str, _Task], quick: bool) -> list[Check]:
    """Compare rms log residuals with the published ones, and objectives with those of a solver."""
    checks = []
    excess = []
    for (name, task), bar in zip(tasks.items(), (0.0066, 0.0120), strict=True):
        fits = [
            fit_rectified(sizes, loss, bootstrap=Bootstrap(count=0))
            for sizes, loss in _curves(task)
        ]
        plain = [
            fit_vanilla(sizes, loss, bootstrap=Bootstrap(count=0)) for sizes, loss in _curves(task)
        ]
        ours, theirs = (
            float(np.mean([np.sqrt(np.mean(fit.residuals**2)) for fit in group]))
            for group in (fits, plain)
        )
        stuck = sum("E" in fit.at_bounds for fit in fits)
        print(
            f"{name}: rectified {ours:.5f}, vanilla {theirs:.5f}; the floor is not reached by "
            f"{stuck} of {len(fits)} models"
        )
        checks += [
            Check(f"1 rmsd {name}", ours, bar, "lower"),
            Check(f"1 vanilla over rectified {name}", theirs / ours, 5.0, "higher"),
        ]
        step = 5 if quick else 1
        for fit, (sizes, loss) in list(zip(fits, _curves(task), strict=True))[::step]:
            excess.append(fit.objective / _solver_objective(sizes, loss, quick) - 1)
    share = float(np.mean(np.array(excess) < 1e-3))
    print(f"worst objective above the solver's best: {max(excess):.2e} relative")
    return [*checks, Check("1 models converged", share, 1.0, "higher")]


def _solver_objective(sizes: Array, loss: Array, quick: bool) -> float:
    """Minimize with scipy's trust region from the paper's 36 starts, six of them with `quick`."""
    log_size = np.log(sizes)
    log_loss = np.log(loss)
    bounds = rectified().bounds

    def residuals(theta: Array) -> Array:
        return (
            np.logaddexp(theta[0] - np.logaddexp(theta[1], theta[2] * log_size), theta[3])
            - log_loss
        )

    starts = []
    for share in (0.1, 0.5, 0.9):
        for beta in (0.2, 0.5, 0.8, 1.2):
            for where in (10.0, 1e3, 1e4):
                known, floor = where**beta, share * loss.min()
                starts.append(
                    [
                        np.log((loss[0] - floor) * (known + sizes[0] ** beta)),
                        np.log(known),
                        beta,
                        np.log(floor),
                    ]
                )
    return min(
        float(scipy.optimize.least_squares(residuals, start, bounds=bounds).cost)
        for start in starts[:: 6 if quick else 1]
    )


def _selection(tasks: dict[str, _Task]) -> list[Check]:
    """Compare accept-then-stop with its published scores, and racing with accept-then-stop."""
    published = _published_scores()
    checks = []
    accuracy = {"ats": [], "halving": []}
    shares = []
    for name, task in tasks.items():
        measured = {model: row[_TARGET] for model, row in task[1].items()}
        gaps = []
        for ratio in _RATIOS:
            plain, raced = (_select(task, ratio, method) for method in ("ats", "halving"))
            gaps.append(
                score_correlation(plain.scores, measured) - published[name, ratio, "PearCorr"]
            )
            for found in (plain, raced):
                accuracy[found.method].append(relative_accuracy(found.best, measured))
            shares.append(raced.flops / plain.flops)
            print(
                f"{name} 1/{ratio}: PearCorr {gaps[-1] + published[name, ratio, 'PearCorr']:.4f} "
                f"(published {published[name, ratio, 'PearCorr']:.4f}), RelAcc "
                f"{accuracy['ats'][-1]:.4f}, "
                f"racing {accuracy['halving'][-1]:.4f} at {shares[-1]:.0%} of the FLOP"
            )
        checks.append(
            Check(
                f"2 accept-then-stop correlation below published, worst ratio, {name}",
                max(-min(gaps), 0.0),
                0.02,
                "lower",
            )
        )
        bar = {"flan": 0.93, "wmt19": 0.99}[name]
        checks.append(
            Check(
                f"2 accept-then-stop relative accuracy at 1/8 {name}",
                accuracy["ats"][-len(_RATIOS)],
                bar,
                "higher",
            )
        )
    gain = float(np.mean(accuracy["halving"]) - np.mean(accuracy["ats"]))
    return [
        *checks,
        Check("2 racing minus accept-then-stop, mean relative accuracy", gain, 0.0, "higher"),
        Check("2 racing over accept-then-stop, mean FLOP", float(np.mean(shares)), 0.6, "lower"),
    ]


def _select(task: _Task, ratio: int, method: Any) -> Selection:
    """Rank a task's models from sizes up to a share of the target."""
    # The published losses are per token of each model's own tokenizer, hence `force`.
    return select_model(
        task[0], task[1], _TARGET, max_examples=_TARGET // ratio, method=method, force=True
    )


def _published_scores() -> dict[tuple[str, int, str], float]:
    """Read the authors' scores of accept-then-stop by task, ratio and metric."""
    with (shared("finetune-scaling") / "published_selection_scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "AtS"]
    return {
        (row["dataset"].lower(), int(row["ratio"]), row["metric"]): float(row["value"])
        for row in rows
    }


def _extrapolation(tasks: dict[str, _Task], quick: bool) -> list[Check]:
    """Fit the sizes up to an eighth and predict the loss at the target."""
    errors: dict[str, dict[str, float]] = {"rectified": {}, "vanilla": {}}
    covered: dict[str, list[bool]] = {}
    for name, task in tasks.items():
        truth = [row[_TARGET] for row in task[1].values()]
        inside = covered.setdefault(name, [])
        for law, fit_law in (("rectified", fit_rectified), ("vanilla", fit_vanilla)):
            found = []
            for (sizes, loss), true in zip(_curves(task, _TARGET // 8), truth, strict=True):
                bootstraps = (60 if quick else 300) if law == "rectified" else 0
                said = fit_law(sizes, loss, bootstrap=Bootstrap(count=bootstraps)).predict(
                    {"examples": _TARGET}, 0.9
                )
                found.append(abs(float(np.log(said.value[0] / true))))
                if law == "rectified":
                    inside.append(bool(said.low[0] <= true <= said.high[0]))
            errors[law][name] = float(np.median(found))
        print(
            f"{name}: median error at 8x the data: rectified {errors['rectified'][name]:.4f}, "
            f"vanilla {errors['vanilla'][name]:.4f}; "
            f"90 % intervals hold {np.mean(inside):.0%}"
        )
    groups = {**covered, "both tasks": [value for values in covered.values() for value in values]}
    return [
        Check(
            "3 rectified over vanilla, median error, wmt19",
            errors["rectified"]["wmt19"] / errors["vanilla"]["wmt19"],
            0.5,
            "lower",
        ),
        *(
            check
            for name, values in groups.items()
            for check in (
                Check(
                    f"3 coverage of 90 % intervals, {name}, at least",
                    float(np.mean(values)),
                    0.80,
                    "higher",
                ),
                Check(
                    f"3 coverage of 90 % intervals, {name}, at most",
                    float(np.mean(values)),
                    0.95,
                    "lower",
                ),
            )
        ),
    ]


def _transition(count: int) -> list[Check]:
    """Find the transition of generated curves with half a percent of noise."""
    law = rectified()
    generator = np.random.default_rng(0)
    sizes = np.array([200.0 * 2**step for step in range(14)])
    doublings = []
    covered = 0
    for seed in range(count):
        beta = generator.uniform(0.35, 0.8)
        where = np.exp(generator.uniform(np.log(1e3), np.log(1e5)))
        floor = generator.uniform(0.3, 1.0)
        start = generator.uniform(2.5, 5.0)
        known = where**beta
        theta = law.coordinates(
            {"B": (start - floor) * known, "D_l": known, "beta": beta, "E": floor}
        )
        loss = np.exp(
            law.predict(theta[None], {"examples": sizes})[0]
            + _NOISE * generator.standard_normal(len(sizes))
        )
        found = transition(
            fit_rectified(sizes, loss, bootstrap=Bootstrap(count=60, seed=seed)), 0.9
        )
        doublings.append(abs(np.log2(found.value / where)))
        covered += found.low <= where <= found.high
    print(
        f"transition: median {np.median(doublings):.2f} doublings off; 90 % intervals hold "
        f"{covered / count:.0%}"
    )
    return [
        Check(
            "4 transition within one doubling",
            float(np.mean(np.array(doublings) <= 1)),
            0.9,
            "higher",
        )
    ]
