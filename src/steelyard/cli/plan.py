"""`steelyard plan`: choose model size, layout and machines for a budget."""

import dataclasses
import difflib
from typing import Any

import cyclopts

from steelyard import catalog, laws
from steelyard.cli.output import Switch, forecast_table, print_json
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.plan import Plan, plan_training
from steelyard.plan.types import layout_words
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.units import parse

app = cyclopts.App(name="plan", help="Choose model size, layout and machines for a budget.")


@app.command
def train(
    *,
    budget: str,
    cluster: str,
    law: str = "besiroglu2024",
    site: str = "",
    sequence_length: int = 2048,
    vocab_size: int = 32768,
    deadline: str = "1 year",
    nodes: int = 0,
    price_per_hour: str = "",
    json: Switch = False,
) -> None:
    """Plan the compute-optimal training run of a budget on a cluster.

    Money or carbon whose price or intensity is unknown are left out with a note, null in JSON.

    Args:
        budget: training compute, such as 1e21FLOP.
        cluster: catalog name of the cluster.
        law: name of a published scaling law.
        site: catalog name of the place; the cluster's own when empty, and the world's average where
            that is unknown.
        sequence_length: tokens per sequence.
        vocab_size: rows of the token embedding.
        deadline: longest acceptable run, such as "3 weeks".
        nodes: most nodes to use, 0 for all.
        price_per_hour: rent of one accelerator, such as "2.5 USD"; amortized or list price when
            empty.
        json: print the plan as JSON.
    """
    if law not in laws.published:
        near = difflib.get_close_matches(law, laws.published, n=2, cutoff=0.3)
        raise ConfigError(
            f"no published law named {law!r}",
            hint=f"near names: {', '.join(near) or ', '.join(laws.published)}",
        )
    machines = catalog.cluster(cluster)
    if nodes > 0:
        machines = dataclasses.replace(machines, num_nodes=min(nodes, machines.num_nodes))
    place = catalog.site(site) if site else catalog.site_of(machines)
    allocation = laws.allocate(laws.published[law].fit(), parse(budget, "FLOP", where="--budget"))
    made = plan_training(
        allocation,
        cluster=machines,
        accelerator=catalog.accelerator(machines.accelerator),
        site=place,
        sequence_length=sequence_length,
        vocab_size=vocab_size,
        deadline_s=parse(deadline, "s", where="--deadline"),
        rent_usd=parse(price_per_hour, "USD", where="--price-per-hour") if price_per_hour else None,
    )
    if json:
        print_json(_plain_plan(made))
    else:
        _print(made, budget)


def _plain_plan(made: Plan) -> dict[str, Any]:
    """Return a plan as JSON values; quantities without a forecast are null, with the reason."""
    values = to_plain(made)
    values["forecasts"] += [
        {"quantity": name, "value": None, "low": None, "high": None, "source": reason}
        for name, reason in made.unknown.items()
    ]
    return values


def _print(made: Plan, budget: str) -> None:
    """Print a plan as tables."""
    choice = {**made.choice, "architecture": made.choice["architecture"]["name"]}
    rows: list[list[Cell]] = [
        [name.replace("_", " "), _plain(value)] for name, value in choice.items()
    ]
    chosen = Table(columns=[Column("setting"), Column("value", align="left")], rows=rows)
    rejected = Table(
        columns=[Column("alternative"), Column("why not")],
        rows=[[layout_words(item.choice), item.reason] for item in made.rejected],
    )
    notes = [Text(f"{name} is left out: {why}.") for name, why in made.unknown.items()]
    sections = [
        Section("Choice", [chosen, Text(f"Bound by {made.binding_constraint}.")]),
        Section("Forecasts", [forecast_table(made.forecasts), *notes]),
        Section("Rejected", [rejected]),
    ]
    Report(f"Plan for {budget}", f"on {made.choice['cluster']}", sections).print()


def _plain(value: Any) -> str:
    """Return a setting as people write it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
