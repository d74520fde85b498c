"""A process that sends its part of a load: it takes a plan, sends, returns records.

It speaks with the process that started it over one end of a socket pair, so that nothing a library
prints can end up between the frames.
"""

import asyncio
import gc
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from steelyard.frames import Channel, MessageCodec
from steelyard.serve.client.bodies import BodyMaker, Form
from steelyard.serve.client.record import RequestRecord
from steelyard.serve.client.wire.address import Endpoint
from steelyard.serve.client.wire.connection import ConnectionPool
from steelyard.serve.client.wire.stream import fill_record
from steelyard.serve.traces.record import TraceRow

__all__ = ["Go", "Message", "NumDone", "Result", "Warm", "WorkerPlan", "open_channel"]

_PROGRESS_S = 0.25
_LIMIT_BYTES = 2**31
"""Longest message; a plan holds a whole trace, a result the times of all its tokens."""


class WorkerPlan(msgspec.Struct, tag=True, kw_only=True):
    """What one process sends.

    Attributes:
        endpoint: the server.
        form: form of the prompts.
        model: name of the model, may be empty.
        seed: seed of the prompts.
        vocab_size: token ids lie below it.
        extra: fields of every body.
        chains: requests that follow one another, (row of the trace, row) each; a request of its own
            is a chain of one.
        warm_up: rows sent before the start and not recorded.
        concurrency: chains under way at once; 0 starts each when its first row arrives.
        timeout_s: longest wait for one answer.
        retries: how often a request is sent again after 429.
        duration_s: no chain starts later; 0 for no limit.
    """

    endpoint: Endpoint
    form: Form
    model: str
    seed: int
    vocab_size: int
    extra: dict[str, Any]
    chains: list[list[tuple[int, TraceRow]]]
    warm_up: list[tuple[int, TraceRow]]
    concurrency: int
    timeout_s: float
    retries: int
    duration_s: float


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
        self.pool = ConnectionPool(plan.endpoint)
        self.maker = BodyMaker(
            form=plan.form,
            model=plan.model,
            seed=plan.seed,
            vocab_size=plan.vocab_size,
            extra=plan.extra,
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
                for _ in range(max(1, min(self.plan.concurrency or 8, len(self.plan.warm_up))))
            )
        )
        return errors[0] if errors else ""

    async def run(self) -> None:
        """Send everything and wait for all answers."""
        await (self._closed() if self.plan.concurrency else self._open())

    async def _closed(self) -> None:
        """Keep a fixed number of chains under way."""
        chains = iter(self.plan.chains)
        await asyncio.gather(*(self._lane(chains) for _ in range(self.plan.concurrency)))

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
            is_first_open = not self.plan.concurrency and not place
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
        plan = self.plan
        await fill_record(
            self.pool,
            self.maker.path,
            body,
            record,
            start_s=self.start_s,
            timeout_s=plan.timeout_s,
            retries=plan.retries,
        )
        return record

    def _now_s(self) -> float:
        """Seconds since the start of the load."""
        return time.perf_counter() - self.start_s

    def _is_over(self, at_s: float) -> bool:
        """Whether nothing may start any more."""
        return 0 < self.plan.duration_s <= at_s


async def _work(plan: WorkerPlan, channel: Channel) -> None:
    """Warm up, wait for the start, send, report."""
    sender = _Sender(plan)
    channel.send(Warm(await sender.warm_up()))
    go = await asyncio.to_thread(channel.receive)
    if not isinstance(go, Go):
        return
    # A collection in the middle of the load would be measured as latency of the server.
    gc.collect()
    gc.freeze()
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
