"""A trace as arrays, for what is counted over all of its rows."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import TraceError
from steelyard.serve.traces.record import TraceRow

__all__ = ["TraceColumns"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceColumns:
    """Columns of a trace of R rows.

    Attributes:
        arrival_s: float64 [R] seconds from the first row, rising.
        first_s: arrival of the first row as the file has it.
        input_tokens: int64 [R] prompt lengths.
        output_tokens: int64 [R] output lengths.
        client: int64 [R] places in `clients`.
        clients: names.
        session: int64 [R] places in `sessions`, -1 for rows of their own.
        sessions: names.
        think_s: float64 [R] pauses before a turn.
        blocks: int64 [sum of counts] hash ids of all rows, one row after the other.
        block_starts: int64 [R + 1] where the ids of each row begin.
        block_tokens: tokens per hashed block.
    """

    arrival_s: NDArray[np.float64]
    first_s: float
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    client: NDArray[np.int64]
    clients: list[str]
    session: NDArray[np.int64]
    sessions: list[str]
    think_s: NDArray[np.float64]
    blocks: NDArray[np.int64]
    block_starts: NDArray[np.int64]
    block_tokens: int = 512

    @classmethod
    def of(cls, rows: Iterable[TraceRow]) -> "TraceColumns":
        """Gather rows, one at a time.

        Args:
            rows: rows by arrival.

        Returns:
            Their columns.

        Raises:
            TraceError: there is none, or rows have hashed blocks of different sizes.
        """
        at, think = array("d"), array("d")
        inputs, outputs, client, session, ids, starts = (array("q") for _ in range(6))
        clients: dict[str, int] = {}
        sessions: dict[str, int] = {"": -1}
        sizes: set[int] = set()
        starts.append(0)
        for row in rows:
            at.append(row.arrival_s)
            think.append(row.think_s)
            inputs.append(row.input_tokens)
            outputs.append(row.output_tokens)
            client.append(clients.setdefault(row.client, len(clients)))
            session.append(sessions.setdefault(row.session, len(sessions) - 1))
            if row.hash_ids:
                ids.extend(row.hash_ids)
                sizes.add(row.block_tokens)
            starts.append(len(ids))
        if not at:
            raise TraceError("the trace has no rows", hint="give at least one request")
        if len(sizes) > 1:
            raise TraceError(f"blocks of the trace have {sorted(sizes)} tokens", hint="give one")
        times = np.frombuffer(at)
        whole = [np.frombuffer(item, dtype=np.int64) for item in (inputs, outputs, client, session)]
        return cls(
            arrival_s=times - times[0],
            first_s=float(times[0]),
            input_tokens=whole[0],
            output_tokens=whole[1],
            client=whole[2],
            clients=list(clients),
            session=whole[3],
            sessions=list(sessions)[1:],
            think_s=np.frombuffer(think),
            blocks=np.frombuffer(ids, dtype=np.int64) if ids else np.zeros(0, np.int64),
            block_starts=np.frombuffer(starts, dtype=np.int64),
            block_tokens=sizes.pop() if sizes else 512,
        )

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last row."""
        return float(self.arrival_s[-1])

    @property
    def has_hashes(self) -> bool:
        """Whether any row says what its prompt shares with others."""
        return len(self.blocks) > 0

    def rows(self) -> list[TraceRow]:
        """Return the rows; arrivals count from the first."""
        names = [*self.sessions, ""]
        flat = self.blocks.tolist()
        starts = self.block_starts.tolist()
        return [
            TraceRow(
                arrival_s=at_s,
                input_tokens=size,
                output_tokens=answer,
                client=self.clients[client],
                session=names[session],
                think_s=think_s,
                hash_ids=tuple(flat[first:last]),
                block_tokens=block,
            )
            for at_s, size, answer, client, session, think_s, first, last, block in zip(
                self.arrival_s.tolist(),
                self.input_tokens.tolist(),
                self.output_tokens.tolist(),
                self.client.tolist(),
                self.session.tolist(),
                self.think_s.tolist(),
                starts[:-1],
                starts[1:],
                repeat(self.block_tokens),
                strict=False,
            )
        ]

    def part(self, first: int, last: int) -> "TraceColumns":
        """Return the rows from `first` up to `last`; names stay as they are."""
        cut = slice(first, last)
        begin, end = self.block_starts[first], self.block_starts[last]
        return TraceColumns(
            arrival_s=self.arrival_s[cut] - self.arrival_s[first],
            first_s=self.first_s + float(self.arrival_s[first]),
            input_tokens=self.input_tokens[cut],
            output_tokens=self.output_tokens[cut],
            client=self.client[cut],
            clients=self.clients,
            session=self.session[cut],
            sessions=self.sessions,
            think_s=self.think_s[cut],
            blocks=self.blocks[begin:end],
            block_starts=self.block_starts[first : last + 1] - begin,
            block_tokens=self.block_tokens,
        )

    def picked(self, kept: NDArray[np.bool_]) -> "TraceColumns":
        """Return the rows that are kept [R], with their times; hashes only where all are."""
        if kept.all():
            return self
        alone = np.zeros(int(kept.sum()) + 1, np.int64)
        return replace(
            self,
            arrival_s=self.arrival_s[kept],
            input_tokens=self.input_tokens[kept],
            output_tokens=self.output_tokens[kept],
            client=self.client[kept],
            session=self.session[kept],
            think_s=self.think_s[kept],
            blocks=np.zeros(0, np.int64),
            block_starts=alone,
        )
