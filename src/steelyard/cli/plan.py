"""`steelyard plan`: choose model size, layout and machines for a budget."""

from typing import TYPE_CHECKING, Any

import cyclopts

if TYPE_CHECKING:
    from steelyard.plan.types import Plan

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
    json: bool = False,
) -> None:
    """Plan the compute-optimal training run of a budget on a cluster.

    Args:
        budget: compute, such as 1e21FLOP.
        cluster: catalog name.
        law: name of a published scaling law.
        site: catalog name of the place; the cluster's own when empty.
        sequence_length: tokens per sequence.
        vocab_size: rows of the token embedding.
        deadline: longest acceptable run, such as "3 weeks".
        nodes: use at most this many nodes, 0 for all.
        price_per_hour: rent of one accelerator, such as "2.5 USD"; amortized or list price when
            empty.
        json: print the plan as JSON.
    """
    import dataclasses
    import difflib

    from steelyard import catalog, laws
    from steelyard.errors import ConfigError
    from steelyard.plan import plan_training
    from steelyard.units import parse

    if law not in laws.published:
        near = difflib.get_close_matches(law, laws.published, n=2, cutoff=0.3)
        raise ConfigError(
            f"no published law named {law!r}",
            hint=f"near names: {', '.join(near) or ', '.join(laws.published)}",
        )
    machines = catalog.cluster(cluster)
    machines = (
        dataclasses.replace(machines, num_nodes=min(nodes, machines.num_nodes))
        if nodes > 0
        else machines
    )
    allocation = laws.allocate(laws.published[law].fit(), parse(budget, "FLOP", where="--budget"))
    made = plan_training(
        allocation,
        cluster=machines,
        accelerator=catalog.accelerator(machines.accelerator),
        site=catalog.site(site or machines.site),
        sequence_length=sequence_length,
        vocab_size=vocab_size,
        deadline_s=parse(deadline, "s", where="--deadline"),
        rent_usd=parse(price_per_hour, "USD", where="--price-per-hour") if price_per_hour else None,
    )
    _print_json(made) if json else _print(made, budget)


def _print_json(made: "Plan") -> None:
    """Print a plan as JSON."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())


def _print(made: "Plan", budget: str) -> None:
    """Print a plan as tables."""
    from steelyard.runs.report import Column, Report, Section, Table, Text

    choice = {**made.choice, "architecture": made.choice["architecture"]["name"]}
    rows: list[list[Any]] = [
        [name.replace("_", " "), _plain(value)] for name, value in choice.items()
    ]
    chosen = Table(columns=[Column("setting"), Column("value", align="left")], rows=rows)
    rejected = Table(
        columns=[Column("alternative"), Column("why not")],
        rows=[[_short(item.choice), item.reason] for item in made.rejected],
    )
    sections = [
        Section("Choice", [chosen, Text(f"Bound by {made.binding_constraint}.")]),
        Section("Forecasts", [_forecasts(made)]),
        Section("Rejected", [rejected]),
    ]
    Report(f"Plan for {budget}", f"on {made.choice['cluster']}", sections).print()


def _forecasts(made: "Plan") -> Any:
    """Make the table of forecasts."""
    from steelyard.runs.report import Column, Table
    from steelyard.units import pretty

    rows: list[list[Any]] = [
        [
            item.quantity,
            pretty(item.value, item.unit),
            f"{pretty(item.low, item.unit)} .. {pretty(item.high, item.unit)}",
            item.provenance,
        ]
        for item in made.forecasts
    ]
    heads = [
        Column("quantity"),
        Column("forecast", align="right"),
        Column("80 % interval", align="right"),
        Column("provenance"),
    ]
    return Table(
        columns=heads,
        rows=rows,
        caption="; ".join(dict.fromkeys(item.source for item in made.forecasts)),
    )


def _plain(value: Any) -> str:
    """Print a setting."""
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else f"{value:,.6g}"
        if isinstance(value, float)
        else str(value)
    )


def _short(choice: dict[str, Any]) -> str:
    """Print a layout in a few words."""
    parts = (
        f"{choice['num_accelerators']} = {choice['data']} data x {choice['tensor']} tensor x "
        f"{choice['pipeline']} pipeline"
    )
    return (
        f"{parts}, ZeRO {choice['zero_stage']}, micro-batch {choice['micro_batch']}, recompute "
        f"{choice['recompute']}"
    )
