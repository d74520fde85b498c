"""Model, machine and price that a cost is asked for, and how the answer is printed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cyclopts

from steelyard import catalog
from steelyard.catalog.records import WORLD_AVERAGE
from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cli.output import Switch, forecast_table, print_report
from steelyard.cli.why import plain_steps, why_section
from steelyard.config import to_plain
from steelyard.errors import CalibrationError, ConfigError
from steelyard.quantity import Forecast
from steelyard.runs.report import Column, Report, Section, Table
from steelyard.units import parse, pretty

if TYPE_CHECKING:
    from steelyard.catalog import Accelerator, Architecture
    from steelyard.cost import Efficiencies, Machine
    from steelyard.cost.money import ChipHour
    from steelyard.cost.why.chain import ChainStep

__all__ = [
    "Money",
    "Price",
    "Subject",
    "check_recompute",
    "derived",
    "parts_of",
    "print_costs",
]


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Subject:
    """Model and machine that a cost is asked for.

    Args:
        model: catalog name of the architecture.
        machine: catalog name of the accelerator, or this-machine after `steelyard calibrate`.
        dtype: number format of the products, weights and cache; bf16 on a published accelerator and
            fp32 on this machine when empty.
        json: print JSON.
    """

    model: str
    machine: str = THIS_MACHINE
    dtype: str = ""
    json: Switch = False

    def architecture(self) -> "Architecture":
        """Return the model's architecture."""
        return catalog.architecture_by_name(self.model)

    def roofline(self, efficiencies: "Efficiencies | None" = None) -> "Machine":
        """Return the machine's roofline.

        Args:
            efficiencies: fractions of published peaks that replace the typical ones; a calibrated
                machine has measured rates instead.

        Returns:
            The roofline of the accelerator, or of this machine as it was calibrated.

        Raises:
            CalibrationError: this machine has not been calibrated.
        """
        from steelyard.cost import Machine

        # Published chips are compared at the type that papers use; a CPU may have no bf16 products.
        if self.machine != THIS_MACHINE:
            return Machine.from_accelerator(
                catalog.accelerator(self.machine),
                dtype=self.dtype or "bf16",
                efficiencies=efficiencies,
            )
        calibration = catalog.load_calibration()
        if calibration is None:
            raise CalibrationError(
                "this machine has not been calibrated", hint="run `steelyard calibrate` first"
            )
        return Machine.from_calibration(calibration, self.dtype or "fp32")


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Price:
    """What an accelerator-hour costs, and whether the answer shows how it comes about.

    Args:
        price: rent of one accelerator and hour, such as "2.5 USD"; that of the catalog when empty.
        why: print the chain of formulas behind the answer, with the numbers put in.
    """

    price: str = ""
    why: Switch = False

    def record(self, machine: str) -> "Accelerator":
        """Return the accelerator's record, with the rent that was given."""
        found = catalog.accelerator(machine)
        if not self.price:
            return found
        from steelyard.cost.money import with_rent

        return with_rent(found, parse(self.price, "USD", where="--price"))


@dataclass(frozen=True, kw_only=True)
class Money:
    """Money per million tokens on one accelerator, as far as it is known.

    Attributes:
        record: accelerator with its prices.
        tokens_per_s: rate of the work.
        hour: price of an hour, None where it is unknown.
    """

    record: "Accelerator"
    tokens_per_s: float
    hour: "ChipHour | None"

    @classmethod
    def of(cls, price: Price, machine: str, tokens_per_s: float) -> "Money":
        """Look the price of an hour up, this machine's with the world's average electricity."""
        from steelyard.plan.fit import known_hour

        record = price.record(machine)
        hour = known_hour(record, catalog.site(WORLD_AVERAGE))
        return cls(record=record, tokens_per_s=tokens_per_s, hour=hour)

    @property
    def usd_per_million(self) -> float | None:
        """Money per million tokens, None where no price is known."""
        return self.hour.total_usd / 3600 / self.tokens_per_s * 1e6 if self.hour else None

    def rows(self) -> list[list[Any]]:
        """Return the rows of the answer's parts."""
        if self.hour is None or self.usd_per_million is None:
            # A missing price is said, with its remedy: a row left out would look like no cost.
            said = f"no rent is known for {self.record.name}; --price supplies one"
            return [["money per million tokens", said]]
        return [
            ["money per million tokens", pretty(self.usd_per_million, "USD")],
            ["price of an hour", f"{pretty(self.hour.total_usd, 'USD')}: {self.hour.source}"],
        ]

    def plain(self) -> dict[str, Any]:
        """Return rent, purchase and money per million tokens as JSON values, null if unknown."""
        from steelyard.cost.money import known_purchase_usd

        purchase, source = known_purchase_usd(self.record)
        return {
            "rent_usd_per_hour": self.record.price_usd_per_hour or None,
            "purchase_usd": purchase or None,
            "purchase_source": source if purchase else "",
            "usd_per_hour": self.hour.total_usd if self.hour else None,
            "price_source": self.hour.source if self.hour else "",
            "usd_per_million_tokens": self.usd_per_million,
        }

    def steps(self) -> "list[ChainStep]":
        """Return the chain from the price of an hour to the money per million tokens."""
        from steelyard.cost.why.money import hour_steps, per_million_step

        if self.hour is None or self.usd_per_million is None:
            return []
        site = catalog.site(WORLD_AVERAGE)
        last = per_million_step(self.hour, 1, self.tokens_per_s, self.usd_per_million)
        return [*hour_steps(self.record, site, self.hour), last]


def derived(name: str, value: float, relative: float, source: str) -> Forecast:
    """Make a forecast that follows from the shape of the model."""
    return Forecast.about(name, value, relative=relative, provenance="derived", source=source)


def parts_of(record: Any, unit: str, *names: str) -> list[list[Any]]:
    """Make a row of each named field."""
    return [[name, pretty(getattr(record, name), unit)] for name in names]


def check_recompute(name: str) -> None:
    """Refuse a recomputation policy that does not exist."""
    from steelyard.cost.layout import RECOMPUTE

    if name not in RECOMPUTE:
        raise ConfigError(f"--recompute {name!r} is not one of {', '.join(RECOMPUTE)}")


def print_costs(
    title: str,
    subtitle: str,
    forecasts: list[Forecast],
    parts: list[list[Any]],
    *,
    json: bool,
    money: Money | None = None,
    why: "list[ChainStep] | None" = None,
    records: dict[str, str] | None = None,
) -> None:
    """Print forecasts with their intervals, the parts they are made of, money and the chain.

    Args:
        title: what is forecast, or what it lacks.
        subtitle: shape of the work.
        forecasts: forecasts of the answer.
        parts: name and value of each part.
        json: print JSON.
        money: price of the work, None where it has none.
        why: chain of formulas, None where it was not asked for.
        records: how good such forecasts have been on this machine, by quantity.
    """
    rows = parts + (money.rows() if money else [])
    made_of = Table(columns=[Column("part"), Column("value", align="right")], rows=rows)
    sections = [Section("Forecast", [forecast_table(forecasts, records), made_of])]
    values = {
        "title": title,
        "subtitle": subtitle,
        "forecasts": to_plain(forecasts),
        "parts": dict(parts),
        **({"price": money.plain()} if money else {}),
    }
    if why is not None:
        sections.append(why_section(why))
        values["why"] = plain_steps(why)
    print_report(Report(title, subtitle, sections), json=json, values=values)
