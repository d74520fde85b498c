"""The console that verbs print to: a terminal as it is, a pipe at full width without colours."""

import os
import sys

from rich.console import Console

__all__ = ["screen"]

_FULL_WIDTH = 4096
"""Columns of a pipe or a file: wide enough that nothing wraps."""


def screen(*, stderr: bool = False) -> Console:
    """Return a console for standard output or standard error.

    A terminal has its own width. Into a pipe or file whole lines are written, whatever COLUMNS
    says, so that names can be searched for. With NO_COLOR set, no style is written at all.

    Args:
        stderr: whether to print to standard error.

    Returns:
        The console.
    """
    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty()
    return Console(
        stderr=stderr,
        highlight=False,
        width=None if stream.isatty() else _FULL_WIDTH,
        color_system=None if plain else "auto",
    )
