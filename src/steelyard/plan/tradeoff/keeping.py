"""Keeps each measured configuration as a run, beside all others of the store."""

import statistics
from pathlib import Path

from steelyard.plan.tradeoff.table import TradeoffTable
from steelyard.quantity import Measurement
from steelyard.runs.store import RunStore

__all__ = ["keep_runs"]

_KIND = "tradeoff"


def keep_runs(table: TradeoffTable, store: RunStore, model: Path) -> list[str]:
    """Write one run per configuration.

    Args:
        table: the measurement.
        store: where runs are kept.
        model: folder of the model.

    Returns:
        Ids of the runs, in the order of the table.
    """
    kept = []
    plan = table.measured.plan
    for item in table.points:
        name = item.configuration.name
        speeds = [cell for cell in table.measured.speed if cell.configuration == name]
        seen = {
            "eval.recall": [item.recall],
            "serve.effective_context": [item.context_tokens],
            "eval.loss": [item.loss],
            "serve.throughput": [rate for cell in speeds for rate in cell.tokens_per_s],
            "serve.ttft": [time for cell in speeds for time in cell.ttft_s],
            "serve.tpot": [time for cell in speeds for time in cell.tpot_s],
        }
        recipe = {"model": model, "configuration": item.configuration, "plan": plan}
        with store.create(_KIND, recipe, seed=plan.seeds[0], name=name) as run:
            run.measure(
                *(
                    Measurement(
                        quantity=quantity,
                        value=statistics.fmean(values),
                        spread=statistics.pstdev(values),
                        count=len(values),
                    )
                    for quantity, values in seen.items()
                )
            )
            kept.append(run.id)
    return kept
