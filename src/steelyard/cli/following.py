"""The next useful command, filled in, as the last line of an answer on a terminal."""

import shlex
import sys

from rich.text import Text

from steelyard.runs.screen import screen

__all__ = ["say_next"]


def say_next(*words: object) -> None:
    """Print a command line that goes on from an answer, ready to be pasted.

    It is printed to terminals only: in a pipe or file there are the answers alone.

    Args:
        *words: words after `steelyard`; empty ones are left out.
    """
    if not sys.stdout.isatty():
        return
    line = shlex.join(["steelyard", *(str(word) for word in words if str(word))])
    # A line that the console broke would paste as two commands: the terminal wraps it instead.
    text = Text(f"next: {line}", style="dim", no_wrap=True, overflow="ignore")
    screen().print(text, soft_wrap=True, crop=False)
