"""Pruned data: theory against trained perceptrons, and small networks on pruned images.

The theory is that of Sorscher et al. 2022 (arXiv 2206.14486). Perceptrons have 200 dimensions and
teachers of their own. Images are generated: four views of ten patterns, the rarest of which make up
a twenty-fifth. Sets of one size are compared at the same number of steps. Scores come from networks
trained on all examples; what scoring costs is said beside it.

Four bars are missed. At two examples per dimension hardly any can be spared, so the envelope begins
flatter. Random thirds of many images err by 1.3 %, which leaves less than two
points to gain. Few images are ever forgotten, and ties rank nothing. Distances to prototypes take
longer than a tenth of so short a training.
"""

import math
import time
from typing import Literal

import numpy as np
import torch
from benchmarks.common import Check
from benchmarks.data._perceptron_runs import student_errors
from benchmarks.data._pruned_images import Images, Scores, held_out_error, prototypes, score
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import rankdata

from steelyard.data.difficulty import stability
from steelyard.data.pruning import prune
from steelyard.laws.theory import crossover, pruned_error

PAPER = ["10-data-pruning"]

_POINTS = (
    (6.0, 0.5, "hard"),
    (6.0, 0.3, "hard"),
    (6.0, 0.5, "easy"),
    (1.5, 0.6, "hard"),
    (1.5, 0.6, "easy"),
    (10.0, 0.4, "hard"),
    (3.0, 0.5, "hard"),
    (3.0, 0.7, "easy"),
    (4.0, 1.0, "hard"),
    (8.0, 0.3, "easy"),
    (12.0, 0.25, "hard"),
)
_PRINTED = (((16.0, 0.2, "hard"), 0.032), ((16.0, 1.0, "hard"), 0.031), ((2.0, 0.5, "hard"), 0.321))
_LARGE, _SMALL = 12_000, 200
_STEPS = 1500


def run(quick: bool) -> list[Check]:
    """Check the theory, then prune images by every metric."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    checks = [*_theory(quick), *_crossing(4 if quick else 16), *_envelope(), *_images(quick)]
    torch.set_num_threads(threads)
    return checks


def _theory(quick: bool) -> list[Check]:
    """Compare errors with trained students and with printed numbers."""
    off = []
    for number, (alpha, keep, side) in enumerate(_POINTS[: 6 if quick else None]):
        found = student_errors(alpha, keep, side, 5 if quick else 20, seed=number)
        said = pruned_error(alpha, keep, side)  # pyright: ignore[reportArgumentType]
        error = float(found.std(ddof=1) / len(found) ** 0.5)
        off.append(abs(float(found.mean()) - said) / error)
        print(
            f"  alpha {alpha:4.1f}, {keep:.0%} {side}: theory {said:.4f}, {len(found)} students "
            f"{found.mean():.4f} +- {error:.4f}"
        )
    printed = [
        abs(pruned_error(*point) - value)  # pyright: ignore[reportArgumentType]
        for point, value in _PRINTED
    ]
    return [
        Check("1 theory off trained students, worst, standard errors", max(off), 3.0, "lower"),
        Check("1 theory off printed errors, worst", max(printed), 1e-3, "lower"),
    ]


def _crossing(repeats: int) -> list[Check]:
    """Find where students of hard examples overtake those of easy ones."""
    place = crossover(0.5)
    alphas = place * np.array([0.6, 0.8, 1.0, 1.25, 1.6])
    ahead = [
        float(
            np.log(
                student_errors(alpha, 0.5, "hard", repeats, seed=50 + number).mean()
                / student_errors(alpha, 0.5, "easy", repeats, seed=70 + number).mean()
            )
        )
        for number, alpha in enumerate(alphas)
    ]
    slope, level = np.polyfit(np.log(alphas), ahead, 1)
    trained = float(np.exp(-level / slope))
    print(f"  hard and easy change places at alpha {place:.2f}, of trained students {trained:.2f}")
    return [
        Check(
            "1 crossover of trained students off theory's",
            abs(trained / place - 1),
            0.2,
            "lower",
        )
    ]


def _envelope() -> list[Check]:
    """Measure how many hard examples do nearly what all do, as there are ever more of them.

    Slopes are those of ln kept over ln error, the inverse of the paper's: they stay finite where
    more examples no longer have to be kept. Its -1.5 is -1 / 1.5 here.
    """
    totals = 2.0 ** np.arange(1, 6)
    shares = [_enough(float(total)) for total in totals]
    kept = totals * shares
    errors = [
        pruned_error(float(total), share) for total, share in zip(totals, shares, strict=True)
    ]
    slopes = np.diff(np.log(kept)) / np.diff(np.log(errors))
    whole = np.log([pruned_error(float(alpha)) for alpha in np.geomspace(8.0, 32.0, 5)])
    plain = np.diff(whole) / (np.log(4) / 4)
    print(
        f"  of {totals} per dimension {np.round(kept, 2)} lose a fifth at most: errors "
        f"{np.round(errors, 4)}; slopes of kept over error {np.round(slopes, 2)}; of all "
        f"examples, error over number {np.round(plain, 2)}"
    )
    return [
        Check(
            "2 ln kept over ln error along the envelope, flattest",
            float(slopes.min()),
            -1 / 1.5,
            "higher",
        ),
        Check(
            "2 doublings in which the envelope steepens, of 3",
            float((np.diff(slopes) > 0).sum()),
            3,
            "higher",
        ),
        Check("2 slope of all examples off -1", float(np.abs(plain + 1).max()), 0.1, "lower"),
    ]


def _enough(total: float) -> float:
    """Return the share of hard examples that loses a fifth against all of them."""
    most = math.log(1.2 * pruned_error(total))
    return brentq(  # pyright: ignore[reportReturnType]
        lambda keep: math.log(pruned_error(total, keep)) - most, 0.03, 1.0, xtol=1e-5
    )


def _images(quick: bool) -> list[Check]:
    """Prune images by every metric and train on what is left."""
    count, steps, seeds, nets = (2000, 200, 1, 2) if quick else (_LARGE, _STEPS, 5, 10)
    large = Images(count, 0)
    begin = time.perf_counter()
    held_out_error(large, np.arange(count), steps, 0)
    training_s = time.perf_counter() - begin
    begin = time.perf_counter()
    prototypes(large)
    scoring_s = time.perf_counter() - begin
    found = score(large, steps, nets)
    checks = [
        Check("4 time of prototypes over one training", scoring_s / training_s, 0.1, "lower"),
        *_agreement(found),
    ]
    if quick:
        return checks
    return [*checks, *_large(large, found, steps, seeds), *_small(seeds), *_mislabeled(seeds)]


def _agreement(found: Scores) -> list[Check]:
    """Compare the metrics with one another, and nets with nets."""
    names = list(found.by_metric)
    # Pearson's correlation of ranks is Spearman's.
    ranks = np.corrcoef([rankdata(scores) for scores in found.by_metric.values()])
    for name, row in zip(names, ranks, strict=True):
        print(
            f"  {name:>10}: rank correlation with each {' '.join(f'{item:5.2f}' for item in row)}"
        )
    return [
        Check(
            "4 rank correlation of EL2N and forgetting",
            float(ranks[names.index("el2n"), names.index("forgetting")]),
            0.5,
            "higher",
        ),
        Check(
            f"5 rank correlation of EL2N between halves of {len(found.el2n)} nets",
            stability(found.el2n),
            0.8,
            "higher",
        ),
    ]


def _large(images: Images, found: Scores, steps: int, seeds: int) -> list[Check]:
    """Keep half and less of many images, by each metric and at random."""
    count = len(images.labels)
    errors: dict[tuple[str, float], float] = {}
    errors["all", 1.0] = _mean_error(images, [np.arange(count)] * seeds, steps)
    for keep in (0.5, 0.3):
        drawn = [
            np.random.default_rng(seed).choice(count, round(keep * count), replace=False)
            for seed in range(seeds)
        ]
        errors["random", keep] = _mean_error(images, drawn, steps)
        for name, scores in found.by_metric.items():
            rows = prune(scores, keep=keep, side="hard", labels=images.labels.numpy())
            errors[name, keep] = _mean_error(images, [rows] * seeds, steps)
    for (name, keep), value in errors.items():
        print(f"  {count} images, {keep:.0%} by {name}: error {value:.2%}")
    half, third = (min(errors[name, keep] for name in found.by_metric) for keep in (0.5, 0.3))
    return [
        Check(
            "3 points lost by half of many images", 100 * (half - errors["all", 1.0]), 1.0, "lower"
        ),
        Check(
            "3 points gained over random at 30 % of many",
            100 * (errors["random", 0.3] - third),
            2.0,
            "higher",
        ),
    ]


def _small(seeds: int) -> list[Check]:
    """Keep the easy and the hard half of few images."""
    losses: dict[Literal["easy", "hard"], list[float]] = {"easy": [], "hard": []}
    for seed in range(seeds):
        images = Images(_SMALL, 10 + seed)
        scores = score(images, 300, 5).by_metric["el2n"]
        for side, found in losses.items():
            rows = prune(scores, keep=0.5, side=side, labels=images.labels.numpy())
            found.append(held_out_error(images, rows, 300, seed))
    easy, hard = (float(np.mean(losses[side])) for side in ("easy", "hard"))
    print(f"  {_SMALL} images, half of them: easy {easy:.2%}, hard {hard:.2%}")
    return [Check("3 points by which easy beat hard of few", 100 * (hard - easy), 0.0, "higher")]


def _mislabeled(seeds: int) -> list[Check]:
    """Keep the hard part of images of which a tenth is labelled at random."""
    images = Images(_LARGE // 2, 20, wrong=0.1)
    count = len(images.labels)
    scores = score(images, _STEPS // 2, 5).by_metric["el2n"]
    rows = prune(scores, keep=0.3, side="hard", labels=images.labels.numpy())
    drawn = [
        np.random.default_rng(seed).choice(count, len(rows), replace=False) for seed in range(seeds)
    ]
    hard = _mean_error(images, [rows] * seeds, _STEPS)
    random = _mean_error(images, drawn, _STEPS)
    print(f"  a tenth mislabelled, 30 % kept: hard {hard:.2%}, random {random:.2%}")
    return [
        Check(
            "3 points by which mislabelled hard ones are worse than random",
            100 * (hard - random),
            0.0,
            "higher",
        )
    ]


def _mean_error(images: Images, rows: list[NDArray[np.int64]], steps: int) -> float:
    """Return the mean error of networks, one for each choice of examples."""
    errors = [held_out_error(images, kept, steps, seed) for seed, kept in enumerate(rows)]
    return float(np.mean(errors))
