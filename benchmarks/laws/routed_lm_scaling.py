"""Routed language models: the bilinear law refitted on published losses of S-BASE and HASH.

The law is that of Clark et al. 2022 (arXiv 2202.01169). Points are the last steps of
shared/data/routed-lm-curves with half of the blocks routed, one expert per token and seed 42. The
dense runs enter the fit of each router as one expert; the dense run of 130M parameters in that
setting was not published. `_own_routed` trains models of our own.
"""

import math

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.laws._own_routed import own_routed
from benchmarks.laws._shared import shared

from steelyard import laws
from steelyard.laws.fitting.fit import Holdout
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.routed import (
    cutoff,
    effective_parameters,
    level_curve,
    routed,
    routed_points,
)

PAPER = ["70-routed-lm-scaling"]

_ROUTERS = {"S-Base": ("S-BASE", 0.0033), "Hash": ("HASH", 0.0031)}


def run(quick: bool) -> list[Check]:
    """Refit both routers; hold the largest size out; put all models on the dense line."""
    checks = []
    for router, (name, bar) in _ROUTERS.items():
        inputs, loss = last_steps(router)
        fit = laws.fit(
            routed(),
            inputs,
            loss,
            delta=math.inf,
            bootstrap=laws.Bootstrap(count=100 if quick else 1000),
        )
        plain = laws.fit(
            routed(saturation=False),
            inputs,
            loss,
            delta=math.inf,
            bootstrap=laws.Bootstrap(count=0),
        )
        held = laws.hold_out(fit, "parameters", 0.1)
        rms = _rms_log10(fit)
        _tell(name, fit, held)
        checks += [
            Check(f"1 {name} rms log10 residual", rms, bar, "lower"),
            Check(
                f"1 {name} residual saved by saturation, fraction",
                1 - rms / _rms_log10(plain),
                0.10,
                "higher",
            ),
            Check(
                f"1 {name} residual on the dense line against that of the law, largest difference",
                _collapse_error(fit),
                1e-6,
                "lower",
            ),
            Check(
                f"1 {name} largest size left out, mean relative error",
                held.mean_relative_error,
                0.020,
                "lower",
            ),
            Check(
                f"1 {name} largest size left out, fraction inside 80 % intervals",
                held.coverage,
                0.8,
                "higher",
            ),
        ]
    return [*checks, *own_routed(quick)]


def last_steps(router: str) -> tuple[dict[str, Array], Array]:
    """Read the final runs of a router, and the dense ones as one expert.

    Args:
        router: "S-Base" or "Hash".

    Returns:
        Inputs of the law, and validation losses in nats per token, [n] each.
    """
    table = (
        pl.read_csv(shared("routed-lm-curves") / "curves.csv.gz")
        .sort("step")
        .group_by("hyper_id")
        .last()
        .sort("hyper_id")
    )
    # One cell of the sweep; the others vary routing and seed, which the law does not know.
    table = table.filter(
        (pl.col("routing_frequency") == 0.5)
        & (pl.col("k") == 1)
        & (pl.col("seed") == 42)
        & pl.col("router_type").is_in([router, "Dense"])
    )
    inputs = routed_points(
        table["dense_parameter_count"].to_numpy(), table["num_experts"].to_numpy()
    )
    return inputs, table["loss_validation"].to_numpy()


def _rms_log10(fit: laws.Fit) -> float:
    """Return the root mean square of the residuals of log10 loss."""
    return float(np.sqrt(np.mean(fit.residuals**2)) / math.log(10))


def _collapse_error(fit: laws.Fit) -> float:
    """Return how far residuals move when dense models of the effective size replace routed ones."""
    dense = effective_parameters(fit, fit.inputs["parameters"], fit.inputs["experts"]).value
    said = fit.predict(
        {"parameters": dense, "experts": np.ones(len(dense))}, extrapolate=True
    ).value
    return float(np.abs(np.log10(fit.target / said) - fit.residuals / math.log(10)).max())


def _tell(name: str, fit: laws.Fit, held: Holdout) -> None:
    """Print what the numbers of a router are."""
    print(
        f"{name}: {len(fit.target)} points",
        {key: round(value, 4) for key, value in fit.params.items()},
    )
    size = cutoff(fit, 0.9)
    dense = effective_parameters(fit, 370e6, 128)
    print(
        f"  experts stop paying at {size.value:.2e} parameters, 90 % interval {size.low:.1e} to "
        f"{size.high:.1e}"
    )
    print(
        f"  370M with 128 experts counts as {dense.value[0]:.2e} dense parameters "
        f"[{dense.low[0]:.2e}, {dense.high[0]:.2e}]"
    )
    sizes = level_curve(fit, 2.242, [16, 128]).value
    print(
        f"  the loss of dense 1.3B at 16 and 128 experts: {sizes[0]:.2e} and {sizes[1]:.2e} "
        f"parameters"
    )
    ratio = held.predicted / held.measured
    print(
        f"  largest size left out: predicted over measured {ratio.min():.3f} to {ratio.max():.3f}"
    )
