"""Progress of the quickstart: one bar per stage."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from steelyard.runs.progress import Advance

__all__ = ["Advance", "StageBar", "silent_bar"]

StageBar = Callable[[str], AbstractContextManager[Advance]]
"""Opens the bar of a named stage; it is told the finished share, 0..1."""


def silent_bar(name: str) -> AbstractContextManager[Advance]:
    """Open a bar nobody sees; `name` is the stage's."""
    del name
    return nullcontext(lambda done, words: None)
