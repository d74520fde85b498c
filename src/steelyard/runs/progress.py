"""Progress of a long job on standard error: a bar on a terminal, plain lines everywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from steelyard.units import pretty_duration

__all__ = ["Advance", "StageBar", "progress", "silent_bar"]

Advance = Callable[[float, str], None]
"""Told how much of a job is done, and a few words on how it goes."""

StageBar = Callable[[str], AbstractContextManager[Advance]]
"""Opens the bar of a named stage of a job; it is told the finished share, 0..1."""

_EVERY_S = 10.0
"""Time between two plain lines: often enough to see life, seldom enough for a log."""


def silent_bar(name: str) -> AbstractContextManager[Advance]:
    """Open a bar nobody sees; `name` is the stage's."""
    del name
    return nullcontext(lambda done, words: None)


@contextmanager
def progress(name: str, *, total: float = 1.0, quiet: bool = False) -> Iterator[Advance]:
    """Show the progress of a job; when it ends, one line with its duration stays.

    Args:
        name: the job in a few words.
        total: amount that is everything, such as steps; 1 for a share.
        quiet: show nothing.

    Yields:
        What the job calls with the amount that is done, from 0 to `total`, and a few words.
    """
    if quiet:
        yield lambda done, words: None
        return
    began_s = time.monotonic()
    with _bar(name, total) if sys.stderr.isatty() else _lines(name, total) as advance:
        yield advance
    sys.stderr.write(f"✓ {name:<24} {time.monotonic() - began_s:6.1f} s\n")


@contextmanager
def _bar(name: str, total: float) -> Iterator[Advance]:
    """Draw a bar that disappears at the end."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from steelyard.runs.screen import screen

    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(32),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[words]}"),
    )
    with Progress(*columns, console=screen(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total, words="")
        yield lambda done, words: bar.update(task, completed=done, words=words)


@contextmanager
def _lines(name: str, total: float) -> Iterator[Advance]:
    """Write a line every so many seconds: what is done, how it goes, and the time left."""
    last_s = time.monotonic()
    # What passes before the first amount is done, such as waiting for a quiet machine or compiling,
    # is not the pace of what is left.
    first: tuple[float, float] | None = None

    def advance(done: float, words: str) -> None:
        nonlocal last_s, first
        now_s = time.monotonic()
        if first is None and done:
            first = now_s, done
        if now_s - last_s < _EVERY_S or first is None:
            return
        last_s = now_s
        (first_s, begun), left = first, ""
        if done > begun:
            seconds = (now_s - first_s) * (total - done) / (done - begun)
            left = f"{pretty_duration(seconds)} left"
        amount = f"{100 * done / total:.0f} %" if total == 1 else f"{done:,.0f} of {total:,.0f}"
        parts = [f"{name}: {amount}", words, left]
        sys.stderr.write(", ".join(part for part in parts if part) + "\n")
        sys.stderr.flush()

    yield advance
