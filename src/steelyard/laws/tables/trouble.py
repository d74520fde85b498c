"""Something about a table or a fit that a reader of the answer has to know first."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from steelyard.errors import FitError

__all__ = ["Trouble", "keep_trouble", "stored_trouble"]

Kind = Literal[
    "constant", "rising", "mixed", "units", "design", "one-sided", "bound", "edge", "flat"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Something that a reader of the answer has to know first.

    Attributes:
        kind: "constant" or "rising" losses, "mixed" recipes, "units" that differ within a column,
            "design" of the sizes, "one-sided" residuals, a parameter at its "bound", an optimum at
            the "edge" of the runs, a law that is "flat" in one input.
        sentence: what was seen, with the numbers.
        advice: what to do about it.
        rows: rows it was seen in, as the source counts them, the first is 1; empty for all.
        columns: columns concerned.
    """

    kind: Kind
    sentence: str
    advice: str
    rows: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return both sentences."""
        return f"{self.sentence}; {self.advice}"


def keep_trouble(stored: str, trouble: Sequence[Trouble]) -> str:
    """Write findings into the JSON of a fit, whose own reader passes over them.

    Args:
        stored: JSON of a fit.
        trouble: what was found in its table.

    Returns:
        The JSON with one more key, "trouble".
    """
    found = {"trouble": [asdict(item) for item in trouble]}
    return json.dumps(json.loads(stored) | found, indent=1, allow_nan=False)


def stored_trouble(stored: str) -> tuple[Trouble, ...] | None:
    """Read the findings that `keep_trouble` wrote.

    Args:
        stored: JSON of a fit.

    Returns:
        The findings; None where none were kept.

    Raises:
        FitError: the text is not such a JSON.
    """
    try:
        found = json.loads(stored).get("trouble")
        if found is None:
            return None
        return tuple(
            Trouble(**one | {name: tuple(one[name]) for name in ("rows", "columns")})
            for one in found
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FitError(
            f"this is not a stored fit: {error}",
            hint="pass the JSON that `laws fit --json` or Fit.to_json wrote",
        ) from error
