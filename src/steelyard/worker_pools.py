"""Where calls are made: in this process, in processes of this machine (loky), or on a Ray cluster.

A pool runs one function. It keeps nothing of a call but its result, and says when the worker of a
call died, so that whoever asked can ask again.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from steelyard.ray_cluster import join_ray

__all__ = ["LocalPool", "ProcessPool", "RayPool", "WorkerDied", "WorkerPool"]

_LOOK_EVERY_S = 0.02
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerDied(Exception):  # noqa: N818  (it names what happened; users never see it)
    """The worker of a call is gone, and maybe others with it.

    Attributes:
        peak_bytes: most memory the worker was seen to hold, 0 where that is not known.
    """

    def __init__(self, why: str, peak_bytes: int = 0) -> None:
        """Keep what is known."""
        super().__init__(why)
        self.peak_bytes = peak_bytes


class WorkerPool(Protocol):
    """Runs calls of one function."""

    def submit(self, *given: Any, **named: Any) -> Any:
        """Begin a call and return its ticket."""
        ...

    def result(self, ticket: Any) -> Any:
        """Return what a call returned, or raise what it raised; `WorkerDied` for no answer."""
        ...

    def alone(self, *given: Any, **named: Any) -> Any:
        """Make a call in a fresh worker that runs nothing else, and return its result."""
        ...

    def cancel(self, ticket: Any) -> None:
        """Do not begin a call that is still queued."""
        ...

    def kill(self) -> None:
        """Stop what is running."""
        ...


class LocalPool:
    """Makes each call at once, in this process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Take the function."""
        self._function = function

    def submit(self, *given: Any, **named: Any) -> Any:
        """Make the call."""
        return self._function(*given, **named)

    def result(self, ticket: Any) -> Any:
        """Return what it returned."""
        return ticket

    alone = submit

    def cancel(self, ticket: Any) -> None:
        """Do nothing: the call was made."""

    def kill(self) -> None:
        """Do nothing: calls are made one at a time."""


class ProcessPool:
    """Processes of this machine, kept warm between pools."""

    def __init__(self, function: Callable[..., Any], workers: int) -> None:
        """Start the processes that are missing.

        Args:
            function: what each call calls.
            workers: processes, 2 or more.
        """
        self._function, self._workers = function, workers
        self._executor = self._started(workers)

    @staticmethod
    def _started(workers: int) -> Any:
        from joblib.externals.loky import get_reusable_executor

        # Workers share the cores: with a thread pool each they would wait for one another.
        share = str(max((os.cpu_count() or 1) // workers, 1))
        return get_reusable_executor(
            max_workers=workers, timeout=300, env=dict.fromkeys(_THREADS, share)
        )

    def submit(self, *given: Any, **named: Any) -> Any:
        """Queue a call."""
        from joblib.externals.loky import process_executor

        try:
            return self._executor.submit(self._function, *given, **named)
        except process_executor.BrokenProcessPool:
            # Workers died while none was asked; the next ones are fresh.
            self._executor = self._started(self._workers)
            return self._executor.submit(self._function, *given, **named)

    def result(self, ticket: Any) -> Any:
        """Wait for a call."""
        from joblib.externals.loky import process_executor

        try:
            return ticket.result()
        except process_executor.BrokenProcessPool as error:
            raise WorkerDied(_exit_codes(error)) from error

    def alone(self, *given: Any, **named: Any) -> Any:
        """Make a call in a process of its own, whose memory is watched."""
        from joblib.externals.loky import ProcessPoolExecutor, process_executor

        with ProcessPoolExecutor(max_workers=1, env=dict.fromkeys(_THREADS, "1")) as executor:
            ticket = executor.submit(self._function, *given, **named)
            peak = _Peak(lambda: list(executor._processes))  # pyright: ignore[reportPrivateUsage]
            try:
                return ticket.result()
            except process_executor.BrokenProcessPool as error:
                raise WorkerDied(_exit_codes(error), peak.bytes) from error
            except BaseException:
                executor.shutdown(wait=False, kill_workers=True)
                raise
            finally:
                peak.stop()

    def cancel(self, ticket: Any) -> None:
        """Do not begin a call that is still queued; one that runs goes on."""
        ticket.cancel()

    def kill(self) -> None:
        """Kill the processes."""
        self._executor.shutdown(wait=False, kill_workers=True)


def _exit_codes(error: BaseException) -> str:
    """Return the part of a pool's message that says how workers ended."""
    _, found, codes = str(error).partition("The exit codes of the workers are ")
    codes = codes.partition("\n")[0]
    return f"ended with {codes.strip(' .')}" if found else "ended without an answer"


class _Peak:
    """Watches the most memory that any of some processes held, by the kernel's own mark."""

    def __init__(self, processes: Callable[[], list[int]]) -> None:
        self.bytes = 0
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            for process in self._processes():
                self.bytes = max(self.bytes, _high_water_bytes(process))

    def stop(self) -> None:
        """End watching."""
        self._over.set()
        self._thread.join()


def _high_water_bytes(process: int) -> int:
    """Return the most resident memory a process ever held, 0 where the system does not say."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    _, found, rest = status.partition("VmHWM:")
    return int(rest.split()[0]) * 1024 if found else 0


class RayPool:
    """Tasks on a Ray cluster; the function is sent once, and results alone come back."""

    def __init__(self, function: Callable[..., Any], address: str) -> None:
        """Connect.

        Args:
            function: what each call calls.
            address: "auto" or "ray://host:10001".

        Raises:
            BackendError: Ray is not installed, or no cluster answers.
        """
        self._ray = join_ray(address)
        self._function = self._ray.put(function)
        # Whoever asked decides what is asked again, here as with processes.
        self._task = self._ray.remote(max_retries=0)(_call)

    def submit(self, *given: Any, **named: Any) -> Any:
        """Queue a call."""
        return self._task.remote(self._function, given, named)

    def result(self, ticket: Any) -> Any:
        """Wait for a call."""
        errors = self._ray.exceptions
        gone = (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError)
        try:
            return self._ray.get(ticket)
        except gone as error:
            raise WorkerDied(str(error).splitlines()[0]) from error
        except errors.RayTaskError as error:
            raise getattr(error, "cause", error) from error

    def alone(self, *given: Any, **named: Any) -> Any:
        """Make a call again; Ray starts a fresh worker for one that died."""
        return self.result(self.submit(*given, **named))

    def cancel(self, ticket: Any) -> None:
        """Do not begin a call, and end it where it runs."""
        self._ray.cancel(ticket)

    def kill(self) -> None:
        """Do nothing: the cluster ends tasks when their driver leaves."""


def _call(function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a function where Ray put it."""
    return function(*given, **named)
