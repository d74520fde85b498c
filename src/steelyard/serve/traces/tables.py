"""Traces in CSV: whose columns they have, and rows checked one by one."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from steelyard.errors import TraceError
from steelyard.serve.traces.fields import read_number
from steelyard.serve.traces.order import RowOrder
from steelyard.serve.traces.record import TraceRow

__all__ = ["ARRIVALS", "csv_rows"]

ARRIVALS = ("arrival_s", "TIMESTAMP", "Timestamp")
"""Names of the column of arrivals: ours, Azure's, BurstGPT's."""
_INPUT = ("input_tokens", "prompt_tokens", "ContextTokens", "Request tokens")
_OUTPUT = ("output_tokens", "GeneratedTokens", "Response tokens")
_IDS = ("id", "request_id")
_COLUMNS = (
    "arrival_s, input_tokens, output_tokens; Azure's TIMESTAMP, ContextTokens, GeneratedTokens; or "
    "BurstGPT's Timestamp, Request tokens, Response tokens"
)
_NOWHERE = -1


def csv_rows(lines: Iterator[str], path: Path) -> Iterator[TraceRow]:
    """Read the rows of a CSV file in any of the known formats.

    Args:
        lines: its lines, the header first.
        path: the file, for errors.

    Yields:
        Rows in the order of the file.

    Raises:
        TraceError: names file, line and field.
    """
    reader = csv.reader(lines)
    names = [name.strip().lstrip("\ufeff") for name in next(reader, [])]
    _refuse_others(names, path)
    columns = _Columns.of(names, path)
    order = RowOrder(columns.arrival_name)
    for cells in reader:
        if cells:
            yield columns.row(cells, order, f"{path}, line {reader.line_num}")
    order.end()


def _refuse_others(names: list[str], path: Path) -> None:
    """Refuse tables that are no requests, and arrivals in a unit that is not known."""
    if "input_lo" in names or "mean_rate_rps" in names:
        raise TraceError(
            f"{path} holds statistics, not requests",
            hint="read client statistics with `read_clients`, then `client_mix`",
        )
    times = [name for name in names if name.lower().startswith(("arrival", "timestamp"))]
    strange = [name for name in times if name not in ARRIVALS]
    if strange or len(times) > 1:
        raise TraceError(
            f"{path}, line 1: the columns of arrivals are {', '.join(times)}",
            hint="give one: arrival_s or Timestamp in seconds, or TIMESTAMP with dates",
        )


@dataclass(slots=True)
class _Columns:
    """Places of the columns that a trace has, and what its rows say together."""

    names: list[str]
    arrival: int
    prompt: int
    output: int
    total: int = _NOWHERE
    identity: int = _NOWHERE
    client: int = _NOWHERE
    session: int = _NOWHERE
    think: int = _NOWHERE
    kind: int = _NOWHERE
    elapsed: int = _NOWHERE
    when: Callable[[str], float] = float
    ends: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, names: list[str], path: Path) -> "_Columns":
        """Find the columns."""
        arrival = _place(names, ARRIVALS)
        is_burst = "Request tokens" in names
        return cls(
            names=names,
            arrival=arrival,
            prompt=_needed(names, _INPUT, path),
            output=_needed(names, _OUTPUT, path),
            total=_place(names, ("Total tokens",)),
            identity=_place(names, _IDS),
            client=_place(names, ("Model" if is_burst else "client",)),
            session=_place(names, ("Session ID" if is_burst else "session",)),
            think=_place(names, ("think_s",)),
            kind=_place(names, ("Log Type",)),
            elapsed=_place(names, ("Elapsed time",)),
            when=_since_first() if arrival >= 0 and names[arrival] == "TIMESTAMP" else float,
        )

    @property
    def arrival_name(self) -> str:
        """Name of the column of arrivals."""
        return self.names[self.arrival] if self.arrival >= 0 else "arrival_s"

    def row(self, cells: list[str], order: RowOrder, where: str) -> TraceRow:
        """Return a row, checked."""
        try:
            arrival_s = self.when(cells[self.arrival]) if self.arrival >= 0 else 0.0
            prompt, output = int(cells[self.prompt]), int(cells[self.output])
            is_good = 0.0 <= arrival_s < float("inf") and prompt >= 1 and output >= 1
            if self.total >= 0:
                is_good = is_good and int(cells[self.total]) == prompt + output
        except (ValueError, IndexError, TypeError):
            is_good = False
        if not is_good:
            self._explain(cells, where)
        order.see(arrival_s, where)
        if self.identity >= 0 and (name := self._cell(cells, self.identity)):
            order.once(name, where)
        session = self._cell(cells, self.session)
        return TraceRow(
            arrival_s=arrival_s,
            input_tokens=prompt,
            output_tokens=output,
            client=self._sender(cells),
            session=session,
            think_s=self._pause_s(cells, session, arrival_s, where),
        )

    def _cell(self, cells: list[str], place: int) -> str:
        """Return a cell, empty where the column or the cell is missing."""
        return cells[place] if 0 <= place < len(cells) else ""

    def _sender(self, cells: list[str]) -> str:
        """Return the client; BurstGPT has none, so model and kind of log tell rows apart."""
        parts = [self._cell(cells, self.client), self._cell(cells, self.kind)]
        return ", ".join(part for part in parts if part) or "default"

    def _pause_s(self, cells: list[str], session: str, arrival_s: float, where: str) -> float:
        """Return how long the sender waited after the session's previous answer."""
        seconds = partial(read_number, where=where, kind="a number of seconds")
        if thought := self._cell(cells, self.think):
            return seconds({"think_s": thought}, "think_s")
        elapsed = self._cell(cells, self.elapsed)
        if not session or not elapsed:
            return 0.0
        elapsed_s = seconds({"Elapsed time": elapsed}, "Elapsed time")
        end_s = self.ends.get(session, arrival_s)
        self.ends[session] = arrival_s + elapsed_s
        return max(arrival_s - end_s, 0.0)

    def _explain(self, cells: list[str], where: str) -> None:
        """Raise the error of a row that is not good."""
        # A cell that is missing is None, as in `csv.DictReader`.
        told: dict[Any, Any] = dict(zip_longest(self.names, cells[: len(self.names)]))
        count = partial(read_number, read=int, kind="a whole number", least=1)
        name = self.arrival_name
        if self.arrival >= 0:
            kind = "a date and time" if name == "TIMESTAMP" else "a number of seconds"
            read_number(told, name, where, read=self.when, kind=kind)
        prompt = count(told, self.names[self.prompt], where)
        if self.kind >= 0 and self._cell(cells, self.output).strip() == "0":
            raise TraceError(
                f"{where}: {self.names[self.output]} is 0: a request that failed",
                hint="read BurstGPT_without_fails, or remove such rows",
            )
        output = count(told, self.names[self.output], where)
        total = count(told, self.names[self.total], where)
        raise TraceError(
            f"{where}: {self.names[self.total]} is {total}, but prompt and output make "
            f"{prompt + output}",
            hint="correct one of the three",
        )


def _place(names: list[str], known: tuple[str, ...]) -> int:
    """Return the place of a column under one of its names, -1 where it is missing."""
    return next((names.index(name) for name in known if name in names), _NOWHERE)


def _needed(names: list[str], known: tuple[str, ...], path: Path) -> int:
    """Find a needed column under one of its names."""
    place = _place(names, known)
    if place >= 0:
        return place
    found = ", ".join(names)[:120] or "none"
    raise TraceError(
        f"{path}, line 1: no column {known[0]!r}, found were {found}", hint=f"give {_COLUMNS}"
    )


def _since_first() -> Callable[[str], float]:
    """Return the reader of dates, which count from the first."""
    first: list[datetime] = []

    def since_first(text: str) -> float:
        # Azure writes seven digits of a second, Python reads six; what stands behind is +00:00.
        at = datetime.fromisoformat(text.strip()[:26]).replace(tzinfo=UTC)
        if not first:
            first.append(at)
        return (at - first[0]).total_seconds()

    return since_first
