"""What runs cost on a machine of the catalog: hours and money."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.errors import ConfigError, InfeasibleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.laws.fitting.fitted import Fit
    from steelyard.laws.fitting.terms import Array
    from steelyard.quantity import Provenance

__all__ = ["PricedRun", "Worth", "price_candidates", "price_run"]

_MOST_ACCELERATORS = 1 << 16
_LONGEST_S = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedRun:
    """A training run with its price.

    Attributes:
        parameters: model size.
        tokens: training tokens.
        count: accelerators it takes: those asked for, or as many more as its memory needs.
        hours: time of the run.
        usd: its cost; None where no price is known.
    """

    parameters: float
    tokens: float
    count: int
    hours: float
    usd: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """Candidate runs beside the plan that asks for a sharper law.

    Attributes:
        runs: price of each candidate, in its order.
        plan: price of the plan's best run.
        budget: compute of the plan, FLOP.
        saved_flops: compute that the plan saves once a candidate is measured, [m].
        saved_usd: money that it saves, [m]; None where no price is known.
        most_usd: money that knowing the law exactly would save.
        accelerator: machine the runs are priced on.
    """

    runs: tuple[PricedRun, ...]
    plan: PricedRun
    budget: float
    saved_flops: tuple[float, ...]
    saved_usd: tuple[float | None, ...]
    most_usd: float | None
    accelerator: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a plan reads of a run."""

    parameters: float
    tokens: float
    loss: Any = None
    source: str = "a run to be priced"
    provenance: "Provenance" = "assumed"


def price_run(accelerator: str, count: int, parameters: float, tokens: float) -> PricedRun:
    """Price a training run on accelerators of the catalog.

    Args:
        accelerator: its name.
        count: accelerators at hand.
        parameters: model size.
        tokens: training tokens.

    Returns:
        Hours and cost; rented where a rent is known.

    Raises:
        ConfigError: fewer than one accelerator.
        CatalogError: no such accelerator; near names are given.
        InfeasibleError: no number of them holds the model.
    """
    from steelyard.laws.fitting.estimate import Estimate
    from steelyard.plan import plan_training
    from steelyard.plan.machines import machines_of

    if count < 1:
        raise ConfigError(f"--count {count} accelerators train nothing", hint="1 or more")
    wanted = _Wanted(parameters, tokens, Estimate(1.0, 1.0, 1.0))
    while True:
        machines = machines_of(accelerator=accelerator, count=count)
        try:
            made = plan_training(
                wanted,
                cluster=machines.cluster,
                accelerator=machines.accelerator,
                site=machines.site,
                dtype=machines.dtype,
                deadline_s=_LONGEST_S,
                prefers_rent=True,
            )
        except InfeasibleError:
            # A model that one machine cannot hold is spread over more of them.
            if count * 2 > _MOST_ACCELERATORS:
                raise
            count *= 2
            continue
        is_known = "run.cost" not in made.unknown
        return PricedRun(
            parameters=parameters,
            tokens=tokens,
            count=count,
            hours=made.duration_s / 3600,
            usd=made.forecast("run.cost").value if is_known else None,
        )


def price_candidates(
    fit: "Fit", inputs: "Mapping[str, Array]", accelerator: str, count: int, budget: float
) -> Worth:
    """Price candidate runs, and what each saves in the plan that splits a budget by the law.

    Args:
        fit: fit of a law of parameters and tokens.
        inputs: parameters and tokens of the candidates, [m] each.
        accelerator: name of the machine in the catalog.
        count: accelerators at hand.
        budget: compute of the plan, FLOP.

    Returns:
        Hours and money of the candidates beside the compute and money they save.

    Raises:
        FitError: too few bootstraps, or a law that cannot split a budget.
        CatalogError: no such accelerator; near names are given.
    """
    from steelyard.laws.decisions.allocate import allocate
    from steelyard.laws.decisions.value_of_run import value_of_runs

    best = allocate(fit, budget, extrapolate=True)
    plan = price_run(accelerator, count, best.parameters.value, best.tokens.value)
    worth = value_of_runs(fit, inputs, budget)
    saved = tuple(worth.saved_flops.tolist())
    per_flop = plan.usd / budget if plan.usd is not None else None
    pairs = zip(inputs["parameters"].tolist(), inputs["tokens"].tolist(), strict=True)
    return Worth(
        runs=tuple(price_run(accelerator, count, size, tokens) for size, tokens in pairs),
        plan=plan,
        budget=budget,
        saved_flops=saved,
        saved_usd=tuple(None if per_flop is None else per_flop * flops for flops in saved),
        most_usd=None if per_flop is None else per_flop * worth.most_flops,
        accelerator=accelerator,
    )
