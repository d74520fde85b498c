"""The ladder's runs as a table that `steelyard laws` reads."""

from collections.abc import Sequence
from pathlib import Path

from steelyard.files import write_bytes
from steelyard.weigh.forecast import RungPoint
from steelyard.weigh.ladder import BATCH_SIZE, SEQUENCE_LENGTH

__all__ = ["write_table"]

_HEAD = "hidden_size,num_layers,parameters,tokens,flops,loss,steps,batch_tokens,step_time_s,counts,loss_unit,tokenizer,schedule"


def write_table(points: Sequence[RungPoint], path: Path, tokenizer: str) -> None:
    """Write the cooled-down runs as CSV, one per row, with the conventions that their numbers follow.

    Args:
        points: of the ladder.
        path: of the file, replaced as a whole.
        tokenizer: name of the tokenizer the text was cut with.
    """
    lines = [_HEAD]
    for point in points:
        numbers = (
            point.hidden_size,
            point.num_layers,
            point.parameters,
            point.tokens,
            6 * point.parameters * point.tokens,
            point.loss,
        )
        rest = (
            point.steps,
            BATCH_SIZE * SEQUENCE_LENGTH,
            point.step_time_s,
            "total",
            "nat/token",
            tokenizer,
            "finished",
        )
        lines.append(",".join(map(str, (*numbers, *rest))))
    write_bytes(path, ("\n".join(lines) + "\n").encode())
