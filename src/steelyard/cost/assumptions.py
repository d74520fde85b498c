"""The assumptions of a price, in one place, each with the range that its interval comes from."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from steelyard.errors import ConfigError

__all__ = ["RANGES", "Assumptions", "with_assumptions"]


def _table(**values: float) -> Mapping[str, float]:
    """Return a table that nobody changes, as the default of a field."""
    # Dataclasses refuse defaults without a hash, which this view has not before Python 3.12.
    return field(default_factory=lambda: MappingProxyType(values))


RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "price_factor": (0.7, 1.4),
        "rent_factor": (0.6, 1.6),
        "depreciation": (0.10, 0.18),
        "interconnect_fraction": (0.13, 0.25),
        "usual_mfu": (0.20, 0.52),
        "gpu_draw": (0.60, 0.90),
        "tpu_draw": (0.30, 0.60),
        "hyperscaler_pue": (1.07, 1.20),
        "other_pue": (1.10, 1.58),
        "electricity_factor": (0.6, 1.8),
        "experiment_factor": (1.37, 3.5),
    }
)
"""Assumed 80 % ranges by assumption. The range of MFU holds 80 % of the 62 in Epoch AI's table of
models (arXiv 2405.21015); the one of experiments follows from the paper's 90 % range 1.2 to 4."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """Constants of a price; `replace` or `with_assumptions` makes others.

    Attributes:
        version: name of this set, kept with every estimate.
        depreciation: orders of magnitude of value lost per year.
        interconnect_fraction: share of a cluster's hardware cost that is its network.
        years_in_service: age of the hardware at the start of a run whose date is not known.
        delivery_days: days from the first sale of a GPU until it can be had.
        publication_days: days from the end of a run until it is published.
        usual_hours: duration of a run where it is unknown.
        usual_mfu: model FLOP/s over peak where it is unknown.
        price_factor: correction of purchase prices.
        rent_factor: correction of rents.
        server_price: price of a server over that of its chips, by family; "" for any other.
        server_power: rated power of a server over that of its chips, by family of GPU; "" for any
            other.
        tpu_power: the same of TPUs, by generation; "" for any other.
        gpu_draw: average over rated power of GPUs in training.
        tpu_draw: the same of TPUs.
        tpu_tdp_w: rated power of a TPU whose rating is unknown.
        hyperscalers: words in the names of organizations with `hyperscaler_pue`.
        hyperscaler_pue: facility power over IT power of these.
        other_pue: facility power over IT power of others.
        electricity_usd_per_kwh: US industrial price by year.
        electricity_factor: correction of the price of electricity.
        one_year_discount: part of the on-demand rent that a year's commitment saves, by vendor; ""
            for any other.
        three_year_discount: the same of three years.
        experiment_factor: compute of all experiments with the final run over the final run's.

    Source: Cottier et al. 2024 (arXiv 2405.21015), section 2 and appendix A.
    """

    version: str = "arXiv 2405.21015, 1"
    depreciation: float = 0.14
    interconnect_fraction: float = 0.19
    years_in_service: float = 1.0
    delivery_days: float = 90.0
    publication_days: float = 60.0
    usual_hours: float = 793.5
    usual_mfu: float = 0.375
    price_factor: float = 1.0
    rent_factor: float = 1.0
    server_price: Mapping[str, float] = _table(A100=1.66, V100=1.69, P100=1.54, **{"": 1.64})
    server_power: Mapping[str, float] = _table(
        H100=10.2 / 8 / 0.7,
        H800=10.2 / 8 / 0.7,
        GH200=1.3,
        A100=6.5 / 8 / 0.4,
        A800=6.5 / 8 / 0.4,
        V100=(10 / 16 / 0.3 + 1.5 / 4 / 0.3) / 2,
        **{"": 1.8},
    )
    tpu_power: Mapping[str, float] = _table(v1=2.93, v2=1.64, v3=1.47, **{"": 1.56})
    gpu_draw: float = 0.75
    tpu_draw: float = 0.43
    tpu_tdp_w: float = 373.0
    hyperscalers: tuple[str, ...] = (
        "Google",
        "DeepMind",
        "Microsoft",
        "Amazon",
        "Meta",
        "Facebook",
    )
    hyperscaler_pue: float = 1.1
    other_pue: float = 1.25
    electricity_usd_per_kwh: Mapping[int, float] = field(
        default_factory=lambda: MappingProxyType(dict(zip(range(2010, 2026), _US_USD, strict=True)))
    )
    electricity_factor: float = 1.0
    one_year_discount: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType(_ONE_YEAR)
    )
    three_year_discount: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType(_THREE_YEARS)
    )
    experiment_factor: float = 2.2

    def __post_init__(self) -> None:
        """Refuse what no price can rest on."""
        for name, (is_good, words) in _bounds(self).items():
            if not is_good:
                raise ConfigError(f"assumption {name} is {getattr(self, name):g}, but {words}")

    def pue(self, organization: str) -> float:
        """Return facility power over IT power of an organization."""
        # Tables list several organizations in one cell, and names change ("Google DeepMind").
        is_large = any(name in organization for name in self.hyperscalers)
        return self.hyperscaler_pue if is_large else self.other_pue

    def electricity(self, year: int) -> float:
        """Return the price of a kilowatt-hour in a year, in US dollars.

        Years before and after the table take its first and last price.
        """
        table = self.electricity_usd_per_kwh
        return table[min(max(year, min(table)), max(table))] * self.electricity_factor


_US_USD = (0.0677, 0.0682, 0.0667, 0.0689, 0.0710, 0.0691, 0.0676, 0.0688)
_US_USD += (0.0692, 0.0681, 0.0667, 0.0718, 0.0832, 0.0806, 0.0771, 0.0826)
_ONE_YEAR = {
    "Amazon Web Services": 0.41,
    "Google Cloud": 0.37,
    "Microsoft Azure": 0.25,
    "Lambda Labs": 0.34,
    "": 0.34,
}
_THREE_YEARS = {
    "Amazon Web Services": 0.64,
    "Google Cloud": 0.56,
    "Microsoft Azure": 0.49,
    "Lambda Labs": 0.56,
    "": 0.56,
}


def _bounds(assumptions: Assumptions) -> dict[str, tuple[bool, str]]:
    """Return by assumption whether it can be, and what it has to be."""
    positive = {
        "depreciation",
        "usual_mfu",
        "usual_hours",
        "price_factor",
        "rent_factor",
        "gpu_draw",
        "tpu_draw",
        "electricity_factor",
    }
    rules = {
        name: (0 < getattr(assumptions, name) < math.inf, "must be positive") for name in positive
    }
    rules |= {
        name: (getattr(assumptions, name) >= 1, "must be at least 1")
        for name in ("hyperscaler_pue", "other_pue", "experiment_factor")
    }
    share = assumptions.interconnect_fraction
    return rules | {
        "interconnect_fraction": (0 <= share < 1, "must lie in [0, 1)"),
        "usual_mfu": (0 < assumptions.usual_mfu <= 1, "must lie in (0, 1]"),
    }


def with_assumptions(values: Mapping[str, float], base: Assumptions | None = None) -> Assumptions:
    """Return assumptions of which some are replaced.

    Args:
        values: number by name of an assumption.
        base: the others; the published ones when not given.

    Returns:
        The assumptions; their version says what is other.

    Raises:
        ConfigError: a name is unknown, or no number, or a value cannot be.
    """
    start = base or Assumptions()
    # Tables and lists of words have no one number to replace; types are text where annotations are
    # postponed.
    numbers = [item.name for item in fields(Assumptions) if item.type in (float, "float")]
    for name in values:
        if name not in numbers:
            near = difflib.get_close_matches(name, numbers, n=3, cutoff=0.4)
            raise ConfigError(
                f"no assumption named {name!r}", hint=f"choose from {', '.join(near or numbers)}"
            )
    if not values:
        return start
    other = ", ".join(f"{name} {value:g}" for name, value in values.items())
    return replace(start, **values, version=f"{start.version} with {other}")
