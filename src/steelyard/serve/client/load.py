"""A load on a server: rows of a trace, sent in a closed loop or at their arrival times."""

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from steelyard.errors import BackendError, ConfigError, DataError
from steelyard.serve.client.record import RequestRecord
from steelyard.serve.client.worker import (
    Go,
    LoadOptions,
    Message,
    NumDone,
    Result,
    Warm,
    WorkerPlan,
    open_channel,
)
from steelyard.serve.traces.record import TraceRow

__all__ = ["LoadOptions", "LoadResult", "run_load"]

_WARM_UP_INDEX = 10**9
_LEAD_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadResult:
    """What a load saw.

    Attributes:
        records: what became of each request sent, by row of the trace.
        cpu_shares: processor seconds per second of each sending process.
        is_open: whether requests were sent at their arrival times.
        started_at_s: wall clock at the start, seconds since 1970 (UTC).
    """

    records: list[RequestRecord]
    cpu_shares: list[float]
    is_open: bool
    started_at_s: float


def run_load(
    options: LoadOptions,
    rows: Sequence[TraceRow],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> LoadResult:
    """Send rows to a server and record what came back.

    The turns of a session go one after the other, each when the answer before it came and its
    sender has thought.

    Args:
        options: how the load is sent.
        rows: requests by arrival.
        on_progress: takes the number of requests done, now and then.

    Returns:
        Records of all requests that were sent, failed ones included.

    Raises:
        ConfigError: there are no rows.
        BackendError: the server refuses the warm-up, or a sending process died.
    """
    if not rows:
        raise ConfigError("there is nothing to send", hint="take a trace with at least one request")
    plans = [
        _plan(options, rows, number) for number in range(min(options.num_processes, len(rows)))
    ]
    workers = [_Worker(plan) for plan in plans]
    try:
        for worker in workers:
            worker.wait_ready()
        # All processes start at one moment a little ahead, by when each has its message.
        start_s = time.perf_counter() + _LEAD_S
        started_at_s = time.time() + _LEAD_S
        for worker in workers:
            worker.send(Go(start_s))
        results = _gather(workers, on_progress)
    finally:
        for worker in workers:
            worker.close()
    records = sorted(
        (record for result in results for record in result.records), key=lambda record: record.index
    )
    shares = [result.cpu_share for result in results]
    return LoadResult(
        records=records,
        cpu_shares=shares,
        is_open=not options.concurrency,
        started_at_s=started_at_s,
    )


def _plan(options: LoadOptions, rows: Sequence[TraceRow], number: int) -> WorkerPlan:
    """Return one process its part."""
    count = min(options.num_processes, len(rows))
    chains: dict[str, list[tuple[int, TraceRow]]] = {}
    for index, row in enumerate(rows):
        chains.setdefault(row.session or f"\0{index}", []).append((index, row))
    warm = [rows[index % len(rows)] for index in range(number, options.warm_up, count)]
    concurrency = (
        options.concurrency // count + (number < options.concurrency % count)
        if options.concurrency
        else 0
    )
    return WorkerPlan(
        options=replace(options, concurrency=concurrency),
        chains=list(chains.values())[number::count],
        warm_up=[
            (_WARM_UP_INDEX + number + index * count, replace(row, hash_ids=(), session=""))
            for index, row in enumerate(warm)
        ],
    )


class _Worker:
    """A sending process and the thread that reads what it writes."""

    def __init__(self, plan: WorkerPlan) -> None:
        """Start it."""
        own, theirs = socket.socketpair()
        number = theirs.fileno()
        command = [sys.executable, "-m", "steelyard.serve.client.worker", str(number)]
        with theirs:  # the process holds it now; kept open here, its end would never be seen
            self.process = subprocess.Popen(command, pass_fds=[number])
        self._channel = open_channel(own)
        self.messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.send(plan)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Queue messages until the process closes its end, in the middle of one if it is killed."""
        with contextlib.suppress(OSError, DataError):
            while (message := self._channel.receive()) is not None:
                self.messages.put(message)
        self.messages.put(None)

    def send(self, message: Message) -> None:
        """Send a message to the process; a dead one is noticed by the reader."""
        with contextlib.suppress(OSError):
            self._channel.send(message)

    def wait_ready(self) -> None:
        """Wait for the end of the warm-up."""
        message = self.messages.get()
        if not isinstance(message, Warm):
            raise BackendError(
                "a sending process ended while it warmed up", hint="its message stands above"
            )
        if message.message:
            raise BackendError(
                f"the server failed a warm-up request: {message.message}",
                hint="check the model, --send and --vocab-size",
            )

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._channel.close()


def _gather(workers: list[_Worker], on_progress: Callable[[int], None] | None) -> list[Result]:
    """Wait for the results of all processes."""
    done = [0] * len(workers)
    results: dict[int, Result] = {}
    while len(results) < len(workers):
        for number, worker in enumerate(workers):
            if number in results:
                continue
            try:
                message = worker.messages.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(message, NumDone):
                done[number] = message.count
            elif isinstance(message, Result):
                results[number] = message
                done[number] = len(message.records)
            else:
                raise BackendError(
                    "a sending process died in the middle of the load",
                    hint="its message stands above",
                )
            if on_progress is not None:
                on_progress(sum(done))
    return [results[number] for number in range(len(workers))]
