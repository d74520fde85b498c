"""`steelyard data itemsets`: what occurs together in baskets, and what finding it takes."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from steelyard.cli.data.itemset_pages import (
    SHOWN,
    advice_page,
    basket_facts,
    checked,
    page_of,
    plain_check,
    rule_of,
    rules_page,
    values_of,
)
from steelyard.cli.data.scanned import kinds_of, scanned
from steelyard.cli.output import Switch, print_report
from steelyard.errors import CapacityError, ConfigError
from steelyard.runs.progress import progress
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.data.mining import Baskets, Itemsets, MiningForecast
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


def _compiling_told() -> AbstractContextManager[None]:
    """Say when the miners are compiled."""
    from steelyard.jit import compiling_told

    return compiling_told("the miners", 10.0)


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
        return scanned(sources, kinds_of(self.types))

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


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MiningOptions:
    """How itemsets are mined.

    Args:
        algorithm: auto, apriori, eclat or fpgrowth; all find the same.
        target: frequent, closed (no larger itemset is as frequent) or maximal (no larger one is
            frequent).
        max_length: most items of a frequent itemset; 0 for any.
        partition: son or pfp, for tables beyond memory: mines parts of the files, or ranges of
            items.
        memory: bound on the memory of the result.
        workers: processes.
        cluster: Ray address that parts are mined on, such as auto, with --partition; files and the
            journal's folder must be found there too.
        journal: folder that keeps finished parts; after a kill the same line goes on there.
    """

    algorithm: str = "auto"
    target: str = "frequent"
    max_length: int = 0
    partition: str = ""
    memory: str = "4 GB"
    workers: int = 1
    cluster: str = ""
    journal: Path | None = None

    def check(self, columns: BasketOptions, support: float, top: int) -> None:
        """Refuse what does not go together."""
        if bool(support) == bool(top):
            raise ConfigError(
                "mining needs a support or a number of itemsets, not both",
                hint="--support 0.01, or --top 100",
            )
        if self.workers < 1:
            raise ConfigError(f"--workers is {self.workers}, but must be 1 or more")
        if self.cluster and not self.partition:
            raise ConfigError("--cluster mines parts", hint="give --partition son or pfp too")
        is_long = columns.transaction or columns.item
        if self.partition and (top or self.target != "frequent" or self.max_length or is_long):
            raise ConfigError(
                "--partition finds all frequent itemsets of a column of lists",
                hint="leave --top, --target, --max-length, --transaction and --item out",
            )

    def in_parts(
        self, columns: BasketOptions, sources: tuple[str, ...], support: float, *, quiet: bool
    ) -> "tuple[Itemsets, Quarantine]":
        """Mine a table that need not fit in memory."""
        from steelyard.data.mining import mine_table

        table = columns.table(sources)
        with _compiling_told(), progress("mine in parts", quiet=quiet) as advance:
            return mine_table(
                table,
                support,
                how=self.partition,
                items=columns.items,
                workers=self.workers,
                cluster=self.cluster,
                journal=self.journal,
                done=lambda share: advance(share, ""),
            )

    def in_memory(self, baskets: "Baskets", support: float, top: int, *, quiet: bool) -> "Itemsets":
        """Mine baskets in memory."""
        from steelyard.data.mining import mine_top

        if top:
            with _compiling_told():
                return mine_top(baskets, top, max_length=self.max_length)
        with progress("mine", quiet=quiet) as advance:
            return _mined(
                baskets,
                support,
                algorithm=self.algorithm,
                target=self.target,
                max_length=self.max_length,
                memory_bytes=parse(self.memory, "byte"),
                workers=self.workers,
                journal=self.journal,
                done=lambda share: advance(share, ""),
            )


@app.command
def mine(
    *sources: _Sources,
    support: float = 0.0,
    top: int = 0,
    columns: BasketOptions = BasketOptions(),
    options: MiningOptions = MiningOptions(),
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
        top: how many of the most frequent itemsets are wanted, in place of a support.
        columns: which columns hold the baskets.
        options: how itemsets are mined.
        out: file for all itemsets, that ends in .parquet, .arrow or .dat.
        forecast: forecast the number and time first, and check them afterwards.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    options.check(columns, support, top)
    if out is not None:
        # A name that tells no format is refused before the work, not after it.
        _check_out(out)
    told: MiningForecast | None = None
    began_s = time.perf_counter()
    if options.partition:
        found, quarantine = options.in_parts(columns, sources, support, quiet=json)
    else:
        baskets, quarantine = columns.read(sources, quiet=json)
        told = _forecast(baskets, support, quiet=json) if forecast and support else None
        began_s = time.perf_counter()
        found = options.in_memory(baskets, support, top, quiet=json)
    took_s = time.perf_counter() - began_s
    if out is not None:
        from steelyard.data.mining import write_itemsets

        write_itemsets(found, out)
    checks = checked(told, found, took_s) if told else []
    page = page_of(found, quarantine, took_s, checks)
    values = values_of(found, quarantine, took_s)
    values["forecasts"] = [plain_check(item) for item in checks]
    print_report(page, json=json, html=report, values=values)


def _check_out(path: Path) -> None:
    """Refuse a file name that tells no format."""
    from steelyard.data.mining.itemsets import check_out

    check_out(path)


def _mined(baskets: "Baskets", support: float, **options: Any) -> "Itemsets":
    """Mine; a result that does not fit is refused with how many itemsets there would be."""
    from steelyard.data.mining import forecast_mining, mine

    try:
        with _compiling_told():
            return mine(baskets, support, **options)
    except CapacityError as error:
        # A full disk says nothing of how many there are.
        if isinstance(error.__cause__, OSError):
            raise
        told = forecast_mining(baskets, support).itemsets
        raise CapacityError(
            f"{error}; about {told.value:,.0f} frequent ones are forecast", hint=error.hint
        ) from error


def _forecast(baskets: "Baskets", support: float, *, quiet: bool) -> "MiningForecast":
    from steelyard.data.mining import forecast_mining

    with _compiling_told(), progress("forecast", quiet=quiet):
        return forecast_mining(baskets, support)


@app.command
def rules(
    *sources: _Sources,
    support: float = 0.01,
    confidence: float = 0.5,
    lift: float = 0.0,
    max_consequent: int = 1,
    by: str = "lift",
    columns: BasketOptions = BasketOptions(),
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
        columns: which columns hold the baskets.
        out: Parquet file for all rules.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.data.mining import find_rules
    from steelyard.files import atomic_path

    baskets, quarantine = columns.read(sources, quiet=json)
    began_s = time.perf_counter()
    found = find_rules(
        _mined(baskets, support), confidence, min_lift=lift, max_consequent=max_consequent
    )
    took_s = time.perf_counter() - began_s
    if out is not None:
        from pyarrow import parquet

        with atomic_path(out) as beside:
            parquet.write_table(found.to_arrow(), beside)
    rows = [rule_of(found, int(place)) for place in found.best(SHOWN, by=by)]
    values = {
        "rules": len(found),
        "baskets": found.itemsets.num_baskets,
        "set_aside": quarantine.total,
        "seconds": took_s,
        "best": rows,
    }
    facts = basket_facts(found.itemsets, quarantine, took_s)
    page = rules_page(rows, [("rules", f"{len(found):,}", ""), *facts], confidence, by)
    print_report(page, json=json, html=report, values=values)


@app.command
def advise(
    *sources: _Sources,
    support: float = 0.01,
    columns: BasketOptions = BasketOptions(),
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Forecast from a sample how many itemsets there are, and what each miner would take.

    Example: steelyard data itemsets advise retail.dat --support 0.001

    Args:
        *sources: files, patterns such as 'baskets/*.parquet', and folders.
        support: share of the baskets that must hold an itemset, above 0 and at most 1.
        columns: which columns hold the baskets.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from dataclasses import asdict

    baskets, quarantine = columns.read(sources, quiet=json)
    told = _forecast(baskets, support, quiet=json)
    values = {
        "algorithm": told.algorithm,
        "itemsets": asdict(told.itemsets),
        "memory": asdict(told.memory),
        "seconds": {name: asdict(item) for name, item in told.seconds.items()},
        "sample_rows": told.sample_rows,
        "sample_s": told.sample_s,
    }
    page = advice_page(told, support, len(baskets), quarantine.total)
    print_report(page, json=json, html=report, values=values)
