"""Bytes of separated values as text; rows of which some are none are set aside."""

from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.table.quarantine import BadRow, Quarantine

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["decoded"]


def decoded(
    batch: "pa.RecordBatch", numbers: np.ndarray, path: str, quarantine: Quarantine
) -> tuple["pa.RecordBatch", np.ndarray]:
    """Turn columns of bytes into text.

    Args:
        batch: columns of bytes.
        numbers: row of the file of each, [rows].
        path: the file.
        quarantine: takes rows with bytes that are no UTF-8.

    Returns:
        The good rows, and their rows of the file.
    """
    import pyarrow as pa

    columns, is_bad = [], np.zeros(len(batch), bool)
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        try:
            # The check of nearly all batches; no byte is copied.
            columns.append(values.cast(pa.string()))
            continue
        except pa.ArrowInvalid:
            texts = [_text(value) for value in values.to_pylist()]
        columns.append(pa.array([text for text, _ in texts], pa.string()))
        for place in (place for place, (_, is_good) in enumerate(texts) if not is_good):
            if not is_bad[place]:
                is_bad[place] = True
                told = values[place].as_py().decode(errors="backslashreplace")
                row = int(numbers[place])
                quarantine.add(BadRow(path, row, name, told, "invalid UTF-8"))
    made = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    if not is_bad.any():
        return made, numbers
    return made.filter(pa.array(~is_bad)), numbers[~is_bad]


def _text(value: bytes | None) -> tuple[str | None, bool]:
    """Return the text of bytes, and whether they are any."""
    try:
        return None if value is None else value.decode(), True
    except UnicodeDecodeError:
        return None, False
