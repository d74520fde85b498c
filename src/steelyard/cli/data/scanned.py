"""Files that a verb of `steelyard data` is given, looked at as a table."""

from typing import TYPE_CHECKING, Annotated

import cyclopts

from steelyard.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.data.table import DataTable

__all__ = ["Sources", "kinds_of", "names_of", "scanned"]

Sources = Annotated[
    str,
    cyclopts.Parameter(help="Files, patterns such as 'sales/*.csv', folders, and addresses."),
]
"""The help of arguments that may be many stands here: it is not read from a docstring."""


def names_of(text: str) -> list[str]:
    """Return the names between commas.

    Args:
        text: value of an option such as --leave-out.

    Returns:
        Names without the spaces around them; empty ones are left out.
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def scanned(sources: tuple[str, ...], kinds: "Mapping[str, str]") -> "DataTable":
    """Look at files; the libraries that read them are an extra.

    Args:
        sources: files, patterns and folders, one or more.
        kinds: kinds of columns of text files.

    Returns:
        The table.

    Raises:
        BackendError: Arrow is not installed.
        DataError: nothing can be read.
        ConfigError: a kind is unknown, or of a column that there is not.
    """
    try:
        from steelyard.data.table import DataTable

        return DataTable.scan(*sources, types=kinds)
    except ImportError as error:
        raise BackendError(
            "tables in files are read with Arrow, which is not installed",
            hint="pip install 'steelyard[data]'",
        ) from error


def kinds_of(given: str) -> dict[str, str]:
    """Return kinds by column from "a=text, b=number".

    Args:
        given: value of --types.

    Returns:
        Kinds; whether they are known is not looked at.

    Raises:
        ConfigError: a part is no column and kind.
    """
    found = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, is_given, kind = part.rpartition("=")
        if not is_given:
            raise ConfigError(
                f"--types has {part!r}, but each part is a column and its kind",
                hint='such as --types "id=text, price=number"',
            )
        found[name.strip()] = kind.strip()
    return found
