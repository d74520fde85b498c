"""How often 90 % intervals hold the truth of laws with known numbers, fitted with the defaults.

Every generator draws tables of a published or plausible law with log-normal noise of 0.3 to 2 %.
`fit` sees the points and nothing else; a parameter's interval is its bootstrap percentile. With
`quick`, 40 tables per generator in place of 400, too few to tell 0.95 from 1: then only the lower
end is checked, two binomial errors wider.
"""

import numpy as np
from benchmarks.common import Check

from steelyard import laws
from steelyard.laws.fitting.law import Law
from steelyard.laws.theory.coverage import Coverage, coverage
from steelyard.laws.theory.generators import (
    chinchilla_grid,
    draw,
    learning_curve_grid,
    routed_grid,
)

PAPER: list[str] = []

_LEVEL = 0.9
_Generator = tuple[Law, dict[str, float], dict[str, np.ndarray], float]


def run(quick: bool) -> list[Check]:
    """Measure the coverage of each generator's parameters and their mean."""
    checks = []
    inside = 0
    for name, generator in _generators().items():
        found = _measure(generator, 40 if quick else 400)
        shares = {key: found.fraction(key) for key in found.held}
        mean = float(np.mean(list(shares.values())))
        error = found.binomial_error()
        print(
            f"{name}: mean {mean:.3f} +- {error:.3f}; "
            + ", ".join(f"{key} {share:.2f}" for key, share in shares.items())
        )
        least = 0.85 - 2 * error * quick
        inside += least <= mean and (quick or mean <= 0.95)
        checks.append(Check(f"{name}: mean coverage at least", mean, least, "higher"))
        if not quick:
            checks.append(Check(f"{name}: mean coverage at most", mean, 0.95, "lower"))
    return [Check("generators with calibrated 90 % intervals", inside, 5, "higher"), *checks]


def _measure(generator: _Generator, repeats: int) -> Coverage:
    """Draw, fit and count."""
    law, truth, inputs, noise = generator

    def intervals(runs: object) -> dict[str, tuple[float, float]]:
        fitted = laws.fit(law, runs, "loss", bootstrap=laws.Bootstrap(count=200), prior=None)  # pyright: ignore[reportArgumentType]
        return {name: fitted.interval(name, _LEVEL) for name in truth}

    return coverage(
        lambda random: draw(law, truth, inputs, noise, random), intervals, truth, repeats, _LEVEL
    )


def _generators() -> dict[str, _Generator]:
    """Declare laws, their truth, the grid of runs and the noise."""
    chinchilla = laws.published["besiroglu2024"]
    kaplan = laws.published["kaplan2020"]
    routed = laws.published["clark2022_sbase"]
    grid = chinchilla_grid()
    curve = learning_curve_grid(2**22, 14, repeats=3)
    hyperbola = {"batch": np.tile(np.geomspace(16, 4096, 9), 3)}
    return {
        "chinchilla": (laws.chinchilla(), chinchilla.params, grid, 0.003),
        "kaplan": (laws.kaplan(), kaplan.params, grid, 0.005),
        "learning curve with floor": (
            laws.power_law("samples"),
            {"A": 8.0, "alpha": 0.3, "E": 0.12},
            curve,
            0.02,
        ),
        "rectified": (
            laws.law_named("rectified:samples"),
            {"B": 90.0, "D_l": 400.0, "beta": 0.55, "E": 1.2},
            curve,
            0.005,
        ),
        "routed": (
            laws.routed(saturation=False),
            _unsaturated(routed.params),
            routed_grid(),
            0.008,
        ),
        "steps to a target": (
            laws.law_named("steps_to_target"),
            {"a": 2000.0, "b": 4e5, "alpha": 1.0},
            hyperbola,
            0.02,
        ),
    }


def _unsaturated(params: dict[str, float]) -> dict[str, float]:
    """Keep the bilinear part of a routed law."""
    return {name: params[name] for name in ("a", "b", "c", "d")}
