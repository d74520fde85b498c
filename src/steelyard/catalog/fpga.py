"""Facts about one FPGA card: what can be built on it, and what its shell takes of that."""

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from steelyard.errors import CatalogError

__all__ = ["Fpga", "fpga", "fpga_names"]

_FILE = Path(__file__).parent / "data" / "fpgas.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fpga:
    """One card with its shell.

    Attributes:
        name: name that `fpga` finds it by.
        hz: clock that designs for it reached.
        lut: lookup tables.
        ff: flip-flops.
        bram18k: block memories of 18 Kbit.
        dsp: multipliers.
        uram: large block memories of 288 Kbit.
        banks: banks of the memory on the package.
        bank_bytes: size of one bank.
        shell_lut: lookup tables that the shell takes.
        shell_ff: flip-flops that it takes.
        shell_bram18k: block memories that it takes.
        confidence: high, medium or unsure.
        source: paper or documentation where the facts stand.
    """

    name: str
    hz: float
    lut: float
    ff: float
    bram18k: float
    dsp: float
    uram: float
    banks: int
    bank_bytes: float
    shell_lut: float
    shell_ff: float
    shell_bram18k: float
    confidence: str
    source: str


def fpga_names() -> list[str]:
    """List the cards that are known."""
    return list(_records())


def fpga(name: str) -> Fpga:
    """Return a card.

    Args:
        name: name that `fpga_names` lists; case does not matter.

    Returns:
        The card.

    Raises:
        CatalogError: the name is unknown.
    """
    known = {item.lower(): values for item, values in _records().items()}
    if name.lower() not in known:
        raise CatalogError(f"no FPGA named {name!r}", hint=f"known: {', '.join(fpga_names())}")
    return known[name.lower()]


@cache
def _records() -> dict[str, Fpga]:
    """Read the file once."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(_FILE.read_text())["fpgas"]
    allowed = {field.name for field in fields(Fpga)}
    for name, values in tables.items():
        if unknown := set(values) - allowed:
            raise CatalogError(f"{_FILE}: [fpgas.{name}] has unknown fields {sorted(unknown)}")
    return {name: Fpga(name=name, **values) for name, values in tables.items()}
