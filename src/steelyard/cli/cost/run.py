"""`steelyard cost run`: what a training run costs: amortized, bought, rented, developed."""

import datetime
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cyclopts

from steelyard import catalog
from steelyard.catalog import market
from steelyard.cli.output import Switch, print_report
from steelyard.config import to_plain
from steelyard.cost.assumptions import RANGES, Assumptions, with_assumptions
from steelyard.cost.compute_run import ComputeRun
from steelyard.cost.development import Staff
from steelyard.cost.estimate import CostEstimate, Swing
from steelyard.errors import CatalogError, ConfigError, SteelyardWarning
from steelyard.runs.report import Block, Cell, Chart, Column, Report, Section, Table, Text
from steelyard.units import parse, pretty

__all__ = ["run"]

_BAR_CELLS = 24


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunWork:
    """What the run used: chip-hours, or FLOP, or chips and hours.

    Args:
        chip: accelerator by words of its name, such as a100-40 or H100-SXM5-80GB.
        chip_hours: accelerator-hours.
        flop: operations, such as 2.1e25.
        mfu: model FLOP/s over peak, as a fraction; .375 when FLOP are given and it is 0.
        n: accelerators.
        hours: duration.
        date: first day or month, such as 2022-08; a year after the chip's delivery when empty.
        purchase: price of an accelerator with its share of the server, such as "$30,000"; the
            published one when empty.
        rent: rent of an accelerator and hour, such as "$2.5"; the published one when empty.
    """

    chip: str
    chip_hours: float = 0.0
    flop: str = ""
    mfu: float = 0.0
    n: float = 0.0
    hours: float = 0.0
    date: str = ""
    purchase: str = ""
    rent: str = ""

    def made(self, organization: str, site: str, assumptions: Assumptions) -> ComputeRun:
        """Return the run.

        Args:
            organization: who runs it.
            site: catalog name of the place, empty for the world's average.
            assumptions: constants of the prices.

        Returns:
            The run, to be priced.

        Raises:
            ConfigError: what was used cannot be known, or a number or date cannot be.
        """
        self._check()
        return ComputeRun(
            chip=market.chip(self.chip),
            chip_hours=self.chip_hours or None,
            flop=parse(self.flop, "FLOP", where="--flop") if self.flop else None,
            mfu=self.mfu or None,
            num_chips=self.n or None,
            hours=self.hours or None,
            start=_day(self.date) if self.date else None,
            organization=organization,
            site=catalog.site(site) if site else None,
            server_usd=parse(self.purchase, "USD", where="--purchase") if self.purchase else None,
            rent_usd=parse(self.rent, "USD", where="--rent") if self.rent else None,
            assumptions=assumptions,
        )

    def _check(self) -> None:
        """Refuse a run that lacks what its price counts, in the words of the flags."""
        if min(self.chip_hours, self.mfu, self.n, self.hours) < 0 or self.mfu > 1:
            raise ConfigError(
                "--chip-hours, --n and --hours are positive, --mfu lies between 0 and 1"
            )
        if self.chip_hours or self.flop or (self.n and self.hours):
            return
        lacks = [name for name, value in (("--n", self.n), ("--hours", self.hours)) if not value]
        raise ConfigError(
            f"what the run used is unknown: --chip-hours and --flop are missing, and of --n x "
            f"--hours {' and '.join(lacks)}",
            hint="give one of --chip-hours, --flop (with --mfu where it is known), or --n and "
            "--hours",
        )


def run(
    *,
    work: RunWork,
    organization: str = "",
    site: str = "",
    vendor: str = "",
    people: float = 0.0,
    months: float = 12.0,
    pay: str = "$700,000",
    dollars: str = "",
    assume: Annotated[tuple[str, ...], cyclopts.Parameter(negative_iterable=())] = (),
    html: Path | None = None,
    json: Switch = False,
) -> None:
    """Price a training run: amortized, bought, rented and, with people, the whole development.

    What the catalog does not know is left out with its reason; the rest stands.

    Example: steelyard cost run --flop 2.1e25 --chip a100-40 --n 25000 --date 2022-08

    Args:
        work: what the run used.
        organization: who runs it, such as Google: decides facility overhead and the usual cloud.
        site: catalog name of the place, for its overhead, electricity and carbon.
        vendor: cloud to compare with, such as "Google Cloud"; the organization's when empty.
        people: contributors of the whole development; 0 leaves it out.
        months: how long they worked on it.
        pay: pay of one per year, benefits and equity included.
        dollars: month whose dollars are shown, such as 2024-12; that of publication when empty.
        assume: an assumption and its value, such as depreciation=0.2; may be given several times.
        html: file for a page with the chart of shares.
        json: print JSON.
    """
    asked = work.made(organization, site, with_assumptions(_assumed(assume)))
    staff = None
    if people:
        yearly = parse(pay, "USD", where="--pay")
        staff = Staff(people=people, months=months, usd_per_year=yearly)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SteelyardWarning)
        answer = _Answer.of(asked, vendor, staff, dollars)
    said = list(dict.fromkeys(f"Warning: {item.message}." for item in caught))
    print_report(
        answer.report(said, charts=html is not None),
        json=json,
        html=html,
        values=answer.plain(said),
    )


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What is known of the cost of a run.

    Attributes:
        asked: the run.
        estimates: estimates of the known methods, by name.
        unknown: for each method or quantity that is left out, why.
        swings: how far the assumptions move the amortized cost.
    """

    asked: ComputeRun
    estimates: dict[str, CostEstimate]
    unknown: dict[str, str]
    swings: list[Swing]

    @classmethod
    def of(cls, asked: ComputeRun, vendor: str, staff: Staff | None, dollars: str) -> "_Answer":
        """Make every estimate that the catalog allows."""
        methods: dict[str, Callable[[], CostEstimate]] = {
            "amortized": asked.amortized,
            "acquisition": asked.acquisition,
            "cloud": lambda: asked.cloud(vendor),
        }
        if staff is not None:
            methods["development"] = lambda: asked.development(staff)
        estimates: dict[str, CostEstimate] = {}
        unknown: dict[str, str] = {}
        for name, make in methods.items():
            try:
                made = make()
            except (CatalogError, ConfigError) as error:
                # A chip without a price still has a rent, and the other way about.
                unknown[name] = f"{error}; {error.hint}"
                continue
            estimates[name] = made.in_dollars_of(dollars) if dollars else made
        swings = asked.swings() if "amortized" in estimates else []
        return cls(asked=asked, estimates=estimates, unknown=unknown, swings=swings)

    def report(self, said: list[str], *, charts: bool) -> Report:
        """Lay the answer out for people."""
        asked = self.asked
        month = next((item.month for item in self.estimates.values()), "")
        title = f"Cost of {pretty(asked.used_chip_hours, 'count')} chip-hours of {asked.chip.name}"
        start = f"from {asked.start}, " if asked.start else ""
        subtitle = (
            f"{start}{asked.lasted_hours / 24:,.0f} days; US dollars of {month or 'no month'}"
        )
        notes: list[Block] = [Text(words) for words in said]
        notes += [Text(f"{name} is left out: {why}.") for name, why in self.unknown.items()]
        sections = [Section("Cost", [self._methods(), *notes, *self._use()])]
        sections += [
            Section(f"Where the money goes: {name}", self._shares(item, charts=charts))
            for name, item in self.estimates.items()
            if name in ("amortized", "development")
        ]
        if self.swings:
            sections.append(Section("What moves the amortized cost", [self._tornado()]))
        return Report(title, subtitle, sections)

    def _methods(self) -> Table:
        """Make the table of methods."""
        rows: list[list[Cell]] = []
        for name, item in self.estimates.items():
            interval = f"{_usd(item.low_usd)} – {_usd(item.high_usd)}"
            rows.append([name, _usd(item.total_usd), interval, "assumed", item.source])
        heads = [Column("method"), Column("cost", align="right")]
        heads += [Column("80 % interval", align="right"), Column("provenance", rank=1)]
        return Table([*heads, Column("rests on", rank=2)], rows)

    def _use(self) -> list[Block]:
        """Say energy and carbon in a line each, as far as they are known."""
        found: list[Block] = []
        for name, words in (("energy", "J"), ("carbon", "g")):
            try:
                value = getattr(self.asked, f"{name}_{words.lower()}")
                found.append(Text(f"{name}: {pretty(value, words)}{' CO2e' * (name == 'carbon')}."))
            except CatalogError as error:
                found.append(Text(f"{name} is left out: {error}; {error.hint}."))
        return found

    @staticmethod
    def _shares(item: CostEstimate, *, charts: bool) -> list[Block]:
        """Make the table of parts with their bars, and the chart of a page."""
        rows: list[list[Cell]] = []
        for name, share in item.shares.items():
            bar = "█" * round(share * _BAR_CELLS) or "▏"
            rows.append([name, _usd(item.parts_usd[name]), f"{share:.1%}", bar])
        heads = [Column("part"), Column("cost", align="right"), Column("share", align="right")]
        table = Table([*heads, Column("", align="left")], rows)
        if not charts:
            return [table]
        from steelyard.runs.charts import bars

        names, usd = list(item.parts_usd), list(item.parts_usd.values())
        return [table, Chart(bars(names, usd, title=f"{item.method}, US dollars", unit="USD"))]

    def _tornado(self) -> Table:
        """Make the table of assumptions, the one that moves most first."""
        rows: list[list[Cell]] = []
        for item in self.swings:
            value = getattr(self.asked.assumptions, item.name)
            ends = sorted((item.usd_at_low, item.usd_at_high))
            span = " to ".join(_usd(end) for end in ends)
            rows.append([item.name, f"{value:g}", f"{item.low:.3g} to {item.high:.3g}", span])
        heads = [Column("assumption"), Column("assumed", align="right")]
        heads += [Column("80 % range", align="right"), Column("cost", align="right")]
        version = self.asked.assumptions.version
        return Table(heads, rows, caption=f"assumptions {version}; change one with --assume")

    def plain(self, said: list[str]) -> dict[str, Any]:
        """Return the answer as JSON values."""
        asked = self.asked
        values: dict[str, Any] = {
            "chip": asked.chip.name,
            "chip_hours": asked.used_chip_hours,
            "hours": asked.lasted_hours,
            "start": str(asked.start) if asked.start else None,
            "estimates": {
                name: to_plain(item) | {"total_usd": item.total_usd, "shares": item.shares}
                for name, item in self.estimates.items()
            },
            "unknown": dict(self.unknown),
            "swings": [item._asdict() for item in self.swings],
            "warnings": said,
            "assumptions": asked.assumptions.version,
        }
        for name in ("energy_j", "carbon_g"):
            try:
                values[name] = getattr(asked, name)
            except CatalogError as error:
                values[name] = None
                values["unknown"][name] = f"{error}; {error.hint}"
        return values


def _usd(value: float) -> str:
    """Return money in three digits: more would say more than is known."""
    return pretty(float(f"{value:.3g}"), "USD")


def _day(text: str) -> datetime.date:
    """Read a day, or the first one of a month."""
    try:
        whole = f"{text}-01" if re.fullmatch(r"\d{4}-\d{2}", text) else text
        return datetime.date.fromisoformat(whole)
    except ValueError as error:
        raise ConfigError(
            f"--date {text!r} is no day or month", hint="write it as 2022-08 or 2022-08-15"
        ) from error


def _assumed(pairs: tuple[str, ...]) -> dict[str, float]:
    """Read assumptions written as NAME=VALUE."""
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name.strip().replace("-", "_")] = float(value)
        except ValueError as error:
            raise ConfigError(
                f"--assume {pair!r} is no NAME=NUMBER", hint=f"names: {', '.join(RANGES)}"
            ) from error
    return found
