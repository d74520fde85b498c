"""Files that a verb of `steelyard data` is given, looked at as a table."""

from typing import TYPE_CHECKING

from steelyard.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.data.table import DataTable

__all__ = ["kinds_of", "scanned"]


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
