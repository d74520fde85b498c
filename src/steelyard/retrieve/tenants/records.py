"""What is written of each change: who may see what, since when, in one growing file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from steelyard.append_log import read_records
from steelyard.errors import DataError

__all__ = ["Kind", "TenantChange", "decode_change", "encode_change", "read_changes"]

Kind = Literal["add", "remove", "grant", "revoke"]
_LINE = b"\n"


class _Head(msgspec.Struct, frozen=True):
    """The first line of a record."""

    at_s: float
    kind: Kind
    tenant: str
    count: int
    dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantChange:
    """One change of an index for tenants.

    Attributes:
        at_s: when, seconds since 1970.
        kind: "add" and "remove" vectors, "grant" them to a tenant and "revoke" them.
        ids: numbers of the vectors.
        tenant: the tenant of a grant or of what is revoked, else empty.
        vectors: new vectors [N, D], else [0, 0].
    """

    at_s: float
    kind: Kind
    ids: NDArray[np.int64]
    tenant: str = ""
    vectors: NDArray[np.float32]


def encode_change(change: TenantChange) -> bytes:
    """Return a change as a record: a line of JSON, numbers, vectors."""
    count, dim = len(change.ids), change.vectors.shape[1]
    head = _Head(change.at_s, change.kind, change.tenant, count, dim)
    body = change.ids.astype("<i8").tobytes() + change.vectors.astype("<f4").tobytes()
    return msgspec.json.encode(head) + _LINE + body


def decode_change(record: bytes) -> TenantChange:
    """Return the change of a record.

    Args:
        record: bytes of `encode_change`.

    Returns:
        The change.

    Raises:
        DataError: the record is of another kind.
    """
    line, _, body = record.partition(_LINE)
    try:
        head = msgspec.json.decode(line, type=_Head)
    except msgspec.DecodeError as error:
        raise DataError(f"a record that is no change: {error}") from error
    rows = head.count if head.kind == "add" else 0
    if len(body) != 8 * head.count + 4 * rows * head.dim:
        raise DataError(f"a record of {head.count} numbers has {len(body)} bytes")
    return TenantChange(
        at_s=head.at_s,
        kind=head.kind,
        ids=np.frombuffer(body, "<i8", head.count).astype(np.int64),
        tenant=head.tenant,
        vectors=np.frombuffer(body, "<f4", offset=8 * head.count).reshape(rows, head.dim),
    )


def read_changes(path: Path, begin: int = 0) -> Iterator[tuple[TenantChange, int]]:
    """Yield the changes of a log without opening it for writing.

    Args:
        path: the log; one that is missing has no changes.
        begin: byte behind what is known already.

    Yields:
        A change, and the byte behind it.

    Raises:
        DataError: a record is damaged; those before it have been yielded.
    """
    for record, end in read_records(path):
        if end > begin:
            yield decode_change(record), end
