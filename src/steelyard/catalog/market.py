"""What accelerators have cost: dated purchase prices and rents, and the index that compares years.

The tables are Epoch AI's (Data on Machine Learning Hardware, epoch.ai/data, CC BY 4.0), shortened
to the columns used here; the index is the US Bureau of Labor Statistics' (public domain). An empty
cell is unknown, None here, never zero.
"""

import csv
import datetime
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from steelyard.errors import CatalogError

__all__ = [
    "Chip",
    "PriceObservation",
    "chip",
    "family_of",
    "index_months",
    "price_index",
    "price_observations",
]

_DATA = Path(__file__).parent / "data" / "epoch"
_GB = re.compile(r"(\d+) ?gb\b")
_PEAKS = ("tensor_fp16_flops_per_s", "tf32_flops_per_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """One accelerator as it was sold.

    Attributes:
        name: name in the table, such as "NVIDIA A100 SXM4 40 GB".
        kind: "gpu", "tpu" and others, empty when unknown.
        release_date: first sale, None when unknown.
        peak_flops_per_s: dense peak that training is counted against, None when unknown.
        tdp_w: rated power, None when unknown.
    """

    name: str
    kind: str
    release_date: datetime.date | None
    peak_flops_per_s: float | None
    tdp_w: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceObservation:
    """What somebody asked for an accelerator on a day.

    Attributes:
        date: day of the price.
        chip: name in the table of chips.
        vendor: who rents it out, empty for a purchase.
        on_demand_usd_per_hour: rent of one chip without a commitment.
        one_year_usd_per_hour: rent with a commitment of a year.
        three_year_usd_per_hour: rent with a commitment of three years.
        purchase_usd: price of one chip, or of its share of a server.
        unit: "server" where the price holds the share of a server, "chip" for the chip alone,
            "other" where the observation does not say.
        source: where the price stood.
    """

    date: datetime.date
    chip: str
    vendor: str
    on_demand_usd_per_hour: float | None
    one_year_usd_per_hour: float | None
    three_year_usd_per_hour: float | None
    purchase_usd: float | None
    unit: str
    source: str


def chip(name: str) -> Chip:
    """Look a chip up by its name or by words of it.

    Args:
        name: such as "a100-40", "H100-SXM5-80GB" or "NVIDIA A100 SXM4 40 GB"; every word must be
            a word of the chip's name ("a100" is none of "RTX A1000" or of "GH100"), and a number
            may stand for gigabytes.

    Returns:
        The chip whose name has the fewest words beside these.

    Raises:
        CatalogError: no chip has these words, or several have as few others; both list names.
    """
    # Lazily from the strictest reading to the loosest: the first that finds a chip counts.
    found = next(filter(None, map(_with_words, _loosened(_words(name)))), {})
    if not found:
        raise CatalogError(f"no chip named {name!r} has a known price", hint=_near(name))
    least = min(found.values())
    best = [known for known, more in found.items() if more == least]
    # Variants differ in price, memory and power: none is guessed.
    if len(best) > 1:
        raise CatalogError(
            f"{name!r} may be one of {len(found)} chips", hint=f"name one of {', '.join(found)}"
        )
    return _chips()[best[0]]


def _with_words(asked: list[str]) -> dict[str, int]:
    """Return the chips whose names have all of these words, with how many others they have."""
    found: dict[str, int] = {}
    for known in _chips() if asked else ():
        words = _words(known)
        # Whole words only, as "a100" is part of "a1000" and of "ga100".
        if all(word in words or f"{word}gb" in words for word in asked):
            found[known] = len(words) - len(asked)
    return found


def _loosened(asked: list[str]) -> list[list[str]]:
    """Leave out what names of the catalog say more: the capacity, and the kind of socket."""
    bare = [word for word in asked if not re.fullmatch(r"\d+gb", word)]
    plain = [re.sub(r"^sxm\d$", "sxm", word) for word in bare]
    return [asked, bare, plain, [word for word in plain if word != "sxm"]]


def family_of(name: str) -> str:
    """Return the word of a chip's name that its variants share: "A100", "K40", "v4" of a TPU.

    Args:
        name: name in the table of chips.

    Returns:
        The word; the whole name where no word has a letter and a number.
    """
    if "TPU" in name:
        return next((word for word in name.split() if re.fullmatch(r"v\d\w*", word)), name)
    # At most three digits, so that RTX A1000 is no A100; "K20m" and "V100S" are variants.
    found = re.search(r"\b([A-Z]{1,2}\d{2,3})(?:[a-z]|(?<=V100)S)?\b", name)
    return found.group(1) if found else name


def price_observations(family: str) -> tuple[PriceObservation, ...]:
    """List the prices of a family of chips, the earliest first.

    Args:
        family: product family, as `family_of` returns it.

    Returns:
        Observations; empty when no price is known.
    """
    return tuple(item for item in _prices() if family_of(item.chip) == family)


def index_months() -> tuple[str, str]:
    """Return the first and the last month of the price index, such as ("2000-12", "2025-06")."""
    months = list(_index())
    return months[0], months[-1]


def price_index(month: str) -> float:
    """Return the producer price index of data processing and hosting.

    Args:
        month: such as "2024-12"; the last month of the index stands for later ones.

    Returns:
        The index, 100 in December 2000.

    Raises:
        CatalogError: the text is no month, or lies before the index.
    """
    first, last = index_months()
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month) or month < first:
        raise CatalogError(
            f"no price index is known for {month!r}", hint=f"give a month from {first} to {last}"
        )
    # Months as text sort as they follow each other.
    return _index()[min(month, last)]


def _rows(name: str) -> Iterator[dict[str, str]]:
    """Read a table of the package; its first line names the source."""
    with (_DATA / name).open(encoding="utf-8", newline="") as lines:
        next(lines)
        yield from csv.DictReader(lines)


def _number(text: str) -> float | None:
    """Return a number, None for an empty cell."""
    return float(text) if text else None


@lru_cache(maxsize=1)
def _chips() -> dict[str, Chip]:
    """Read the table of chips."""
    found = {}
    for row in _rows("chips.csv"):
        kind, day = row["kind"], row["release_date"]
        if kind == "cpu":
            continue
        found[row["name"]] = Chip(
            name=row["name"],
            kind=kind,
            release_date=datetime.date.fromisoformat(day) if day else None,
            peak_flops_per_s=_peak(row),
            tdp_w=_number(row["tdp_w"]),
        )
    return found


def _peak(row: dict[str, str]) -> float | None:
    """Return the peak of training: tensor rates first, fp16 and int8 only for TPUs, then fp32."""
    names = (*_PEAKS, "fp16_flops_per_s", "int8_ops_per_s", "fp32_flops_per_s")
    # GPUs without tensor cores were trained on in fp32; a TPU multiplies 16 or 8 bits only.
    if row["kind"] != "tpu":
        names = (*_PEAKS, "fp32_flops_per_s", "fp16_flops_per_s")
    return next((float(row[name]) for name in names if row[name]), None)


@lru_cache(maxsize=1)
def _prices() -> tuple[PriceObservation, ...]:
    """Read the table of prices in the order of their dates."""
    rows = sorted(_rows("prices.csv"), key=lambda row: row["date"])
    rates = ("on_demand_usd_per_hour", "one_year_usd_per_hour", "three_year_usd_per_hour")
    return tuple(
        PriceObservation(
            date=datetime.date.fromisoformat(row["date"]),
            chip=row["chip"],
            vendor=row["vendor"],
            **{name: _number(row[name]) for name in (*rates, "purchase_usd")},
            unit=row["unit"],
            source=row["source"],
        )
        for row in rows
    )


@lru_cache(maxsize=1)
def _index() -> dict[str, float]:
    """Read the price index by month."""
    return {row["month"]: float(row["index"]) for row in _rows("price_index.csv")}


def _words(name: str) -> list[str]:
    """Split a name into words that are compared; a capacity is one word."""
    return re.findall(r"[a-z0-9.]+", _GB.sub(r"\1gb", name.lower().replace("_", " ")))


def _near(name: str) -> str:
    """Return a hint at chips that have a word spelled like one of the name."""
    by_word: dict[str, list[str]] = {}
    for known in _chips():
        for word in _words(known):
            by_word.setdefault(word, []).append(known)
    close = [
        item
        for word in _words(name)
        for item in difflib.get_close_matches(word, by_word, n=2, cutoff=0.5)
    ]
    found = dict.fromkeys(known for word in close for known in by_word[word])
    return f"near names: {', '.join(list(found)[:5])}" if found else "such as a100-40"
