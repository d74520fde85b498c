"""What a tenant could see at a past moment, from the log of changes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.tenants.records import read_changes
from steelyard.retrieve.tenants.store import LOG

__all__ = ["Audited", "audit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """Whether a vector was visible.

    Attributes:
        id: number of the vector.
        is_visible: whether the tenant could see it at that moment.
        since_s: when it was granted or hidden last, seconds since 1970; NaN if never.
    """

    id: int
    is_visible: bool
    since_s: float


def audit(folder: Path, tenant: str, ids: NDArray[np.int64], at_s: float) -> list[Audited]:
    """Check an answer against what was granted at its time.

    Args:
        folder: folder of an index for tenants.
        tenant: whom the answer was given to.
        ids: numbers of the vectors in the answer.
        at_s: when it was given, seconds since 1970; changes of that very moment count.

    Returns:
        A line for each number, in their order.

    Raises:
        DataError: the log is damaged.
    """
    asked = np.atleast_1d(np.asarray(ids, np.int64))
    is_visible = np.zeros(len(asked), bool)
    since_s = np.full(len(asked), np.nan)
    for change, _ in read_changes(folder / LOG):
        if change.at_s > at_s:
            break
        concerns_all = change.kind == "remove"
        if change.kind == "add" or (change.tenant != tenant and not concerns_all):
            continue
        is_now = change.kind == "grant"
        touched = np.isin(asked, change.ids) & (is_visible != is_now)
        is_visible[touched], since_s[touched] = is_now, change.at_s
    return [
        Audited(id=number, is_visible=seen, since_s=since)
        for number, seen, since in zip(
            asked.tolist(), is_visible.tolist(), since_s.tolist(), strict=True
        )
    ]
