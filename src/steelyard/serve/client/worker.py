"""A process that sends its part of a load: it takes a plan, sends, returns records.

It speaks with the process that started it over one end of a socket pair, so that nothing a library
prints can end up between the frames.
"""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from steelyard.errors import require
from steelyard.frames import Channel, MessageCodec
from steelyard.serve.client.bodies import BodyMaker, Form
from steelyard.serve.client.record import RequestRecord
from steelyard.serve.client.wire.address import Endpoint
from steelyard.serve.client.wire.connection import ConnectionPool
from steelyard.serve.client.wire.stream import fill_record
from steelyard.serve.heap import freeze_heap
from steelyard.serve.traces.record import TraceRow

__all__ = [
    "Go",
    "LoadOptions",
    "Message",
    "NumDone",
    "Result",
    "Warm",
    "WorkerPlan",
    "open_channel",
]

_PROGRESS_S = 0.25
_LIMIT_BYTES = 2**31
"""Longest message; a plan holds a whole trace, a result the times of all its tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOptions:
    """How a load is sent.

    Attributes:
        endpoint: the server.
        model: name that the requests carry; left out when empty.
        form: "tokens" sends token ids, "text" words, "chat" words as a message.
        concurrency: requests under way at once (closed loop); 0 sends each at its arrival time
            (open loop).
        warm_up: requests sent before the clock starts; they are not recorded.
        processes: number of sending processes; 0 takes one, and another for every 64 concurrent
            requests, at most one per processor.
        timeout_s: longest wait for one answer.
        retries: how often a request is sent again after 429, after the time it asks for.
        duration_s: no request starts later; 0 for no limit.
        seed: seed of the prompts.
        vocab_size: token ids lie below it.
        extra: fields of every body, such as {"top_p": 0.9}; None takes a usual field away, such as
            {"ignore_eos": None}.
    """

    endpoint: Endpoint
    model: str = ""
    form: Form = "tokens"
    concurrency: int = 0
    warm_up: int = 4
    processes: int = 0
    timeout_s: float = 600.0
    retries: int = 0
    duration_s: float = 0.0
    seed: int = 0
    vocab_size: int = 256
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            ConfigError: names the option and its range.
        """
        require(
            self,
            form=(self.form in ("tokens", "text", "chat"), "tokens, text or chat"),
            concurrency=(self.concurrency >= 0, "at least 0"),
            warm_up=(self.warm_up >= 0, "at least 0"),
            processes=(self.processes >= 0, "at least 0"),
            timeout_s=(self.timeout_s > 0, "above 0"),
            retries=(self.retries >= 0, "at least 0"),
            duration_s=(self.duration_s >= 0, "at least 0"),
            vocab_size=(self.vocab_size >= 1, "at least 1"),
        )

    @property
    def num_processes(self) -> int:
        """Processes that send."""
        wanted = self.processes or min(1 + self.concurrency // 64, os.cpu_count() or 1)
        return min(wanted, self.concurrency) if self.concurrency else wanted


class WorkerPlan(msgspec.Struct, tag=True, kw_only=True):
    """What one process sends.

    Attributes:
        options: how, with the requests under way at once that are this process' share.
        chains: requests that follow one another, (row of the trace, row) each; a request of its own
            is a chain of one.
        warm_up: rows sent before the start and not recorded.
    """

    options: LoadOptions
    chains: list[list[tuple[int, TraceRow]]]
    warm_up: list[tuple[int, TraceRow]]


class Warm(msgspec.Struct, tag=True):
    """The process has warmed up; `message` tells why it cannot go on, if so."""

    message: str = ""


class Go(msgspec.Struct, tag=True):
    """Start at this moment of the machine's monotonic clock."""

    start_s: float


class NumDone(msgspec.Struct, tag=True):
    """How many requests are done so far."""

    count: int


class Result(msgspec.Struct, tag=True):
    """What happened, with the processor seconds per second of the load."""

    records: list[RequestRecord]
    cpu_share: float


Message = WorkerPlan | Warm | Go | NumDone | Result


def open_channel(connection: socket.socket) -> Channel:
    """Return the channel of either end."""
    return Channel(connection, MessageCodec(Message, limit_bytes=_LIMIT_BYTES))


class _Sender:
    """Sends the chains of a plan."""

    def __init__(self, plan: WorkerPlan) -> None:
        """Make what all requests share."""
        self.plan = plan
        self.options = options = plan.options
        self.pool = ConnectionPool(options.endpoint)
        self.maker = BodyMaker(
            form=options.form,
            model=options.model,
            seed=options.seed,
            vocab_size=options.vocab_size,
            extra=options.extra,
        )
        self.records: list[RequestRecord] = []
        self.start_s = 0.0

    async def warm_up(self) -> str:
        """Send the warm-up rows, as many at once as the load will, and return the first error."""
        rows = iter(self.plan.warm_up)
        errors: list[str] = []

        async def lane() -> None:
            for index, row in rows:
                record = await self._send(index, row, self.maker.body(row, index))
                errors.extend([f"{record.error}: {record.message}"] if record.error else [])

        self.start_s = time.perf_counter()
        await asyncio.gather(
            *(
                lane()
                for _ in range(max(1, min(self.options.concurrency or 8, len(self.plan.warm_up))))
            )
        )
        return errors[0] if errors else ""

    async def run(self) -> None:
        """Send everything and wait for all answers."""
        await (self._closed() if self.options.concurrency else self._open())

    async def _closed(self) -> None:
        """Keep a fixed number of chains under way."""
        chains = iter(self.plan.chains)
        await asyncio.gather(*(self._lane(chains) for _ in range(self.options.concurrency)))

    async def _lane(self, chains: Iterator[list[tuple[int, TraceRow]]]) -> None:
        """Send one chain after the other."""
        for chain in chains:
            if self._is_over(self._now_s()):
                return
            await self._chain(chain, b"")

    async def _open(self) -> None:
        """Start each chain at its arrival, its first body made before."""
        tasks: list[asyncio.Task[None]] = []
        for chain in self.plan.chains:
            index, row = chain[0]
            if self._is_over(row.arrival_s):
                break
            # The body is ready when its time comes: making it would delay the sending.
            body = self.maker.body(row, index)
            await asyncio.sleep(max(row.arrival_s - self._now_s(), 0.0))
            tasks.append(asyncio.create_task(self._chain(chain, body)))
        await asyncio.gather(*tasks)

    async def _chain(self, chain: list[tuple[int, TraceRow]], body: bytes) -> None:
        """Send the requests of a chain in turn, each after its sender thought; an error ends it."""
        for place, (index, row) in enumerate(chain):
            if place:
                body = self.maker.body(row, index)
                await asyncio.sleep(row.think_s)
            is_first_open = not self.options.concurrency and not place
            record = await self._send(
                index,
                row,
                body or self.maker.body(row, index),
                row.arrival_s if is_first_open else None,
            )
            self.records.append(record)
            if record.error:
                return

    async def _send(
        self, index: int, row: TraceRow, body: bytes, scheduled_s: float | None = None
    ) -> RequestRecord:
        """Send one request."""
        record = RequestRecord(
            index=index,
            scheduled_s=self._now_s() if scheduled_s is None else scheduled_s,
            client=row.client,
            session=row.session,
            prompt_tokens=row.input_tokens,
            expected_tokens=row.output_tokens,
        )
        await fill_record(
            self.pool,
            self.maker.path,
            body,
            record,
            start_s=self.start_s,
            timeout_s=self.options.timeout_s,
            retries=self.options.retries,
        )
        return record

    def _now_s(self) -> float:
        """Seconds since the start of the load."""
        return time.perf_counter() - self.start_s

    def _is_over(self, at_s: float) -> bool:
        """Whether nothing may start any more."""
        return 0 < self.options.duration_s <= at_s


async def _work(plan: WorkerPlan, channel: Channel) -> None:
    """Warm up, wait for the start, send, report."""
    sender = _Sender(plan)
    channel.send(Warm(await sender.warm_up()))
    go = await asyncio.to_thread(channel.receive)
    if not isinstance(go, Go):
        return
    # A collection in the middle of the load would be measured as latency of the server.
    freeze_heap()
    sender.start_s = go.start_s
    await asyncio.sleep(max(go.start_s - time.perf_counter(), 0.0))
    cpu_s, begin_s = time.process_time(), time.perf_counter()

    async def tell() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            channel.send(NumDone(len(sender.records)))

    teller = asyncio.create_task(tell())
    await sender.run()
    teller.cancel()
    share = (time.process_time() - cpu_s) / max(time.perf_counter() - begin_s, 1e-9)
    sender.pool.close()
    channel.send(Result(sender.records, share))


def main(arguments: list[str]) -> None:
    """Run as `python -m steelyard.serve.client.worker DESCRIPTOR`, the number of an open socket."""
    channel = open_channel(socket.socket(fileno=int(arguments[0])))
    plan = channel.receive()
    if not isinstance(plan, WorkerPlan):
        return
    try:
        import uvloop
    except ImportError:
        loop_factory = None
    else:
        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_work(plan, channel))


if __name__ == "__main__":
    main(sys.argv[1:])
