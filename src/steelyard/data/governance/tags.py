"""What columns say of people: identifiers, quasi-identifiers, sensitive values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.config import dump, load
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from steelyard.data.table import TableProfile

__all__ = ["TAGS", "ColumnTags", "suggest_tags"]

TAGS = ("identifier", "quasi-identifier", "sensitive", "plain")
"""An identifier names a person; quasi-identifiers do so together; a sensitive value harms."""
_IDENTIFIERS = r"(^|_)(name|e?mail|phone|ssn|iban|passport|user_?id|customer_?id|login|ip)($|_)"
_QUASI = r"(^|_)(zip|postcode|postal|city|birth|dob|age|sex|gender|job|nationality)($|_)"
_SENSITIVE = r"(^|_)(diagnosis|disease|salary|income|religion|party|health|ethnicity|race)($|_)"


@dataclass(frozen=True, kw_only=True)
class ColumnTags:
    """Tags of columns.

    Attributes:
        columns: one of `TAGS` by column.
    """

    columns: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse other tags.

        Raises:
            ConfigError: there is none of the name.
        """
        if wrong := [tag for tag in self.columns.values() if tag not in TAGS]:
            raise ConfigError(f"no tag {wrong[0]!r}", hint=f"tags are {', '.join(TAGS)}")

    def tagged(self, tag: str) -> list[str]:
        """Return the columns of a tag."""
        return [name for name, own in self.columns.items() if own == tag]

    def save(self, path: Path) -> None:
        """Write the tags to a file that ends in .json."""
        dump(self, path)

    @classmethod
    def open(cls, path: Path) -> "ColumnTags":
        """Read tags.

        Args:
            path: file of `save`.

        Returns:
            The tags.

        Raises:
            ConfigError: the file cannot be read, or a tag is unknown.
        """
        return load(path, cls)


def suggest_tags(profile: "TableProfile", known: Mapping[str, str] | None = None) -> ColumnTags:
    """Suggest tags by names of columns and by how many of their values differ.

    A suggestion is no finding: someone who knows the table has to look at it.

    Args:
        profile: of the table.
        known: tags that are given.

    Returns:
        A tag for each column. Texts and whole numbers that differ in nearly every row are taken to
        be identifiers, names of columns tell the others.
    """
    found = {}
    for column in profile.columns:
        name = column.name.lower()
        rows = max(profile.rows - column.missing, 1)
        is_unique = column.distinct > 0.95 * rows and rows >= 20
        can_name = column.type in ("string", "int64", "int32", "uint64", "uint32")
        tag = "plain"
        if re.search(_SENSITIVE, name):
            tag = "sensitive"
        elif re.search(_QUASI, name):
            tag = "quasi-identifier"
        elif re.search(_IDENTIFIERS, name) or (is_unique and can_name):
            tag = "identifier"
        found[column.name] = tag
    return ColumnTags(columns=found | dict(known or {}))
