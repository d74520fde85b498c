"""The ladder's runs as a table that `steelyard laws` reads."""

from collections.abc import Sequence
from pathlib import Path

from steelyard.files import write_bytes
from steelyard.weigh.forecast import RungPoint
from steelyard.weigh.ladder import BATCH_SIZE, SEQUENCE_LENGTH

__all__ = ["write_table"]


def write_table(points: Sequence[RungPoint], path: Path, tokenizer: str) -> None:
    """Write the cooled-down runs as CSV, one per row, with the conventions of their numbers.

    Args:
        points: runs of the ladder.
        path: file to write, replaced as a whole.
        tokenizer: name of the tokenizer that cut the text.
    """
    rows = [
        {
            "hidden_size": point.hidden_size,
            "num_layers": point.num_layers,
            "parameters": point.parameters,
            "tokens": point.tokens,
            "flops": 6 * point.parameters * point.tokens,
            "loss": point.loss,
            "steps": point.steps,
            "batch_tokens": BATCH_SIZE * SEQUENCE_LENGTH,
            "step_time_s": point.step_time_s,
            "counts": "total",
            "loss_unit": "nat/token",
            "tokenizer": tokenizer,
            "schedule": "finished",
        }
        for point in points
    ]
    lines = [",".join(map(str, row)) for row in (rows[0], *(row.values() for row in rows))]
    write_bytes(path, ("\n".join(lines) + "\n").encode())
