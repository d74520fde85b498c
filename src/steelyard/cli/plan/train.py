"""`steelyard plan train`: the training run that a budget of compute, money or time buys."""

import difflib
from dataclasses import dataclass, field, fields, replace
from typing import Any

from steelyard import laws
from steelyard.catalog import Architecture
from steelyard.catalog.parameters import count_parameters
from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, forecast_table, print_json
from steelyard.cli.plan.exporting import Engine, export_text
from steelyard.cli.plan.keeping import keep_plan
from steelyard.cli.plan.no_plan import changes_table, say_why_not
from steelyard.cli.plan.space_options import SpaceOptions
from steelyard.cli.records import records_of
from steelyard.cli.why import plain_steps, why_section
from steelyard.config import to_plain
from steelyard.cost import Layout, model_flops_per_token
from steelyard.errors import ConfigError
from steelyard.laws.fitting.fitted import Fit
from steelyard.plan import Plan, plan_training
from steelyard.plan.changes import NoPlanError
from steelyard.plan.law_why import law_chain
from steelyard.plan.layout_space import LayoutSpace
from steelyard.plan.machines import Machines, machines_of
from steelyard.plan.shapes import model_of
from steelyard.plan.spend import plan_within, read_budget
from steelyard.plan.types import AllocationLike, layout_words
from steelyard.quantity import Provenance
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.units import parse, pretty

__all__ = ["check_one", "train"]


def train(
    *,
    budget: str,
    cluster: str = "",
    accelerator: str = "",
    count: int = 0,
    model: str = "",
    law: str = "besiroglu2024",
    site: str = "",
    dtype: str = "",
    sequence_length: int = 2048,
    vocab_size: int = 32768,
    deadline: str = "1 year",
    nodes: int = 0,
    price_per_hour: str = "",
    why: Switch = False,
    export: Engine | None = None,
    keep: Switch = False,
    space: SpaceOptions | None = None,
    json: Switch = False,
) -> int:
    """Plan the training run that a budget of compute, money or time buys.

    Money or carbon whose price or intensity is unknown are left out with a note, null in JSON.
    Layouts are searched as `plan layout` does; an option that is given sets its axis.

    Example: steelyard plan train --budget '$5,000' --accelerator H100-SXM5-80GB --count 8

    Args:
        budget: what may be used, such as 1e21FLOP, '$5,000' or '3 days'.
        cluster: catalog name of the cluster, or this-machine.
        accelerator: catalog name of an accelerator to rent, in place of a cluster.
        count: most accelerators to use; all of a cluster and 8 of an accelerator when 0.
        model: catalog name of the model, or its size, such as 1B; the size that the law finds best
            when empty.
        law: name of a published scaling law.
        site: catalog name of the place; the cluster's own when empty, and the world's average where
            that is unknown.
        dtype: number format of the products; bf16 on published accelerators and the fastest one on
            this machine when empty.
        sequence_length: tokens per sequence.
        vocab_size: rows of the token embedding.
        deadline: longest acceptable run, such as "3 weeks".
        nodes: most nodes of the cluster to use, 0 for all.
        price_per_hour: rent of one accelerator, such as "2.5 USD"; amortized or list price when
            empty.
        why: print the chain of formulas behind the forecasts, with the numbers put in.
        export: print what an engine is started with, in place of the plan: a command for megatron
            or torchtitan, a recipe of this package (own), or a task for skypilot; only layouts that
            it runs are searched.
        keep: write the plan into the run store, where `plan explain --plan` checks its forecasts.
        space: axes of the layouts; one that is not given is searched.
        json: print the plan as JSON.

    Returns:
        Exit status: 1 where no plan is possible; the nearest changes that make one are said.
    """
    check_one(cluster, accelerator)
    named = {"cluster": cluster, "accelerator": accelerator, "site": site, "dtype": dtype}
    machines = machines_of(**named, count=count, nodes=nodes)
    sizes = {"vocab_size": vocab_size, "sequence_length": sequence_length}
    architecture, near = model_of(model, **sizes) if model else (None, [])
    planner = _Planner(
        law=_published(law),
        architecture=architecture,
        machines=machines,
        sizes=sizes,
        deadline_s=parse(deadline, "s", where="--deadline"),
        rent_usd=_rent(price_per_hour),
        prefers_rent=bool(accelerator),
        explains=why,
        space=(space or SpaceOptions()).space(export=export),
    )
    try:
        made = plan_within(read_budget(budget, where="--budget"), planner.plan)
    except NoPlanError as error:
        return say_why_not(error, machines, json=json)
    run_id = keep_plan(made) if keep else ""
    notes = [*machines.notes, *_named(near, run_id)]
    if export:
        print(export_text(made, export, per_node=machines.cluster.accelerators_per_node), end="")
    elif json:
        print_json(_plain_plan(planner.repriced(made), notes, run_id))
    else:
        _print(planner.repriced(made), budget, notes, model, machines)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """Plans of any compute on the same machines.

    An accelerator that is named apart from a cluster is rented, where a rent is known.
    """

    law: Fit
    architecture: Architecture | None
    machines: Machines
    sizes: dict[str, int]
    deadline_s: float
    rent_usd: float | None
    prefers_rent: bool
    explains: bool
    space: LayoutSpace
    asked: list[tuple[dict[str, Any], float]] = field(default_factory=list)

    def plan(self, flops: float, *, reprices: bool = False) -> Plan:
        """Plan the run of a compute."""
        length = self.sizes["sequence_length"]
        allocation = _allocation(self.law, self.architecture, flops, length)
        made = _plan(
            allocation,
            self.machines,
            **self.sizes,
            architecture=self.architecture,
            deadline_s=self.deadline_s,
            rent_usd=self.rent_usd,
            prefers_rent=self.prefers_rent,
            explains=self.explains,
            reprices=reprices,
            space=self.space,
        )
        self.asked.append((made.choice, flops))
        if not self.explains:
            return made
        return replace(made, why=[*law_chain(self.law, allocation, flops), *made.why])

    def repriced(self, made: Plan) -> Plan:
        """Return a plan with what would help most: only the one that is shown is priced again."""
        # The compute that was asked for: whole steps make a little more of it.
        flops = next(flops for choice, flops in self.asked if choice is made.choice)
        return replace(made, helps=self.plan(flops, reprices=True).helps)


def _rent(price_per_hour: str) -> float | None:
    """Read the rent of an accelerator, None where none was given."""
    return parse(price_per_hour, "USD", where="--price-per-hour") if price_per_hour else None


def _named(near: list[str], run_id: str) -> list[str]:
    """Say which models of the catalog have about the size that was asked for, and what was kept."""
    notes = [f"model: a shape of that size; named ones near it: {', '.join(near)}"] if near else []
    return notes + ([f"kept as run {run_id}"] if run_id else [])


def check_one(cluster: str, accelerator: str) -> None:
    """Refuse both of cluster and accelerator, and neither, in the words of the flags.

    Args:
        cluster: value of --cluster.
        accelerator: value of --accelerator.

    Raises:
        ConfigError: both are given, or none.
    """
    if bool(cluster) == bool(accelerator):
        raise ConfigError(
            "give either --cluster or --accelerator",
            hint="such as --cluster Frontier, --accelerator H100-SXM5-80GB or "
            "--accelerator this-machine",
        )


def _published(law: str) -> Fit:
    """Return a published law; an unknown name is refused with those near it."""
    if law not in laws.published:
        near = difflib.get_close_matches(law, laws.published, n=2, cutoff=0.3)
        raise ConfigError(
            f"no published law named {law!r}",
            hint=f"near names: {', '.join(near) or ', '.join(laws.published)}",
        )
    return laws.published[law].fit()


@dataclass(frozen=True, slots=True)
class _SizedRun:
    """What a law says of a model of given size.

    Attributes:
        parameters: parameters of the model.
        tokens: training tokens that the compute buys.
        loss: loss in nats per token, with its interval.
        source: source of the law.
        provenance: how the law came about.
    """

    parameters: float
    tokens: float
    loss: Any
    source: str
    provenance: Provenance


def _allocation(
    fit: Fit, arch: Architecture | None, flops: float, sequence_length: int
) -> AllocationLike:
    """Spend a compute on a model that is given, or on the one that the law finds best."""
    return _at_size(fit, arch, flops, sequence_length) if arch else laws.allocate(fit, flops)


def _at_size(fit: Fit, arch: Architecture, flops: float, sequence_length: int) -> _SizedRun:
    """Spend a compute on one model."""
    size = float(count_parameters(arch).total)
    tokens = flops / model_flops_per_token(arch, sequence_length)
    predicted = fit.predict({"parameters": size, "tokens": tokens}, extrapolate=True)
    return _SizedRun(size, tokens, predicted.first, fit.source, fit.provenance)


def _plan(allocation: AllocationLike, machines: Machines, **how: Any) -> Plan:
    """Plan a run on the machines; a calibrated one takes the number format that is faster here."""
    rooflines = machines.calibrated or (None,)
    plans = [
        plan_training(
            allocation,
            cluster=machines.cluster,
            accelerator=machines.accelerator,
            site=machines.site,
            dtype=roofline.dtype if roofline else machines.dtype,
            machine=roofline,
            **how,
        )
        for roofline in rooflines
    ]
    return min(plans, key=lambda made: made.forecast("train.total_time").value)


def _plain_plan(made: Plan, notes: list[str], run_id: str) -> dict[str, Any]:
    """Return a plan as JSON values; quantities without a forecast are null, with the reason."""
    values = to_plain(made) | {"why": plain_steps(made.why), "assumptions": notes}
    values |= {"run": run_id} if run_id else {}
    values["forecasts"] += [
        {"quantity": name, "value": None, "low": None, "high": None, "source": reason}
        for name, reason in made.unknown.items()
    ]
    return values


def _say_next(made: Plan, model: str, machines: Machines) -> None:
    """Say what to ask after a plan: who does it for less, or the whole loop on this machine."""
    if machines.calibrated:
        say_next("quickstart")
        return
    # The name of a shape that the plan made means nothing to the catalog: its size does.
    name = model or pretty(made.choice["parameters"], "parameter").removesuffix(" parameters")
    tokens = f"{made.choice['tokens']:.3g}"
    count = made.choice["num_accelerators"]
    say_next("plan", "which", "--model", name, "--tokens", tokens, "--count", count)


def _print(made: Plan, budget: str, assumptions: list[str], model: str, machines: Machines) -> None:
    """Print a plan as tables, and what to ask next."""
    # What no layout of the plan's kind uses goes without saying.
    usual = {item.name: item.default for item in fields(Layout)}
    told = {name: value for name, value in made.choice.items() if _tells(name, value, usual)}
    choice = {**told, "architecture": made.choice["architecture"]["name"]}
    rows: list[list[Cell]] = [
        [name.replace("_", " "), _plain(value)] for name, value in choice.items()
    ]
    chosen = Table(columns=[Column("setting"), Column("value", align="left")], rows=rows)
    rejected = Table(
        columns=[Column("alternative"), Column("why not")],
        rows=[[layout_words(item.choice), item.reason] for item in made.rejected],
    )
    notes = [Text(f"{name} is left out: {why}.") for name, why in made.unknown.items()]
    notes += [Text(f"{note}.") for note in assumptions]
    # A published law was fitted elsewhere: it has no record here.
    records = records_of(THIS_MACHINE, "train") if machines.calibrated else {}
    sections = [
        Section("Choice", [chosen, Text(f"Bound by {made.binding_constraint}.")]),
        Section("Forecasts", [forecast_table(made.forecasts, records), *notes]),
    ]
    if made.helps:
        times = [f"{pretty(item.duration_s, 's')} ({-item.saved:+.0%})" for item in made.helps]
        sections.append(
            Section("What would help most", [changes_table("one thing better", made.helps, times)])
        )
    sections.append(Section("Rejected", [rejected]))
    if made.why:
        sections.append(why_section(made.why))
    Report(f"Plan for {read_budget(budget)}", f"on {made.choice['cluster']}", sections).print()
    _say_next(made, model, machines)


_ALWAYS = ("data", "tensor", "pipeline", "zero_stage", "recompute", "sequence_parallel")


def _tells(name: str, value: Any, usual: dict[str, Any]) -> bool:
    """Return whether a setting is shown: always, or where it is not as usual."""
    return name in _ALWAYS or name not in usual or value != usual[name]


def _plain(value: Any) -> str:
    """Return a setting as people write it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
