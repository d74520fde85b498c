"""`steelyard data itemsets`: what occurs together in baskets, and what finding it takes."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from steelyard.cli.data.table import _kinds, _without_arrow
from steelyard.cli.output import Switch, forecast_table, print_report
from steelyard.errors import CapacityError, ConfigError
from steelyard.jit import compiling_told
from steelyard.quantity import Check, Measurement
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Checks, Column, Facts, Report, Section, Table
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.data.mining import AssociationRules, Baskets, Itemsets, MiningForecast
    from steelyard.data.table import DataTable, Quarantine

__all__ = ["app"]

app = cyclopts.App(
    name="itemsets",
    help="Find what occurs together in baskets, rules between items, and what that takes.",
)
_Sources = Annotated[
    str,
    cyclopts.Parameter(help="Files, patterns such as 'baskets/*.parquet', and folders."),
]
_SHOWN = 20
_COMPILED = ("the miners", 10.0)


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BasketOptions:
    """Which columns hold the baskets.

    Args:
        items: column of lists, one basket a row; not needed where there is only one such column,
            as in .dat files with a line of numbers for each basket.
        transaction: column of a long table that says which basket a row belongs to.
        item: column of a long table with the item of the row.
        types: kinds of columns of text files, such as "item=text".
    """

    items: str = ""
    transaction: str = ""
    item: str = ""
    types: str = ""

    def table(self, sources: tuple[str, ...]) -> "DataTable":
        """Look at the files."""
        if not sources:
            raise ConfigError(
                "no files are given", hint="steelyard data itemsets mine baskets.dat --support 0.01"
            )
        try:
            from steelyard.data.table import DataTable

            return DataTable.scan(*sources, types=_kinds(self.types))
        except ImportError as error:
            raise _without_arrow() from error

    def read(self, sources: tuple[str, ...], *, quiet: bool) -> "tuple[Baskets, Quarantine]":
        """Read the baskets."""
        # The table comes first: it is what says that a library is missing.
        table = self.table(sources)
        from steelyard.data.mining import read_baskets

        with progress("read the baskets", quiet=quiet):
            return read_baskets(
                table,
                items=self.items,
                transaction=self.transaction,
                item=self.item,
            )


@app.command
def mine(
    *sources: _Sources,
    support: float = 0.0,
    top: int = 0,
    options: BasketOptions = BasketOptions(),
    algorithm: str = "auto",
    target: str = "frequent",
    max_length: int = 0,
    partition: str = "",
    memory: str = "4 GB",
    workers: int = 1,
    journal: Path | None = None,
    out: Path | None = None,
    forecast: Switch = False,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Find the itemsets that enough baskets hold.

    Example: steelyard data itemsets mine retail.dat --support 0.01 --out itemsets.parquet

    Args:
        *sources: files, patterns such as 'baskets/*.parquet', and folders.
        support: share of the baskets that must hold an itemset, above 0 and at most 1.
        top: in place of a support, how many of the most frequent itemsets are wanted.
        options: which columns hold the baskets.
        algorithm: auto, apriori, eclat or fpgrowth; all find the same.
        target: frequent, closed (no larger itemset is as frequent) or maximal (no larger one is
            frequent).
        max_length: most items of a frequent itemset; 0 for any.
        partition: son or pfp, for tables beyond memory: mines parts of the files, or ranges of
            items.
        memory: bound on the memory of the result.
        workers: processes.
        journal: folder that keeps finished parts; after a kill the same line goes on there.
        out: file for all itemsets, that ends in .parquet, .arrow or .dat.
        forecast: forecast the number, time and memory first, and check them afterwards.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.data.mining import mine_table, mine_top, write_itemsets

    if bool(support) == bool(top):
        raise ConfigError(
            "mining needs a support or a number of itemsets, not both",
            hint="--support 0.01, or --top 100",
        )
    _check_workers(workers)
    told: MiningForecast | None = None
    began_s = time.perf_counter()
    if partition:
        _refuse_partitioned(options, top=top, target=target, max_length=max_length)
        with compiling_told(*_COMPILED), progress("mine in parts", quiet=json) as advance:
            found, quarantine = mine_table(
                options.table(sources),
                support,
                how=partition,
                items=options.items,
                workers=workers,
                journal=journal,
                done=lambda share: advance(share, ""),
            )
    else:
        baskets, quarantine = options.read(sources, quiet=json)
        told = _forecast(baskets, support, quiet=json) if forecast and support else None
        began_s = time.perf_counter()
        if top:
            with compiling_told(*_COMPILED):
                found = mine_top(baskets, top, max_length=max_length)
        else:
            with progress("mine", quiet=json) as advance:
                found = _mined(
                    baskets,
                    support,
                    algorithm=algorithm,
                    target=target,
                    max_length=max_length,
                    memory_bytes=parse(memory, "byte"),
                    workers=workers,
                    journal=journal,
                    done=lambda share: advance(share, ""),
                )
    took_s = time.perf_counter() - began_s
    if out is not None:
        write_itemsets(found, out)
    checks = _checked(told, found, took_s) if told else []
    page = _page(found, quarantine, took_s, checks)
    values = _values(found, quarantine, took_s)
    values["forecasts"] = [_plain_check(item) for item in checks]
    print_report(page, json=json, html=report, values=values)


def _check_workers(workers: int) -> None:
    """Refuse fewer than one."""
    if workers < 1:
        raise ConfigError(f"--workers is {workers}, but must be 1 or more")


def _refuse_partitioned(
    options: BasketOptions, *, top: int, target: str, max_length: int
) -> None:
    """Refuse what mining in parts does not do."""
    if top or target != "frequent" or max_length or options.transaction or options.item:
        raise ConfigError(
            "--partition finds all frequent itemsets of a column of lists",
            hint="leave --top, --target, --max-length, --transaction and --item out",
        )


def _mined(baskets: "Baskets", support: float, **options: Any) -> "Itemsets":
    """Mine; a result that does not fit is refused with how many itemsets there would be."""
    from steelyard.data.mining import forecast_mining, mine

    try:
        with compiling_told(*_COMPILED):
            return mine(baskets, support, **options)
    except CapacityError as error:
        told = forecast_mining(baskets, support).itemsets
        raise CapacityError(
            f"{error}; about {told.value:,.0f} frequent ones are forecast", hint=error.hint
        ) from error


def _forecast(baskets: "Baskets", support: float, *, quiet: bool) -> "MiningForecast":
    from steelyard.data.mining import forecast_mining

    with compiling_told(*_COMPILED), progress("forecast", quiet=quiet):
        return forecast_mining(baskets, support)


def _checked(told: "MiningForecast", found: "Itemsets", took_s: float) -> list[Check]:
    """Set forecasts beside what came out."""
    measured = [("data.itemsets", float(len(found)), told.itemsets)]
    measured.append(("data.mining_time", took_s, told.seconds["eclat"]))
    if found.target != "frequent":
        measured = measured[1:]
    return [
        Check(forecast, Measurement(quantity=name, value=value))
        for name, value, forecast in measured
    ]


def _plain_check(check: Check) -> dict[str, Any]:
    """Return a check for programs."""
    forecast = check.forecast
    return {
        "quantity": forecast.quantity,
        "forecast": forecast.value,
        "low": forecast.low,
        "high": forecast.high,
        "measured": check.measurement.value,
        "covered": check.covered,
    }


@app.command
def rules(
    *sources: _Sources,
    support: float = 0.01,
    confidence: float = 0.5,
    lift: float = 0.0,
    max_consequent: int = 1,
    by: str = "lift",
    options: BasketOptions = BasketOptions(),
    out: Path | None = None,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Find rules such as bread, butter -> milk, with what they are worth.

    Example: steelyard data itemsets rules retail.dat --support 0.005 --confidence 0.6

    Args:
        *sources: files, patterns such as 'baskets/*.parquet', and folders.
        support: share of the baskets that must hold both sides, above 0 and at most 1.
        confidence: least share of the baskets with the left side that hold the right one.
        lift: least lift: confidence over the share of all baskets that hold the right side.
        max_consequent: most items of the right side.
        by: measure that orders the rules shown: support, confidence, lift, leverage or conviction.
        options: which columns hold the baskets.
        out: Parquet file for all rules.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.data.mining import find_rules
    from steelyard.files import atomic_path

    baskets, quarantine = options.read(sources, quiet=json)
    began_s = time.perf_counter()
    found = find_rules(
        _mined(baskets, support), confidence, min_lift=lift, max_consequent=max_consequent
    )
    took_s = time.perf_counter() - began_s
    if out is not None:
        from pyarrow import parquet

        with atomic_path(out) as beside:
            parquet.write_table(found.to_arrow(), beside)
    best = found.best(_SHOWN, by=by)
    facts = [
        ("rules", f"{len(found):,}", ""),
        ("itemsets", f"{len(found.itemsets):,}", ""),
        *_basket_facts(found.itemsets, quarantine, took_s),
    ]
    rows = [_rule(found, int(place)) for place in best]
    columns = [Column("if a basket holds"), Column("it also holds"), *map(Column, _MEASURES)]
    sections = [
        Section("Rules", [Facts(facts)]),
        Section(f"Best by {by}", [Table(columns, [_rule_cells(row) for row in rows])]),
    ]
    values = {
        "rules": len(found),
        "baskets": found.itemsets.num_baskets,
        "set_aside": quarantine.total,
        "seconds": took_s,
        "best": rows,
    }
    page = Report("Association rules", f"confidence of {confidence:g} or more", sections)
    print_report(page, json=json, html=report, values=values)


_MEASURES = ("support", "confidence", "lift", "leverage", "conviction")


def _rule(found: "AssociationRules", place: int) -> dict[str, Any]:
    """Return a rule with its measures; an infinite conviction is missing."""
    left, right = found.antecedents[place], found.consequents[place]
    row: dict[str, Any] = {
        "antecedent": list(found.itemsets[int(left)][0]),
        "consequent": list(found.itemsets[int(right)][0]),
    }
    for name in _MEASURES:
        value = float(getattr(found, name)[place])
        row[name] = value if value < float("inf") else None
    return row


def _rule_cells(row: dict[str, Any]) -> list[Cell]:
    sides = [_told(row["antecedent"]), _told(row["consequent"])]
    numbers = ["never fails" if row[name] is None else f"{row[name]:.4g}" for name in _MEASURES]
    return [*sides, *numbers]


@app.command
def advise(
    *sources: _Sources,
    support: float = 0.01,
    options: BasketOptions = BasketOptions(),
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Forecast from a sample how many itemsets there are, and what each miner would take.

    Example: steelyard data itemsets advise retail.dat --support 0.001

    Args:
        *sources: files, patterns such as 'baskets/*.parquet', and folders.
        support: share of the baskets that must hold an itemset, above 0 and at most 1.
        options: which columns hold the baskets.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from dataclasses import asdict

    baskets, quarantine = options.read(sources, quiet=json)
    told = _forecast(baskets, support, quiet=json)
    facts = Facts(
        [
            ("miner to take", told.algorithm, ""),
            ("baskets", f"{len(baskets):,}", ""),
            ("set aside", f"{quarantine.total:,}", ""),
            ("looked at", f"{told.sample_rows:,} baskets, {told.sample_s:.2f} s", ""),
        ]
    )
    rows: list[list[Cell]] = [
        [name, f"{item.value:.3g}", f"{item.low:.3g} to {item.high:.3g}"]
        for name, item in sorted(told.seconds.items(), key=lambda pair: pair[1].value)
    ]
    heads = [Column("miner"), Column("seconds", align="right"), Column("80 % interval")]
    sections = [
        Section("Advice", [facts]),
        Section("Result", [forecast_table([told.itemsets, told.memory])]),
        Section("Time by miner", [Table(heads, rows)]),
    ]
    values = {
        "algorithm": told.algorithm,
        "itemsets": asdict(told.itemsets),
        "memory": asdict(told.memory),
        "seconds": {name: asdict(item) for name, item in told.seconds.items()},
        "sample_rows": told.sample_rows,
        "sample_s": told.sample_s,
    }
    page = Report("Mining forecast", f"support {support:g}", sections)
    print_report(page, json=json, html=report, values=values)


def _basket_facts(
    found: "Itemsets", quarantine: "Quarantine", took_s: float
) -> list[tuple[str, str, str]]:
    """Return what is known of the baskets."""
    return [
        ("baskets", f"{found.num_baskets:,}", ""),
        ("set aside", f"{quarantine.total:,}", ""),
        ("held by at least", f"{found.min_count:,} baskets", ""),
        ("seconds", f"{took_s:.3g}", ""),
    ]


def _page(
    found: "Itemsets", quarantine: "Quarantine", took_s: float, checks: list[Check]
) -> Report:
    """Make the page."""
    import numpy as np

    facts = Facts(
        [
            (f"{found.target} itemsets", f"{len(found):,}", ""),
            ("longest", f"{found.longest} items", ""),
            *_basket_facts(found, quarantine, took_s),
        ]
    )
    lengths = np.bincount(found.lengths, minlength=1)
    counts: list[list[Cell]] = [
        [place, int(count)] for place, count in enumerate(lengths.tolist()) if count
    ]
    sections = [
        Section("Itemsets", [facts]),
        Section("By length", [Table([Column("items"), Column("itemsets")], counts)]),
        Section("Most frequent of two items or more", [_frequent(found)]),
    ]
    if checks:
        sections.append(Section("Forecast and measured", [Checks(checks)]))
    return Report("Frequent itemsets", f"of {found.num_baskets:,} baskets", sections)


def _frequent(found: "Itemsets") -> Table:
    """List the most frequent itemsets."""
    best = found.most_frequent(_SHOWN, least_items=2)
    rows: list[list[Cell]] = []
    for place in range(len(best)):
        items, count = best[place]
        rows.append([_told(items), f"{count:,}", f"{count / max(found.num_baskets, 1):.2%}"])
    heads = [Column("items"), Column("baskets", align="right"), Column("share", align="right")]
    return Table(heads, rows)


def _told(items: Any) -> str:
    """Return items in words."""
    return ", ".join(map(str, items))


def _values(found: "Itemsets", quarantine: "Quarantine", took_s: float) -> dict[str, Any]:
    """Return all figures, for programs."""
    best = found.most_frequent(_SHOWN)
    return {
        "itemsets": len(found),
        "target": found.target,
        "longest": found.longest,
        "baskets": found.num_baskets,
        "min_count": found.min_count,
        "set_aside": quarantine.total,
        "problems": [row._asdict() for row in quarantine.rows[:100]],
        "seconds": took_s,
        "most_frequent": [
            {"items": list(best[place][0]), "support": best[place][1]} for place in range(len(best))
        ],
    }
