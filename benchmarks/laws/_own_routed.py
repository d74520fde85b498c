"""Own runs of dense and routed models: three sizes, 4 and 16 experts, two routers, one seed.

Every second layer of two has experts, each token visits one. Sizes are those of the dense model, so
a routed one takes the same operations per token beside its router. Runs are short, 410 thousand
tokens of a vocabulary of 512: HASH, whose experts know their tokens at once, gains most.
"""

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import routed_runs
from benchmarks.train._own_study import OwnRun
from numpy.typing import NDArray

from steelyard import laws
from steelyard.laws.forms.routed import routed, routed_points

__all__ = ["own_routed"]

Array = NDArray[np.float64]
_NAMES = {"sinkhorn": "S-BASE", "hash": "HASH"}
_MOST = 16


def own_routed(quick: bool) -> list[Check]:
    """Fit the bilinear law to each router; compare routed with dense models of equal operations."""
    found = {
        router: [run for run in runs if not run.is_trunk]
        for router, runs in routed_runs(quick).items()
    }
    if not all(found.values()):
        return []
    dense = [run for run in found["sinkhorn"] if run.experts == 1]
    found["hash"] = [*dense, *found["hash"]]
    checks = []
    for router, runs in found.items():
        checks += _law(_NAMES[router], runs, dense)
    sizes = [run.hidden_size for run in dense]
    gains = {
        router: np.array([1 - _loss(runs, size, _MOST) / _loss(runs, size, 1) for size in sizes])
        for router, runs in found.items()
    }
    for router, gain in gains.items():
        print(f"  {_NAMES[router]}: {_MOST} experts lower the loss by {np.round(100 * gain, 2)} %")
    over = _loss(found["sinkhorn"], sizes[-1], _MOST) / _loss(found["hash"], sizes[-1], _MOST)
    for router, gain in gains.items():
        name = _NAMES[router]
        checks += [
            Check(
                f"3 own runs: {name} gain of 16 experts over dense, smallest size",
                float(gain[0]),
                0.01,
                "higher",
            ),
            Check(
                f"3 own runs: {name} gain at the largest less at the smallest size",
                float(gain[-1] - gain[0]),
                0.0,
                "lower",
            ),
        ]
    return [*checks, Check("3 own runs: S-BASE over HASH, largest size", over, 1.005, "lower")]


def _loss(runs: list[OwnRun], width: int, experts: int) -> float:
    """Return the loss of one cell."""
    return next(run.loss for run in runs if (run.hidden_size, run.experts) == (width, experts))


def _law(name: str, runs: list[OwnRun], dense: list[OwnRun]) -> list[Check]:
    """Fit the law without saturation, which three numbers of experts cannot show."""
    sizes = {run.hidden_size: run.parameters for run in dense}
    inputs = routed_points(
        np.array([sizes[run.hidden_size] for run in runs], dtype=float),
        np.array([run.experts for run in runs], dtype=float),
    )
    loss = np.array([run.loss for run in runs])
    fit = laws.fit(routed(saturation=False), inputs, loss, delta=np.inf)
    low, high = fit.interval("b", 0.9)
    shown = ", ".join(f"{key} {value:.4f}" for key, value in fit.params.items())
    print(f"  {name}: {len(runs)} points, {shown}; b in [{low:.3f}, {high:.3f}]")
    return [
        Check(f"3 own runs: {name} b, upper end of its 90 % interval", high, 0.0, "lower"),
        Check(f"3 own runs: {name} c", fit.params["c"], 0.0, "higher"),
    ]
