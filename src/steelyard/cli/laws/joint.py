"""The answers of `laws allocate --runs` and `laws next --runs`, from several forms together."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.cli.laws.options import LawOptions, TableOptions, dump
from steelyard.cli.laws.pages import allocation_page, right
from steelyard.errors import ConfigError
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.laws.decisions.forecasting.allocate_together import JointAllocation
    from steelyard.laws.decisions.next_cell import NextCell
    from steelyard.laws.fitting.terms import Array
    from steelyard.laws.tables.table import RunTable
    from steelyard.laws.tables.trouble import Trouble
    from steelyard.runs.report import Report

__all__ = ["answer_runs", "next_of_runs", "refuse_price", "refuse_sources"]


def refuse_sources(law: LawOptions, runs: Path | None, table: TableOptions) -> None:
    """Refuse a law and a table together, neither, and columns without a table.

    Args:
        law: which law to ask.
        runs: table of runs, or None.
        table: columns and rows of it.

    Raises:
        ConfigError: the options do not name exactly one source.
    """
    sources = [bool(law.published), law.fit is not None, runs is not None]
    if sum(sources) != 1:
        raise ConfigError(
            "give either --published NAME, --fit FILE or --runs FILE",
            hint="names of published laws: steelyard laws registry",
        )
    if runs is None and table.words():
        raise ConfigError(
            f"{table.words()[0]} reads a table of runs", hint="name the table with --runs FILE"
        )


def refuse_price(accelerator: str) -> None:
    """Refuse to price candidates where no one law plans.

    Args:
        accelerator: machine of --accelerator; empty for none.

    Raises:
        ConfigError: a machine was given.
    """
    if accelerator:
        raise ConfigError(
            "--accelerator prices a plan by one law, and --runs asks several",
            hint="fit one with: steelyard laws fit ... --out law.json, and give --fit law.json",
        )


def next_of_runs(
    file: Path, cells: "dict[str, Array]", wanted: dict[str, float], max_flops: float
) -> "NextCell":
    """Rank candidate runs by what they tell several forms.

    Args:
        file: table with columns parameters, tokens and loss.
        cells: parameters and tokens of the candidates, [m] each.
        wanted: the run whose forecast should become sharper.
        max_flops: most compute for one run.

    Returns:
        The candidates, the best buy first.
    """
    from steelyard.laws.decisions.forecasting.forecast import ensemble
    from steelyard.laws.decisions.forecasting.next_together import next_together

    found = ensemble(TableOptions().read(file), "loss")
    return next_together(found, cells, wanted, max_flops=max_flops)


def answer_runs(points: "RunTable", flops: float, asked: dict[str, Any], json: bool) -> None:
    """Split a budget by several forms and print the answer.

    Args:
        points: the runs.
        flops: budget, FLOP.
        asked: options of `allocate_together`.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.forecasting.allocate_together import allocate_together
    from steelyard.laws.decisions.forecasting.forecast import ensemble
    from steelyard.laws.tables.table_trouble import table_trouble

    seen = table_trouble(points, "loss", ("parameters", "tokens"))
    found = allocate_together(ensemble(points, "loss"), flops, source=points.source, **asked)
    trouble = tuple(dict.fromkeys((*seen, *found.allocation.trouble)))
    if json:
        value = asdict(found.allocation) | {"trouble": [asdict(item) for item in trouble]}
        forms = [asdict(item) for item in found.forms]
        print(dump(value | {"forms": forms, "left_out": found.left_out}))
    else:
        _page(found, trouble).print()


def _page(found: "JointAllocation", trouble: "tuple[Trouble, ...]") -> "Report":
    """Show the allocation and what each form alone holds best."""
    from steelyard.runs.report import Column, Section, Table

    page = allocation_page(found.allocation, trouble)
    rows: list[list[Any]] = [
        [
            item.name,
            f"{item.weight:.2f}",
            pretty(item.parameters, "parameter"),
            pretty(item.tokens, "token"),
        ]
        for item in found.forms
    ]
    caption = "The intervals above hold these and a bootstrap of the heaviest form that allows one."
    if found.left_out:
        caption += f" Without a best size: {', '.join(found.left_out)}."
    heads = [Column("form"), *right("weight", "best size", "tokens")]
    page.sections.append(Section("Each form alone", [Table(heads, rows, caption)]))
    return page
