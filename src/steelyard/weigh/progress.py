"""Progress of a long job: one bar per stage on standard error."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

__all__ = ["Advance", "StageBar", "console_bar", "silent_bar"]

Advance = Callable[[float, str], None]
"""Told the finished fraction of a stage (0..1) and a few words on what it does."""

StageBar = Callable[[str], AbstractContextManager[Advance]]
"""Opens the bar of a named stage."""


def silent_bar(name: str) -> AbstractContextManager[Advance]:
    """Open a bar nobody sees; `name` is the stage's."""
    del name
    return nullcontext(lambda fraction, words: None)


@contextmanager
def console_bar(name: str) -> Iterator[Advance]:
    """Open a bar on standard error; when the stage ends, one line with its duration stays."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    began_s = time.monotonic()
    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(32),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, TextColumn("[dim]{task.fields[words]}"), console=console, transient=True
    ) as progress:
        task = progress.add_task(name, total=1.0, words="")
        yield lambda fraction, words: progress.update(task, completed=fraction, words=words)
    console.print(
        f"[green]✓[/] {name:<24} [dim]{time.monotonic() - began_s:6.1f} s[/]", highlight=False
    )
