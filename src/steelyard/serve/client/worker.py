"""A process that sends its part of a load.

Reads its plan from standard input, sends when told, writes records to standard output.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from steelyard.serve.client.bodies import BodyMaker, Form
from steelyard.serve.client.record import RequestRecord
from steelyard.serve.client.wire.address import Endpoint
from steelyard.serve.client.wire.connection import ConnectionPool
from steelyard.serve.client.wire.stream import fill_record
from steelyard.serve.traces.record import TraceRow

__all__ = ["Go", "Progress", "Ready", "Result", "WorkerPlan", "read_frame", "write_frame"]

_PROGRESS_S = 0.25


class WorkerPlan(msgspec.Struct, tag=True, kw_only=True):
    """What one process sends.

    Attributes:
        endpoint: the server.
        form: of the prompts.
        model: name, may be empty.
        seed: of the prompts.
        vocab_size: of token ids.
        extra: fields of every body.
        chains: requests that follow one another, (row of the trace, row) each; a request of its own
            is a chain of one.
        warm_up: rows sent before, not recorded.
        concurrency: chains under way at once; 0 starts each when its first row arrives.
        timeout_s: of one request.
        retries: after 429.
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


class Ready(msgspec.Struct, tag=True):
    """The process has warmed up; `message` tells why it cannot go on, if so."""

    message: str = ""


class Go(msgspec.Struct, tag=True):
    """Start at this moment of the machine's monotonic clock."""

    start_s: float


class Progress(msgspec.Struct, tag=True):
    """So many requests are done."""

    done: int


class Result(msgspec.Struct, tag=True):
    """What happened, with the processor seconds per second of the load."""

    records: list[RequestRecord]
    cpu_share: float


Frame = WorkerPlan | Ready | Go | Progress | Result
_DECODER = msgspec.msgpack.Decoder(Frame)


def write_frame(stream: BinaryIO, frame: Frame) -> None:
    """Write one frame: four bytes of length, then msgpack."""
    data = msgspec.msgpack.encode(frame)
    stream.write(len(data).to_bytes(4, "little") + data)
    stream.flush()


def read_frame(stream: BinaryIO) -> Frame | None:
    """Read one frame, None at the end of the stream."""
    head = stream.read(4)
    return _DECODER.decode(stream.read(int.from_bytes(head, "little"))) if len(head) == 4 else None


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
        """Send the warm-up rows, as many at once as the load will; give the first error."""
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
            body = self.maker.body(row, index)
            await asyncio.sleep(max(row.arrival_s - self._now_s(), 0.0))
            tasks.append(asyncio.create_task(self._chain(chain, body)))
        await asyncio.gather(*tasks)

    async def _chain(self, chain: list[tuple[int, TraceRow]], body: bytes) -> None:
        """Send the requests of a chain one after the other, each after its sender thought; an error ends it."""
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


async def _work(plan: WorkerPlan, source: BinaryIO, sink: BinaryIO) -> None:
    """Warm up, wait for the start, send, report."""
    sender = _Sender(plan)
    write_frame(sink, Ready(await sender.warm_up()))
    go = await asyncio.to_thread(read_frame, source)
    if not isinstance(go, Go):
        return
    gc.collect()
    gc.freeze()
    sender.start_s = go.start_s
    await asyncio.sleep(max(go.start_s - time.perf_counter(), 0.0))
    cpu_s, begin_s = time.process_time(), time.perf_counter()

    async def tell() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            write_frame(sink, Progress(len(sender.records)))

    teller = asyncio.create_task(tell())
    await sender.run()
    teller.cancel()
    share = (time.process_time() - cpu_s) / max(time.perf_counter() - begin_s, 1e-9)
    sender.pool.close()
    write_frame(sink, Result(sender.records, share))


def main() -> None:
    """Run as `python -m steelyard.serve.client.worker`."""
    plan = read_frame(sys.stdin.buffer)
    if not isinstance(plan, WorkerPlan):
        return
    try:
        import uvloop
    except ImportError:
        loop_factory = None
    else:
        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_work(plan, sys.stdin.buffer, sys.stdout.buffer))


if __name__ == "__main__":
    main()
