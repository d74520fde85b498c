"""What verbs on itemsets show: counts, the most frequent, rules, and forecasts beside them."""

from typing import TYPE_CHECKING, Any

from steelyard.cli.output import forecast_table
from steelyard.quantity import Check, Measurement
from steelyard.runs.report import Cell, Checks, Column, Facts, Report, Section, Table

if TYPE_CHECKING:
    from steelyard.data.mining import AssociationRules, Itemsets, MiningForecast
    from steelyard.data.table import Quarantine

__all__ = [
    "SHOWN",
    "advice_page",
    "basket_facts",
    "checked",
    "page_of",
    "plain_check",
    "rule_of",
    "rules_page",
    "values_of",
]

SHOWN = 20
"""Itemsets or rules that a page shows."""


def checked(told: "MiningForecast", found: "Itemsets", took_s: float) -> list[Check]:
    """Set forecasts beside what came out."""
    measured = [("data.itemsets", float(len(found)), told.itemsets)]
    measured.append(("data.mining_time", took_s, told.seconds["eclat"]))
    if found.target != "frequent":
        measured = measured[1:]
    return [
        Check(forecast, Measurement(quantity=name, value=value))
        for name, value, forecast in measured
    ]


def plain_check(check: Check) -> dict[str, Any]:
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


_MEASURES = ("support", "confidence", "lift", "leverage", "conviction")


def rule_of(found: "AssociationRules", place: int) -> dict[str, Any]:
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
    """Return a rule as a row of a table."""
    sides = [_told(row["antecedent"]), _told(row["consequent"])]
    numbers = ["never fails" if row[name] is None else f"{row[name]:.4g}" for name in _MEASURES]
    return [*sides, *numbers]


def basket_facts(
    found: "Itemsets", quarantine: "Quarantine", took_s: float
) -> list[tuple[str, str, str]]:
    """Return what is known of the baskets."""
    return [
        ("baskets", f"{found.num_baskets:,}", ""),
        ("set aside", f"{quarantine.total:,}", ""),
        ("held by at least", f"{found.min_count:,} baskets", ""),
        ("seconds", f"{took_s:.3g}", ""),
    ]


def page_of(
    found: "Itemsets", quarantine: "Quarantine", took_s: float, checks: list[Check]
) -> Report:
    """Make the page."""
    import numpy as np

    facts = Facts(
        [
            (f"{found.target} itemsets", f"{len(found):,}", ""),
            ("longest", f"{found.longest} items", ""),
            *basket_facts(found, quarantine, took_s),
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
    best = found.most_frequent(SHOWN, least_items=2)
    rows: list[list[Cell]] = []
    for place in range(len(best)):
        items, count = best[place]
        rows.append([_told(items), f"{count:,}", f"{count / max(found.num_baskets, 1):.2%}"])
    heads = [Column("items"), Column("baskets", align="right"), Column("share", align="right")]
    return Table(heads, rows)


def _told(items: Any) -> str:
    """Return items in words."""
    return ", ".join(map(str, items))


def values_of(found: "Itemsets", quarantine: "Quarantine", took_s: float) -> dict[str, Any]:
    """Return all figures, for programs."""
    best = found.most_frequent(SHOWN)
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


def advice_page(told: "MiningForecast", support: float, num_baskets: int, set_aside: int) -> Report:
    """Make the page of a forecast."""
    facts = Facts(
        [
            ("miner to take", told.algorithm, ""),
            ("baskets", f"{num_baskets:,}", ""),
            ("set aside", f"{set_aside:,}", ""),
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
    return Report("Mining forecast", f"support {support:g}", sections)


def rules_page(
    rows: list[dict[str, Any]], facts: list[tuple[str, str, str]], confidence: float, by: str
) -> Report:
    """Make the page of rules."""
    heads = [
        Column("if a basket holds"),
        Column("it also holds"),
        *(Column(name) for name in _MEASURES),
    ]
    sections = [
        Section("Rules", [Facts(facts)]),
        Section(f"Best by {by}", [Table(heads, [_rule_cells(row) for row in rows])]),
    ]
    return Report("Association rules", f"confidence of {confidence:g} or more", sections)
