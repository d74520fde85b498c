"""`steelyard catalog`: list the facts the package knows, show one with its source."""

import dataclasses
from typing import Any

import cyclopts

from steelyard import catalog
from steelyard.catalog import Architecture, count_parameters
from steelyard.catalog.records import KINDS, near_names
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_json
from steelyard.config import to_plain
from steelyard.errors import CatalogError
from steelyard.runs.grid import GridColumn, grid
from steelyard.runs.screen import screen
from steelyard.units import pretty

app = cyclopts.App(
    name="catalog",
    help="Accelerators, clusters, sites, storage, data centers and models, each with its source.",
)

_COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "accelerators": (
        ("vendor", ""),
        ("year", ""),
        ("bf16", "FLOP/s"),
        ("fp32", "FLOP/s"),
        ("memory_bytes", "byte"),
        ("memory_bytes_per_s", "byte/s"),
        ("scale_up_bytes_per_s", "byte/s"),
        ("tdp_w", "W"),
        ("confidence", ""),
    ),
    "clusters": (
        ("site", ""),
        ("year", ""),
        ("accelerator", ""),
        ("num_nodes", ""),
        ("accelerators_per_node", ""),
        ("scale_up_bytes_per_s", "byte/s"),
        ("injection_bytes_per_s", "byte/s"),
        ("pue", ""),
        ("confidence", ""),
    ),
    "sites": (
        ("country", ""),
        ("pue", ""),
        ("price_usd_per_kwh", ""),
        ("carbon_g_per_kwh", ""),
        ("confidence", ""),
    ),
    "datacenters": (
        ("site", ""),
        ("num_servers", ""),
        ("chiller_cop", ""),
        ("economizer_approach_c", ""),
        ("liquid_share", ""),
        ("battery_j", "J"),
        ("confidence", ""),
    ),
    "storage": (
        ("usd_per_gb_month", ""),
        ("read_usd_per_request", ""),
        ("retrieval_usd_per_gb", ""),
        ("egress_usd_per_gb", ""),
        ("first_byte_s", "s"),
        ("bytes_per_s", "byte/s"),
        ("reads_per_s", ""),
        ("price_date", ""),
        ("confidence", ""),
    ),
    "architectures": (
        ("kind", ""),
        ("parameters", "count"),
        ("active", "count"),
        ("hidden_size", ""),
        ("num_layers", ""),
        ("num_heads", ""),
        ("num_kv_heads", ""),
        ("vocab_size", ""),
        ("confidence", ""),
    ),
}
_HEADS = {
    "memory_bytes": "memory",
    "memory_bytes_per_s": "bandwidth",
    "scale_up_bytes_per_s": "scale-up",
    "injection_bytes_per_s": "injection",
    "tdp_w": "power",
    "num_nodes": "nodes",
    "accelerators_per_node": "per node",
    "price_usd_per_kwh": "USD/kWh",
    "usd_per_gb_month": "USD/GB-month",
    "read_usd_per_request": "USD/read",
    "retrieval_usd_per_gb": "USD/GB read",
    "egress_usd_per_gb": "USD/GB out",
    "first_byte_s": "first byte",
    "bytes_per_s": "connection",
    "reads_per_s": "reads/s",
    "price_date": "prices of",
    "num_servers": "servers",
    "chiller_cop": "COP",
    "economizer_approach_c": "economizer",
    "liquid_share": "in water",
    "battery_j": "battery",
    "carbon_g_per_kwh": "gCO2e/kWh",
    "hidden_size": "hidden",
    "num_layers": "layers",
    "num_heads": "heads",
    "num_kv_heads": "kv heads",
    "vocab_size": "vocabulary",
}
_PLURALS = {"storage": "storage tiers"}
_WORDS = ("vendor", "site", "accelerator", "country", "kind", "confidence")
"""Columns that hold words."""

_UNITS = (
    ("_flops_per_s", "FLOP/s"),
    ("bytes_per_s", "byte/s"),
    ("_bytes", "byte"),
    ("_byte_s", "s"),
    ("_w", "W"),
    ("published_parameters", "parameter"),
)


@app.command(name="list")
def list_records(kind: str = "", *, json: Switch = False) -> None:
    """List the records of one kind, or how many there are of each.

    Example: steelyard catalog list accelerators

    Args:
        kind: architectures, accelerators, clusters, sites, datacenters or storage; empty counts
            each.
        json: print JSON instead of tables.
    """
    if kind:
        records = [catalog.record(kind, name) for name in catalog.names(kind)]
        if json:
            print_json(list(map(_plain, records)))
            return
        _print_records(kind, records)
        if records:
            say_next("catalog", "show", records[0].name)
    else:
        counts = {name: len(catalog.names(name)) for name in KINDS}
        if json:
            print_json(counts)
            return
        _print_counts(counts)
        say_next("catalog", "list", "accelerators")


@app.command
def show(name: str, *, json: Switch = False) -> None:
    """Show everything known about one record, of whichever kind it is.

    Example: steelyard catalog show H100-SXM5-80GB

    Args:
        name: name of a record, such as H100-SXM5-80GB, LEONARDO-Booster, bologna, llama-3-8b or
            this-machine.
        json: print JSON instead of a table.
    """
    found = _find(name)
    if json:
        print_json([{"record": kind} | _plain(record) for kind, record in found])
        return
    for kind, record in found:
        _print_one(kind, record)
    say_next(*_NEXT[found[0][0]], found[0][1].name)


_NEXT = {
    "architectures": ("plan", "fit"),
    "accelerators": ("plan", "fit", "llama-3.1-8b", "--accelerator"),
    "clusters": ("plan", "train", "--budget", "1 day", "--cluster"),
    "sites": ("plan", "which", "--model", "llama-3.1-8b", "--tokens", "300B", "--site"),
    "datacenters": ("operate", "datacenter", "--datacenter"),
    "storage": ("data", "table", "profile", "FILES", "--dry-run", "--storage"),
}
"""What to ask about a record of each kind, before its name."""


def _find(name: str) -> list[tuple[str, Any]]:
    """Find the records of this name among all kinds; a name that none has is refused."""
    found, problems = [], []
    for kind in KINDS:
        try:
            found.append((kind, catalog.record(kind, name)))
        except CatalogError as error:
            problems.append(error)
    if found:
        return found
    # A broken record of this name says more than that the other kinds do not know it.
    if told := [error for error in problems if not str(error).startswith("no ")]:
        raise told[0]
    near = [item for kind in KINDS for item in near_names(kind, name)]
    hint = f"near names: {', '.join(near[:6])}" if near else "`steelyard catalog list KIND` lists"
    raise CatalogError(f"no record named {name!r}", hint=hint)


def _plain(record: Any) -> dict[str, Any]:
    """Turn a record into JSON values, with the counted parameters of an architecture."""
    values = to_plain(record)
    # A price or a carbon intensity that is not known is nothing, never free.
    unknown = [name for name, value in values.items() if value == 0 and _is_price(name)]
    values |= dict.fromkeys(unknown)
    if isinstance(record, Architecture):
        values["parameters"] = to_plain(count_parameters(record))
    return values


def _is_price(name: str) -> bool:
    """Say whether a field holds a price or a carbon intensity."""
    return "_usd" in name or name.startswith("carbon_g")


def _cell(record: Any, name: str, unit: str) -> str:
    """Return one value of a record as text, a dash for what is unknown."""
    if name in ("parameters", "active"):
        count = count_parameters(record)
        return pretty(count.total if name == "parameters" else count.active, "count")
    if unit == "FLOP/s":
        peak = record.peak_flops_per_s.get(name)
        return pretty(peak, unit) if peak else "-"
    value = getattr(record, name)
    if not value:
        return "-"
    return pretty(value, unit) if unit else str(value)


def _print_counts(counts: dict[str, int]) -> None:
    """Print how many records there are of each kind."""
    columns = [GridColumn(head="kind"), GridColumn(head="records", right=True)]
    console = screen()
    rows = [[kind, str(count)] for kind, count in counts.items()]
    console.print(grid(columns, rows, console.width))
    console.print("`steelyard catalog list KIND` lists one kind", style="dim")


def _print_records(kind: str, records: list[Any]) -> None:
    """Print one line per record."""
    # The first columns matter most: on a narrow terminal those at the end leave first.
    columns = [
        GridColumn(head=_HEADS.get(name, name), right=name not in _WORDS, rank=place)
        for place, (name, _) in enumerate(_COLUMNS[kind], start=1)
    ]
    rows = [
        [record.name, *(_cell(record, name, unit) for name, unit in _COLUMNS[kind])]
        for record in records
    ]
    console = screen()
    console.print(grid([GridColumn(head="name"), *columns], rows, console.width), soft_wrap=True)
    console.print(f"{len(records)} {_PLURALS.get(kind, kind)}; - is unknown", style="dim")


def _print_one(kind: str, record: Any) -> None:
    """Print every known field of one record."""
    rows: list[tuple[str, str]] = []
    if isinstance(record, Architecture):
        counts = dataclasses.asdict(count_parameters(record))
        rows += [
            (f"parameters, {part.replace('_', ' ')}", pretty(count, "count"))
            for part, count in counts.items()
        ]
    for field in dataclasses.fields(record):
        rows += _lines(field.name, getattr(record, field.name))
    console = screen()
    console.print(f"[bold]{record.name}[/]  [dim]{kind.removesuffix('s')}[/]")
    columns = [GridColumn(style="dim"), GridColumn()]
    console.print(grid(columns, rows, console.width), soft_wrap=True)


def _lines(name: str, value: Any) -> list[tuple[str, str]]:
    """Return the lines of one field, none for what is unknown."""
    unit = next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "")
    if name == "name" or (value in ("", 0) and not isinstance(value, bool)):
        return []
    if isinstance(value, bool):
        return [(name.replace("_", " "), "yes" if value else "no")]
    if isinstance(value, dict):
        return [(f"peak, {key}", pretty(item, unit)) for key, item in value.items()]
    if isinstance(value, tuple):
        return [(name.replace("_", " "), ", ".join(map(str, value)))] if value else []
    if not unit:
        return [(name.replace("_", " "), str(value))]
    label = name.removesuffix("_per_s").removesuffix("bytes").removesuffix("_w").strip("_")
    label += " bandwidth" if unit == "byte/s" else ""
    return [(label.replace("_", " ").strip(), pretty(value, unit))]
