"""Plans in the run store, and what their jobs measured in the ledger."""

from typing import TYPE_CHECKING

from steelyard.errors import ConfigError
from steelyard.plan.types import Plan
from steelyard.quantity import Check, Measurement

if TYPE_CHECKING:
    from steelyard.plan.explain import StepLog

__all__ = ["check_plan", "keep_plan"]

_FORECASTER = "plan.training"
"""Name of a training plan's forecasts in the ledger."""


def keep_plan(made: Plan) -> str:
    """Write a plan with its forecasts into the user's run store.

    Args:
        made: the plan.

    Returns:
        Id of its run.
    """
    from steelyard.runs.store import RunStore

    name = f"{made.choice['architecture']['name']} on {made.choice['cluster']}"
    with RunStore().create("plan", made.choice, seed=0, name=name) as run:
        for said in made.forecasts:
            run.forecast(said)
        return run.id


def check_plan(plan: str, log: "StepLog", machine: str) -> list[Check]:
    """Write what a planned job measured beside its forecasts, and into the ledger.

    Args:
        plan: id of the plan's run, or a unique beginning of it.
        log: measured steps.
        machine: name of the machines.

    Returns:
        The forecasts that were measured, with their measurements.

    Raises:
        ConfigError: the run is no plan.
        StoreError: there is no such run.
    """
    import numpy as np

    from steelyard.runs.ledger import Ledger
    from steelyard.runs.store import RunStore

    store = RunStore.existing()
    record = store.get(plan)
    if record.kind != "plan":
        raise ConfigError(
            f"--plan names a run of kind {record.kind}",
            hint="name one that `plan train --keep` made",
        )
    step_s = log.job_step_s
    low, high = np.quantile(step_s, (0.25, 0.75))
    measured = Measurement(
        quantity="train.step_time",
        value=float(np.median(step_s)),
        spread=float(high - low) / 1.349,
        count=len(step_s),
        machine=machine,
    )
    with store.resume(record.id) as run:
        run.measure(measured)
    checks = store.check(record.id)
    Ledger(store).record(_FORECASTER, checks, record.id)
    return checks
