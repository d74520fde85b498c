"""What is known of techniques for long contexts: goals, price, and what goes with what."""

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from steelyard import config
from steelyard.errors import ConfigError

__all__ = ["Technique", "refuse_pairs", "technique", "techniques"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Technique:
    """One technique, as publications describe it; nothing here was measured.

    Attributes:
        name: its name.
        layer: "model", "system" or "agent".
        family: what kind of technique it is.
        goals: what it improves, of "C" (context), "A" (accuracy) and "P" (performance).
        price: what it usually costs.
        needs_training: whether weights have to be trained for it.
        exact: whether outputs are those of the plain model but for rounding.
        composes_with: names of techniques that are known to work beside it.
        incompatible: names of those that are not, each with the reason.
        here: how this package runs it; empty where it does not.
        source: publication.

    Source: Zeng et al. 2024 (arXiv 2405.11299), sections 3 to 5.
    """

    name: str
    layer: str
    family: str
    goals: str
    price: str
    needs_training: bool
    exact: bool
    composes_with: tuple[str, ...]
    incompatible: dict[str, str]
    here: str
    source: str


@dataclass(frozen=True)
class _TechniqueFile:
    """The knowledge file."""

    technique: tuple[Technique, ...]


@cache
def techniques() -> dict[str, Technique]:
    """Return all techniques by name, in the order of the file."""
    found = config.load(Path(__file__).with_name("techniques.toml"), _TechniqueFile).technique
    return {item.name: item for item in found}


def technique(name: str) -> Technique:
    """Return one technique.

    Args:
        name: its name.

    Returns:
        The technique.

    Raises:
        ConfigError: there is none of this name; near ones are named.
    """
    known = techniques()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or list(known)
        raise ConfigError(f"unknown technique {name!r}", hint=f"such as {', '.join(near)}")
    return known[name]


def refuse_pairs(names: Sequence[str]) -> None:
    """Refuse techniques that cannot be had together.

    Args:
        names: techniques of one configuration.

    Raises:
        ConfigError: a name is unknown, or two of them exclude each other; the reason is given.
    """
    for one, other in itertools.combinations([technique(name) for name in names], 2):
        reason = one.incompatible.get(other.name) or other.incompatible.get(one.name)
        if reason:
            raise ConfigError(
                f"{one.name} cannot be had with {other.name}: {reason}", hint="leave one out"
            )
