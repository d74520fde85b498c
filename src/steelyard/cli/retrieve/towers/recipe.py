"""The recipe of a walk from a folder of texts to a distilled tower of queries."""

from dataclasses import dataclass, field
from pathlib import Path

from steelyard.cli.retrieve.towers.texts import (
    WORDS,
    PairOptions,
    RunOptions,
    ShapeOptions,
    StudentOptions,
)
from steelyard.config import load
from steelyard.errors import require

__all__ = ["TowersRecipe", "read_recipe"]


@dataclass(frozen=True, kw_only=True)
class TowersRecipe:
    """What `towers train` and `towers distill` do, one after the other.

    Attributes:
        words: most words of a passage of a folder.
        learning: what the teachers learn from.
        teacher: what they are like.
        training: how they are trained.
        student: what the student is like.
        distilling: how it is trained.
        made: queries that are made for it besides those there are.
    """

    words: int = WORDS
    learning: PairOptions = field(default_factory=PairOptions)
    teacher: ShapeOptions = field(default_factory=ShapeOptions)
    training: RunOptions = field(default_factory=RunOptions)
    student: StudentOptions = field(default_factory=StudentOptions)
    distilling: RunOptions = field(default_factory=RunOptions)
    made: int = 0

    def __post_init__(self) -> None:
        """Refuse passages of a few words."""
        require(self, words=(self.words >= 8, "8 or more"), made=(self.made >= 0, "0 or more"))


def read_recipe(path: Path | None) -> TowersRecipe:
    """Read a recipe.

    Args:
        path: TOML file; None for the usual values.

    Returns:
        The recipe.

    Raises:
        ConfigError: the file is missing, or a field is unknown, of another kind or out of range.
    """
    return load(path, TowersRecipe) if path is not None else TowersRecipe()
