"""What a pass over a table takes: forecast before it, checked after it, kept in the ledger."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steelyard.errors import CatalogError, StoreError
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Checks, Column, Section, Table
from steelyard.units import pretty, pretty_duration

if TYPE_CHECKING:
    from steelyard.catalog import StorageTier
    from steelyard.catalog.scan_rates import ScanRates
    from steelyard.cost.scan import FileWork
    from steelyard.data.table import DataTable
    from steelyard.quantity import Check, Forecast

__all__ = [
    "PassMeter",
    "cost_sections",
    "forecast_pass",
    "keep_checks",
    "plain_forecasts",
    "tier_of",
]


def tier_of(table: "DataTable", storage: str) -> "StorageTier | None":
    """Return where the files of a table lie.

    Args:
        table: the table.
        storage: name of a tier; empty for the one that the first address leads to.

    Returns:
        The tier; None for files of this machine, which are taken to be in its cache.

    Raises:
        CatalogError: there is no such tier.
    """
    from steelyard import catalog

    if storage:
        return catalog.storage_tier(storage)
    scheme, is_address, _ = table.files[0].path.partition("://")
    tiers = map(catalog.storage_tier, catalog.names("storage"))
    return next((item for item in tiers if scheme in item.schemes), None) if is_address else None


def _rates(*, quiet: bool) -> "ScanRates":
    """Return this machine's rates, measured now where they never were."""
    from steelyard.catalog.scan_rates import load_scan_rates, store_scan_rates

    found = load_scan_rates()
    if found is None:
        from steelyard.data.table.rates import measure_scan_rates

        with progress("measuring this machine, once", quiet=quiet) as advance:
            found = measure_scan_rates(lambda text, share: advance(share, text))
        store_scan_rates(found)
    return found


def forecast_pass(
    table: "DataTable", storage: str, workers: int, *, leaves: bool, quiet: bool
) -> "tuple[list[FileWork], list[Forecast]]":
    """Return what a profile of a table takes.

    Args:
        table: the table.
        storage: name of a tier; empty for where the files lie.
        workers: processes.
        leaves: whether the bytes leave the network of the storage's vendor.
        quiet: show no progress.

    Returns:
        Amounts, and forecasts of bytes, time, memory and dollars.

    Raises:
        CatalogError: there is no such tier.
    """
    from steelyard.cores import core_share
    from steelyard.cost.scan import forecast_scan
    from steelyard.data.table.work import scan_work

    tier = tier_of(table, storage)
    works = scan_work(table)
    rates = _rates(quiet=quiet)
    said = forecast_scan(
        works,
        rates,
        tier=tier,
        leaves=leaves,
        workers=workers,
        # What else runs now will take its part of the cores from the pass too.
        core_share=core_share(),
        past=_past(workers),
    )
    return works, said


def _past(workers: int) -> "list[Check]":
    """Return how earlier forecasts came out here."""
    from steelyard.runs.ledger import Ledger
    from steelyard.runs.store import RunStore

    try:
        return [item for _, item in Ledger(RunStore.existing()).checks(_forecaster(workers))]
    except StoreError:
        return []


def _forecaster(workers: int) -> str:
    """Return the name in the ledger: several processes are another forecast than one."""
    from steelyard.cost.scan import FORECASTER

    return FORECASTER if workers == 1 else f"{FORECASTER}.parallel"


class PassMeter:
    """Measures a pass from its making on."""

    def __init__(self) -> None:
        """Load what a pass loads once, then take time and memory."""
        from steelyard.data.table.rates import load_kernels
        from steelyard.resident import anonymous_bytes, reset_peak

        load_kernels()
        reset_peak()
        self._held, self._began_s = anonymous_bytes(), time.perf_counter()

    @property
    def took_s(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self._began_s

    def checks(
        self, said: "Sequence[Forecast]", num_bytes: int, *, workers: int, is_usual: bool
    ) -> "list[Check]":
        """Return forecasts beside what was measured.

        Args:
            said: what was forecast.
            num_bytes: bytes that were read.
            workers: processes; the memory of several is not measured.
            is_usual: whether time and memory are those that were forecast; bytes always are.

        Returns:
            Those that were measured.
        """
        from steelyard.quantity import Measurement, check
        from steelyard.resident import anonymous_peak_bytes

        now = time.time()
        found = {"scan.bytes_read": float(num_bytes)}
        if is_usual:
            found["scan.duration"] = self.took_s
        if workers == 1 and is_usual:
            found["scan.peak_memory"] = float(max(anonymous_peak_bytes() - self._held, 1))
        measured = [
            Measurement(quantity=name, value=value, time_s=now) for name, value in found.items()
        ]
        return check(list(said), measured)


def keep_checks(checks: "list[Check]", workers: int) -> None:
    """Write checks into the user's ledger.

    Args:
        checks: forecasts beside what was measured.
        workers: processes of the pass.
    """
    from steelyard.runs.ledger import Ledger
    from steelyard.runs.store import RunStore

    if checks:
        Ledger(RunStore()).record(_forecaster(workers), checks)


def cost_sections(
    table: "DataTable",
    works: "Sequence[FileWork]",
    said: "Sequence[Forecast]",
    checks: "Sequence[Check]" = (),
) -> list[Section]:
    """Return what the pass was forecast to take and took, and what storage would cost.

    Args:
        table: the table.
        works: amounts of the pass.
        said: forecasts.
        checks: those that were measured; empty before the pass.

    Returns:
        Two sections.
    """
    from steelyard.cli.output import forecast_table

    block = Checks(list(checks)) if checks else forecast_table(said)
    title = "Forecast and measured" if checks else "One pass would take"
    return [
        Section(title, [block]),
        Section("In storage it would cost", [_prices(table, works)]),
    ]


def _prices(table: "DataTable", works: "Sequence[FileWork]") -> Table:
    """List what keeping and reading the files costs in each tier."""
    from steelyard import catalog
    from steelyard.catalog.stored import THIS_MACHINE
    from steelyard.cost.scan import tier_price

    rows: list[list[Cell]] = []
    for name in catalog.names("storage"):
        if name == THIS_MACHINE:
            continue
        try:
            tier = catalog.storage_tier(name)
        except CatalogError:
            # A broken record of the user's own is told of by the verbs of the catalog.
            continue
        price = tier_price(works, table.num_bytes, tier)
        rows.append(
            [
                price.tier,
                pretty(price.usd_per_month, "USD"),
                pretty(price.scan_usd, "USD"),
                pretty(price.out_usd, "USD"),
                pretty_duration(price.storage_s),
                tier.price_date,
            ]
        )
    heads = ("a month", "a pass within", "a pass from outside", "one connection takes")
    columns = [Column("storage"), *(Column(words, align="right") for words in heads)]
    return Table(
        [*columns, Column("prices of", rank=1)],
        rows,
        caption="list prices of one region; within and outside of the vendor's network",
    )


def plain_forecasts(said: "Sequence[Forecast]") -> list[dict[str, Any]]:
    """Return forecasts for programs."""
    from steelyard.config import to_plain

    return [to_plain(item) for item in said]
