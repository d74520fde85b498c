"""Rows whose values lie in ranges; zones that cannot have any are not read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute
from steelyard.data.formats.zones import ZONE_ROWS, may_hold

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Condition", "rows_within"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A range of a column.

    Attributes:
        place: place of the column.
        type: type in which it is kept.
        low: least value wanted, None for any.
        high: largest value wanted, None for any.
        zones: zone map of all row groups, [zones, 3]; none for a type without order.
    """

    place: int
    type: "pa.DataType"
    low: Any
    high: Any
    zones: NDArray[np.int64]


def rows_within(
    conditions: Sequence[Condition],
    group_rows: Sequence[int],
    decode: "Callable[[int, int, int, int], pa.Array]",
) -> NDArray[np.int64]:
    """Return the rows for which all conditions hold.

    Args:
        conditions: ranges.
        group_rows: rows of each row group.
        decode: returns rows of a column: row group, place, first and last row.

    Returns:
        Numbers of rows from 0, ascending; missing values and NaN are in no range.

    Raises:
        ConfigError: a bound is no value of its column, or the column has no order.
    """
    found = [np.zeros(0, np.int64)]
    begins = zone = 0
    for group, rows in enumerate(group_rows):
        count = -(-rows // ZONE_ROWS)
        may = np.ones(count, bool)
        for item in conditions:
            zones = item.zones[zone : zone + count]
            may &= may_hold(zones, item.type, item.low, item.high, rows)
        for number in np.flatnonzero(may).tolist():
            first = number * ZONE_ROWS
            last = min(first + ZONE_ROWS, rows)
            mask = np.ones(last - first, bool)
            for item in conditions:
                mask &= _holds(item, decode(group, item.place, first, last))
            found.append(begins + first + np.flatnonzero(mask))
        begins, zone = begins + rows, zone + count
    return np.concatenate(found)


def _holds(item: Condition, values: "pa.Array") -> NDArray[np.bool_]:
    """Return for which values a condition holds."""
    import pyarrow as pa

    pc, mask = compute(), np.ones(len(values), bool)
    for bound, compare in ((item.low, pc.greater_equal), (item.high, pc.less_equal)):
        if bound is not None:
            held = pc.fill_null(compare(values, pa.scalar(bound, item.type)), fill_value=False)
            mask &= held.to_numpy(zero_copy_only=False)
    return mask
