"""What rows of a trace must be beside each other: rising, in one unit, each there once."""

from steelyard.errors import TraceError

__all__ = ["RowOrder"]

_LATEST_S = 1e11
"""Seconds since 1970 stay below for 3,000 years, milliseconds since 1970 do not."""
_LEAST_ROWS = 4
_WATCHED = 8


class RowOrder:
    """Refuses a row that is earlier than the one before, in another unit, or there twice.

    A change from seconds to milliseconds is a gap of a thousand times all that was before, after
    which the times over a thousand go on where they were, and gaps are about a thousand times as
    long. A change back makes a row earlier than the one before.
    """

    def __init__(self, field: str) -> None:
        """Begin a file.

        Args:
            field: name of the column of arrivals, for errors.
        """
        self._field = field
        self._first_s = self._last_s = 0.0
        self._count = 0
        self._ids: set[str] = set()
        self._leap: tuple[str, float, float] | None = None
        self._since = 0

    def see(self, arrival_s: float, where: str) -> None:
        """Check the next row's arrival.

        Args:
            arrival_s: seconds from the beginning.
            where: file and line.

        Raises:
            TraceError: it is earlier than the row before, too large for seconds, or the rows after
                it count in another unit.
        """
        if arrival_s < self._last_s or arrival_s >= _LATEST_S:
            raise self._refusal(arrival_s, where)
        if self._leap is not None:
            self._since += 1
            if self._since == _WATCHED:
                self._judge()
        elif arrival_s > 500.0 * self._last_s and self._count >= _LEAST_ROWS:
            self._watch(arrival_s, where)
        if not self._count:
            self._first_s = arrival_s
        self._last_s = arrival_s
        self._count += 1

    def once(self, name: str, where: str) -> None:
        """Refuse a request id that was there before."""
        if name in self._ids:
            raise TraceError(
                f"{where}: id {name!r} was there before",
                hint="each request stands once; remove the row, or give it an id of its own",
            )
        self._ids.add(name)

    def end(self) -> None:
        """Judge what was still watched when the file ended."""
        if self._leap is not None and self._since >= 2:
            self._judge()

    def _refusal(self, arrival_s: float, where: str) -> TraceError:
        """Say what is wrong with an arrival."""
        if arrival_s >= _LATEST_S:
            return TraceError(
                f"{where}: {self._field} is {arrival_s:g} s, 3,000 years and more",
                hint=f"{self._field} seems to count milliseconds or less; give seconds",
            )
        is_unit = arrival_s > 0 and 300 < self._last_s / arrival_s < 3000
        hint = "rows stand by rising arrival; sort the file"
        if is_unit:
            hint = "some rows seem to count milliseconds, others seconds; give all in one unit"
        return TraceError(
            f"{where}: {self._field} is {arrival_s:.12g} s, before the {self._last_s:.12g} s of "
            "the row before",
            hint=hint,
        )

    def _watch(self, arrival_s: float, where: str) -> None:
        """Begin to watch where the times over a thousand go on as before."""
        gap_s = (self._last_s - self._first_s) / (self._count - 1)
        if 0 < self._last_s <= arrival_s / 1e3 <= self._last_s + 50.0 * gap_s:
            self._leap = (where, arrival_s, gap_s)
            self._since = 0

    def _judge(self) -> None:
        """Refuse the file if the gaps since the leap are about a thousand times as long."""
        assert self._leap is not None
        where, arrival_s, gap_s = self._leap
        self._leap = None
        after_s = (self._last_s - arrival_s) / self._since
        if 100.0 * gap_s <= after_s <= 10_000.0 * gap_s:
            raise TraceError(
                f"{where}: {self._field} is {arrival_s:.12g} s, and from there on gaps are "
                f"{after_s / gap_s:,.0f} times as long as before",
                hint="rows from there on seem to count milliseconds; give all in one unit",
            )
