"""Command lines as scripts, and back: `--flag value`, one a line."""

import shlex

from steelyard.errors import ConfigError

__all__ = ["as_count", "read_flags", "script"]

_MOST_CHARACTERS = 65536


def script(command: list[str], flags: dict[str, str]) -> str:
    """Write a command line as a shell script.

    Args:
        command: program with its own arguments.
        flags: values by flag, empty for a flag without one.

    Returns:
        The script, with a flag on each line; what it is called with comes last.
    """
    lines = [shlex.join(command)]
    lines += [shlex.join([name, value] if value else [name]) for name, value in flags.items()]
    return "#!/usr/bin/env bash\nexec " + " \\\n    ".join([*lines, '"$@"']) + "\n"


def read_flags(text: str) -> dict[str, str]:
    """Read the flags of a command line; nothing is run.

    Args:
        text: a script of one command, or the command line alone.

    Returns:
        Values by flag, dashes included, empty for a flag without one. Of "--flag=value" and "--flag
        value" both are read; underscores in names count as dashes.

    Raises:
        ConfigError: the text is longer than 64 KiB, or a quote is not closed.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            f"the command line has {len(text)} characters, but at most {_MOST_CHARACTERS} are read"
        )
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise ConfigError(f"the command line cannot be read: {error}") from error
    flags: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            name = name.replace("_", "-")
            flags[name] = value
        elif name and not flags[name] and word != "$@":
            flags[name] = word
    return flags


def as_count(flags: dict[str, str], name: str, default: int | None = None) -> int:
    """Return a flag's whole number.

    Args:
        flags: values by flag.
        name: name of the flag.
        default: what counts where it is missing; None where it must be there.

    Returns:
        The number, at least 1.

    Raises:
        ConfigError: it is missing, or no whole number of at least 1.
    """
    value = flags.get(name, "" if default is None else str(default))
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{name} is {value!r}, but must be a whole number of at least 1")
    return int(value)
