"""What an accelerator-hour and a run cost, as a reader adds it up."""

import math

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.energy import accelerator_power_w
from steelyard.cost.money import HOURS_PER_YEAR, ChipHour, known_purchase_usd
from steelyard.cost.why.chain import ChainStep

__all__ = ["energy_step", "hour_steps", "per_million_step", "run_cost_step"]


def hour_steps(accelerator: Accelerator, site: Site, hour: ChipHour) -> list[ChainStep]:
    """Show what an hour of one accelerator costs.

    Args:
        accelerator: record with power and price.
        site: place with its electricity.
        hour: the price that the answer used.

    Returns:
        Steps; none for a rent, which is a number with a source.
    """
    if hour.method == "rented":
        return []
    steps = [_electricity_step(accelerator, site, hour)]
    parts = {"electricity_usd": hour.electricity_usd}
    price, said = known_purchase_usd(accelerator)
    chosen = Assumptions()
    if hour.method == "amortized":
        wear = {
            "purchase_usd": price,
            "depreciation": chosen.depreciation,
            "years": chosen.years_in_service,
            "ln10": math.log(10),
            "hours_per_year": HOURS_PER_YEAR,
        }
        share = {"hardware_usd": hour.hardware_usd, "share": chosen.interconnect_fraction}
        steps += [
            _usd(
                "hardware_usd",
                # The formulas know no sign before a number, so it is subtracted from 0.
                "purchase_usd x 10 ^ (0 - depreciation x years) x depreciation x ln10"
                " / hours_per_year",
                wear,
                hour.hardware_usd,
                f"{said}; value lost per hour (arXiv 2405.21015, appendix A)",
            ),
            _usd(
                "network_usd",
                "hardware_usd x share / (1 - share)",
                share,
                hour.interconnect_usd,
                "the network's share of a cluster (arXiv 2405.21015, appendix A)",
            ),
        ]
        parts |= {"hardware_usd": hour.hardware_usd, "network_usd": hour.interconnect_usd}
    whole = _usd("usd_per_hour", " + ".join(parts), parts, hour.total_usd, hour.source)
    return [*steps, whole]


def _usd(
    name: str, formula: str, numbers: dict[str, float], value: float, source: str
) -> ChainStep:
    """Make a step that gives money."""
    return ChainStep(
        name=name, formula=formula, numbers=numbers, value=value, unit="USD", source=source
    )


def _electricity_step(accelerator: Accelerator, site: Site, hour: ChipHour) -> ChainStep:
    """Show the electricity of an hour."""
    numbers = {
        "watts": accelerator_power_w(accelerator),
        "overhead": site.pue,
        "usd_per_kwh": site.price_usd_per_kwh,
    }
    return _usd(
        "electricity_usd",
        "watts / 1000 x overhead x usd_per_kwh",
        numbers,
        hour.electricity_usd,
        f"power x server x average draw (arXiv 2405.21015); electricity of {site.name}",
    )


def per_million_step(hour: ChipHour, count: float, tokens_per_s: float, value: float) -> ChainStep:
    """Show the money per million tokens.

    Args:
        hour: price of an accelerator-hour.
        count: accelerators.
        tokens_per_s: rate of all of them.
        value: US dollars that the answer states.

    Returns:
        The step.
    """
    numbers = {
        "usd_per_hour": hour.total_usd,
        "accelerators": float(count),
        "tokens_per_s": tokens_per_s,
    }
    formula = "usd_per_hour x accelerators / 3600 / tokens_per_s x 1000000"
    return _usd("usd_per_million", formula, numbers, value, hour.source)


def run_cost_step(
    hour: ChipHour, count: float, seconds: float, value: float, time_name: str = "total_time"
) -> ChainStep:
    """Show the money of a run.

    Args:
        hour: price of an accelerator-hour.
        count: accelerators.
        seconds: time of the run.
        value: US dollars that the answer states.
        time_name: name of the step that the time comes from.

    Returns:
        The step.
    """
    numbers = {
        "usd_per_hour": hour.total_usd,
        "accelerators": float(count),
        time_name: seconds,
    }
    formula = f"usd_per_hour x accelerators x {time_name} / 3600"
    return _usd("run_cost", formula, numbers, value, f"{hour.method}: {hour.source}")


def energy_step(
    accelerator: Accelerator,
    count: float,
    seconds: float,
    pue: float,
    value: float,
    time_name: str = "total_time",
) -> ChainStep:
    """Show the electric energy of a run.

    Args:
        accelerator: record with its power.
        count: accelerators.
        seconds: time of the run.
        pue: facility overhead.
        value: joules that the answer states.
        time_name: name of the step that the time comes from.

    Returns:
        The step.
    """
    return ChainStep(
        name="energy",
        formula=f"watts x accelerators x {time_name} x overhead",
        numbers={
            "watts": accelerator_power_w(accelerator),
            "accelerators": float(count),
            time_name: seconds,
            "overhead": pue,
        },
        value=value,
        unit="J",
        source="power x server x average draw (arXiv 2405.21015); facility overhead of the site",
    )
