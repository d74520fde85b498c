"""Kills command lines at random moments with SIGKILL, runs them again, and compares what they made.

Run as a program this file loads libraries once and then forks a process for each line that it is
given: a fresh process without the seconds that imports take. A process that was forked is as one
that was started, as nothing but imports stands before.
"""

import gc
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
_TRIES = 5
"""Kills that may come after the end, for each that is wanted."""


@dataclass(frozen=True)
class Ended:
    """How a line ended.

    Attributes:
        code: exit code; -9 where it was killed.
        steps: changes to files below its folder; 0 where it was killed.
        took_s: seconds from its start to its end.
        told: what it printed.
    """

    code: int
    steps: int
    took_s: float
    told: str


class KilledLines:
    """Runs lines, and kills them."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path) -> None:
        self._server, self._folder = server, folder

    def run(
        self,
        words: list[str],
        within: Path,
        *,
        step: int = 0,
        after_s: float | None = None,
        most_bytes: int = 0,
    ) -> Ended:
        """Run one line.

        Args:
            words: words after `steelyard`; or "-c", a program and its arguments, as of Python.
            within: folder below which changes to files count: those opened for writing, made,
                renamed and removed. Caches of kernels elsewhere are written once.
            step: its process is killed before this change to files; 0 for no such kill.
            after_s: it is killed after so many seconds.
            most_bytes: longest file that it can write, as on a full disk; 0 for any.

        Returns:
            How it ended.
        """
        told = self._folder / "told.txt"
        order = {"words": words, "within": str(within), "step": step, "after_s": after_s}
        order |= {"told": str(told), "most_bytes": most_bytes}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        code, steps, took_s = json.loads(self._server.stdout.readline())
        return Ended(code, steps, took_s, told.read_text(errors="replace"))

    def check(
        self,
        line: Callable[[Path], list[str]],
        folder: Path,
        *,
        kills: int,
        prepare: Callable[[Path], Any] = lambda _: None,
        made: Callable[[Path], Any] | None = None,
        timed: bool = False,
        seed: int = 0,
    ) -> int:
        """Kill a line as often as wanted, each time from the start, and run it again to the end.

        Moments are drawn over the changes that it makes to files, which no speed of the machine
        moves; with `timed` every other one over its seconds.

        Args:
            line: the words, for the folder that it works in.
            folder: for the folder of a run.
            kills: processes to kill.
            prepare: fills the folder of a run.
            made: what must be the same; every file below the folder and its bytes when left out.
            timed: whether some kills come at a moment and not at a change to a file.
            seed: of the moments.

        Returns:
            Kills after which something that was begun stood in the folder.
        """
        made, draw = made or files_of, random.Random(seed)
        # One name for all: what is made may hold the path of where it is made.
        begun, here = 0, folder / "here"
        whole = self._whole(here, prepare, line, 1 + timed)
        wanted, empty = made(here), self._prepared(here, prepare)
        for place in range(kills):
            for turn in range(_TRIES):
                self._prepared(here, prepare)
                at = _moment(whole, draw, timed=timed and place % 2 == 1)
                if "after_s" in at:
                    # A process may be faster than the undisturbed one was.
                    at["after_s"] /= 2**turn
                ended = self.run(line(here), here, **at)
                if ended.code == -signal.SIGKILL:
                    break
            assert ended.code == -signal.SIGKILL, f"it ended by itself: {ended}"
            begun += files_of(here) != empty
            again = self.run(line(here), here)
            assert again.code == 0, f"killed at {at}, the same line said: {again.told}"
            _assert_same(made(here), wanted, at)
        return begun

    def _whole(self, here: Path, prepare: Callable[[Path], Any], line: Any, times: int) -> Ended:
        """Run a line undisturbed; where its seconds count twice, as the first may compile."""
        for _ in range(times):
            self._prepared(here, prepare)
            ended = self.run(line(here), here)
            assert ended.code == 0, ended.told
        return ended

    @staticmethod
    def _prepared(here: Path, prepare: Callable[[Path], Any]) -> dict[str, str]:
        """Make the folder of a run, and return its files."""
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        prepare(here)
        return files_of(here)


def _moment(whole: Ended, draw: random.Random, *, timed: bool) -> dict[str, Any]:
    """Draw when a run is killed."""
    if timed:
        return {"after_s": draw.random() * whole.took_s}
    return {"step": draw.randint(1, whole.steps)}


def files_of(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder; locks are empty and stay behind by design."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "a folder"
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }


def _assert_same(found: Any, wanted: Any, at: dict[str, Any]) -> None:
    """Compare, and name what differs alone."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = {name for name in found | wanted if found.get(name) != wanted.get(name)}
        assert not names, f"killed at {at}, these differ: {sorted(names)}"
    assert found == wanted, f"killed at {at}"


@contextmanager
def killed_lines(folder: Path, *modules: str, home: Path | None = None) -> Iterator[KilledLines]:
    """Start what runs lines.

    Args:
        folder: for what lines print.
        *modules: imported before any line is run; they must start no threads.
        home: the user's folder of the lines.

    Yields:
        What runs lines and kills them.
    """
    words = [sys.executable, str(Path(__file__)), *modules]
    # Threads do not outlive a fork, and waiting ones take a core from others.
    given = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    given |= {"STEELYARD_HOME": str(home or folder / "home")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, text=True, cwd=_ROOT, env=given
    ) as server:
        yield KilledLines(server, folder)
        assert server.stdin is not None
        server.stdin.close()


def _serve(modules: list[str]) -> None:
    """Fork a process for each line that comes, and answer how it ended."""
    for name in modules:
        importlib.import_module(name)
    # What numba would import and set up before its first kernel: the same second for each process.
    target = importlib.import_module("numba.core.registry").cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
    # A collection in a child would look through all that was imported, and copy its memory.
    gc.collect()
    gc.freeze()
    for order in map(json.loads, sys.stdin):
        reading, writing = os.pipe()
        began_s = time.perf_counter()
        process = os.fork()
        if not process:
            os.close(reading)
            _run(order, writing)
        os.close(writing)
        if order["after_s"] is not None:
            time.sleep(order["after_s"])
            os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        took_s = time.perf_counter() - began_s
        with os.fdopen(reading) as pipe:
            steps = int(pipe.read() or 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), steps, took_s]), flush=True)


def _run(order: dict[str, Any], writing: int) -> None:
    """Run a line in this process, count its changes to files, and end."""
    out = os.open(order["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if most := order["most_bytes"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    counted = [0]

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if _is_change(event, arguments, order["within"]):
            counted[0] += 1
            if counted[0] == order["step"]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    code = 1
    try:
        _do(order["words"])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        # What the line said goes to a file too.
        free = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (free, free))
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os.write(writing, str(counted[0]).encode())
        os._exit(code)


def _is_change(event: str, arguments: tuple[Any, ...], within: str) -> bool:
    """Return whether a file or folder below a folder is made, opened for writing or removed."""
    if event == "open":
        if not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return False
    elif event not in _CHANGES:
        return False
    # Trees are removed by names relative to a folder that is open.
    path = os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else ""
    return path.startswith(within) or not os.path.isabs(path)  # noqa: PTH117


def _do(words: list[str]) -> None:
    """Do what a line says."""
    if words[0] == "-c":
        sys.argv = words[1:]
        exec(words[1], {"__name__": "__main__"})
        return
    from steelyard.cli.main import main

    main(words)


if __name__ == "__main__":
    _serve(sys.argv[1:])
