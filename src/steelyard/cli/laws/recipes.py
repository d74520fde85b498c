"""The question of `laws compare --by`: which recipe is best at a size."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from steelyard.cli.laws.answers import recipes_page
from steelyard.cli.laws.options import dump, numbers
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from steelyard.laws.tables.table import RunTable

__all__ = ["compare_by"]


def compare_by(
    points: "RunTable", target: str, by: str, at: tuple[str, ...], law: str, json: bool
) -> None:
    """Compare recipes at a size and print the answer.

    Args:
        points: runs of all recipes.
        target: column to compare.
        by: column that names the recipe.
        at: the size as NAME=NUMBER.
        law: form that is fitted to each recipe.
        json: print JSON instead of a table.

    Raises:
        ConfigError: no size was given.
    """
    from steelyard.laws.decisions.recipes import compare_recipes
    from steelyard.laws.forms.named import law_named

    if not at:
        raise ConfigError(
            "--by compares recipes at a size", hint="add it, such as --at parameters=7B tokens=140B"
        )
    found = compare_recipes(points, target, by=by, at=numbers(at, "--at"), law=law_named(law))
    if json:
        print(dump(asdict(found) | {"verdict": found.verdict}))
    else:
        recipes_page(found, points.source).print()
