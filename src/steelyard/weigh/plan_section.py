"""The part of the quickstart's report that says what a budget buys."""

from steelyard.plan import Plan
from steelyard.plan.types import layout_words
from steelyard.runs import Column, Facts, Section, Table, Text
from steelyard.runs.report import Cell, fact
from steelyard.units import pretty
from steelyard.weigh.quickstart import Quickstart

__all__ = ["plan_section"]

_LABELS = {
    "train.total_time": "Wall time",
    "run.cost": "Money",
    "run.energy": "Energy",
    "run.carbon": "CO2e",
    "eval.loss": "Loss",
    "plan.num_accelerators": "Accelerators",
    "train.mfu": "Model FLOPs utilization",
    "plan.memory_per_accelerator": "Memory per accelerator",
}
"""The forecasts shown as cards, and the words above them."""


def plan_section(found: Quickstart) -> Section:
    """Show what the asked budget buys on the asked cluster."""
    plan = found.plan
    # Nobody measured the cluster: the text says so before any number of it.
    said = (
        f"**{pretty(found.config.budget_flops, 'FLOP')}** on **{found.cluster.name}**, split "
        f"between size and tokens by {_law_of(plan)}. Machine times rest on published peaks and "
        f"assumed efficiencies, not on a measurement there."
    )
    said += "".join(f" {name} is left out: {why}." for name, why in plan.unknown.items())
    facts = [
        fact(item, _LABELS[item.quantity]) for item in plan.forecasts if item.quantity in _LABELS
    ]
    rejected: list[list[Cell]] = [
        [layout_words(item.choice), item.reason] for item in plan.rejected[:6]
    ]
    return Section(
        "What the budget buys",
        [
            Text(said),
            Facts(facts),
            _forecasts(plan),
            Table([Column("Recipe"), Column("Chosen")], _recipe(plan.choice)),
            Table(
                [Column("Alternative"), Column("Why it lost")],
                rejected,
                "The closest alternatives.",
            ),
        ],
    )


def _forecasts(plan: Plan) -> Table:
    """Return the table of what the plan forecasts."""
    rows: list[list[Cell]] = [
        [
            item.quantity,
            pretty(item.value, item.unit),
            f"{pretty(item.low, item.unit)} to {pretty(item.high, item.unit)}",
            item.provenance,
            item.source,
        ]
        for item in plan.forecasts
    ]
    columns = [
        Column("Quantity"),
        Column("Forecast", align="right"),
        Column("80 % interval", align="right"),
        Column("Provenance"),
        Column("Source"),
    ]
    return Table(columns, rows, f"Binding constraint: {plan.binding_constraint}.")


def _law_of(plan: Plan) -> str:
    """Name the law the plan's size and tokens come from."""
    loss = plan.forecast("eval.loss")
    return (
        "the law above"
        if loss.provenance == "fitted"
        else f"a published law, as the budget is far beyond the ladder ({loss.source})"
    )


def _recipe(choice: dict) -> list[list[Cell]]:
    """Describe the chosen settings in four lines."""
    arch = choice["architecture"]
    return [
        [
            "Model",
            f"{pretty(choice['parameters'], 'parameter')}: {arch['num_layers']} layers of width "
            f"{arch['hidden_size']:,}, "
            f"{arch['num_heads']} heads ({arch['num_kv_heads']} for keys and values), MLP "
            f"{arch['intermediate_size']:,}, "
            f"vocabulary {arch['vocab_size']:,}",
        ],
        [
            "Data",
            f"{pretty(choice['tokens'], 'token')} in {choice['steps']:,} steps of "
            f"{choice['global_batch']:,} sequences "
            f"of {choice['sequence_length']:,} tokens",
        ],
        ["Optimizer", f"peak learning rate {choice['learning_rate']:.3g}, {choice['dtype']}"],
        [
            "Layout",
            f"{choice['accelerator']} of {choice['cluster']}: {layout_words(choice)}, accumulation "
            f"{choice['accumulation']}"
            + (", sequence parallel" if choice["sequence_parallel"] else ""),
        ],
    ]
