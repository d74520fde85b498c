"""One formula of a chain, with the numbers that were put in and where they come from."""

import re
from dataclasses import dataclass

__all__ = ["ChainStep", "number_text"]

_NAME = re.compile(r"[A-Za-z_]\w*")
_WORDS = ("x", "max", "min", "ceil")
"""Words of a formula that name no number: times, and three functions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainStep:
    """A formula and its result.

    Attributes:
        name: what it gives, as the formulas after it call it.
        formula: arithmetic over names and numbers with + - x / ^ ( ), max, min and ceil.
        numbers: what is put in for each name, in base units.
        value: the result that the answer used, in base units.
        unit: unit of the result.
        source: where the numbers come from.
    """

    name: str
    formula: str
    numbers: dict[str, float]
    value: float
    unit: str
    source: str

    def __post_init__(self) -> None:
        """Check that every name of the formula has a number."""
        # A mistake of the package, never of its user: hence no exception of the project.
        unknown = {*_NAME.findall(self.formula)} - {*self.numbers, *_WORDS}
        assert not unknown, f"{self.name} lacks {', '.join(sorted(unknown))}"

    @property
    def filled(self) -> str:
        """The formula with numbers in place of names."""

        def number(found: re.Match[str]) -> str:
            return number_text(self.numbers[found[0]]) if found[0] in self.numbers else found[0]

        return _NAME.sub(number, self.formula)


def number_text(value: float) -> str:
    """Write a number with six digits: 8.03026e9, 0.62, 4096."""
    if value == int(value) and abs(value) < 1e7:
        return f"{value:.0f}"
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.6g}")
