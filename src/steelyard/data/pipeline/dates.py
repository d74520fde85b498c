"""Days and times in parts: year, month, day, weekday, hour and so on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from steelyard.data.arrow import compute
from steelyard.data.pipeline.step import ColumnStep, with_columns, with_fields
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DateParts", "SplitDates"]

_FUNCTIONS = {
    "year": "year",
    "quarter": "quarter",
    "month": "month",
    "week": "iso_week",
    "day": "day",
    "weekday": "day_of_week",
    "yearday": "day_of_year",
    "hour": "hour",
    "minute": "minute",
}
"""Arrow's function of each part; weekdays count from Monday, 0."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SplitDates:
    """A column for each part of days and times.

    Attributes:
        columns: the columns.
        parts: parts of each.
        timezone: where times without a zone are, and in which all are told.
        keep: whether the columns stay.
        warnings: columns whose times have no zone.
    """

    columns: tuple[str, ...]
    parts: tuple[str, ...]
    timezone: str = "UTC"
    keep: bool = False
    warnings: tuple[str, ...] = ()

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step."""
        import pyarrow as pa

        made = {f"{name}.{part}": pa.int16() for name in self.columns for part in self.parts}
        return with_fields(schema, made, () if self.keep else self.columns)

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; parts of a missing time are missing."""
        import pyarrow as pa

        pc = compute()
        made = {}
        for name in self.columns:
            values = batch[name]
            if pa.types.is_date(values.type):
                values = values.cast(pa.timestamp("s"))
            elif values.type.tz is None:
                # Times of the night that clocks were put back are there twice: the first is meant.
                values = pc.assume_timezone(
                    values, self.timezone, ambiguous="earliest", nonexistent="earliest"
                )
            else:
                values = values.cast(pa.timestamp(values.type.unit, self.timezone))
            for part in self.parts:
                found = getattr(pc, _FUNCTIONS[part])(values)
                made[f"{name}.{part}"] = found.cast(pa.int16())
        return with_columns(batch, made, () if self.keep else self.columns)


@dataclass(frozen=True, kw_only=True)
class DateParts(ColumnStep):
    """Puts parts of days and times in their place, as whole numbers.

    Times without a zone are taken to be in `timezone`, and the column is warned of.

    Attributes:
        columns: names; empty for all days and times.
        parts: of year, quarter, month, week, day, weekday (from Monday, 0), yearday, hour, minute.
        timezone: zone in which parts are told, such as "UTC" or "Europe/Paris".
        keep: whether the columns stay.
    """

    parts: tuple[str, ...] = ("year", "month", "day", "weekday", "hour")
    timezone: str = "UTC"
    keep: bool = False
    _adds: ClassVar[bool] = True
    wants: ClassVar[str] = "days and times"

    def __post_init__(self) -> None:
        """Refuse parts and zones that there are not.

        Raises:
            ConfigError: there is none of the name.
        """
        import zoneinfo

        if unknown := [part for part in self.parts if part not in _FUNCTIONS]:
            raise ConfigError(f"no part {unknown[0]!r} of a time", hint=", ".join(_FUNCTIONS))
        if self.timezone != "UTC" and self.timezone not in zoneinfo.available_timezones():
            raise ConfigError(f"no time zone {self.timezone!r}", hint="such as Europe/Paris")

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether a column holds days or times."""
        import pyarrow as pa

        return pa.types.is_timestamp(kind) or pa.types.is_date(kind)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> SplitDates:
        """Return the step; it learns nothing."""
        import pyarrow as pa

        kinds = {name: schema.field(name).type for name in columns}
        bare = [
            name for name, kind in kinds.items() if pa.types.is_timestamp(kind) and kind.tz is None
        ]
        return SplitDates(
            columns=tuple(columns),
            parts=self.parts,
            timezone=self.timezone,
            keep=self.keep,
            warnings=tuple(f"column {name} has no time zone: {self.timezone}" for name in bare),
        )
