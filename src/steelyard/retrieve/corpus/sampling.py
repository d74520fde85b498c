"""Passages of a part of the files, from which an index of all of them is forecast."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.data.sources import TextFile
from steelyard.retrieve.corpus.cutting import cut_lines
from steelyard.retrieve.corpus.files import SkippedFiles, count_rows, read_file
from steelyard.retrieve.work_clock import WorkClock

__all__ = ["PilotSample", "sample_passages"]

_MOST, _LEAST, _FILES, _LARGE = 3000, 40, 8, 4
"""Passages that are enough, and too few; files below which one would tell too little of all, unless
they hold four times as many passages."""


@dataclass(frozen=True, kw_only=True)
class PilotSample:
    """Passages of some of the files.

    Attributes:
        texts: the passages.
        read_s: seconds of reading and cutting them.
        passages: passages that all files are expected to have.
        scale: bytes of all files over those that were read.
    """

    texts: list[str]
    read_s: float
    passages: float
    scale: float


def sample_passages(
    files: Sequence[TextFile], words: int, text_field: str, *, seed: int = 0
) -> PilotSample | None:
    """Read some files until there are enough passages for a pilot; of a long table, its first rows.

    Args:
        files: all files.
        words: most words of a passage.
        text_field: column or key with the text of tables.
        seed: seed of their order.

    Returns:
        The sample; None where there is too little text for one.
    """
    total = max(sum(file.size_bytes for file in files), 1)
    texts: list[str] = []
    read_bytes, read_s, skipped = 0.0, 0.0, SkippedFiles()

    def is_enough(number: int) -> bool:
        least = _MOST if number >= min(_FILES, len(files)) else _LARGE * _MOST
        return len(texts) >= least

    order = np.random.default_rng(seed).permutation(len(files)).tolist()
    for number, place in enumerate(order, start=1):
        file, seen = files[place], 1.0
        rows = count_rows(file)
        clock = WorkClock()
        for part in read_file(file, skipped, text_field):
            texts += [passage.text for passage in cut_lines(part, words)]
            if rows:
                seen = min(part.first_line / rows, 1.0)
                if is_enough(number):
                    break
        read_s += clock.read_s()
        read_bytes += seen * file.size_bytes
        if is_enough(number):
            break
    if len(texts) < _LEAST or not read_bytes:
        return None
    scale = max(total / read_bytes, 1.0)
    return PilotSample(texts=texts[:_MOST], read_s=read_s, passages=len(texts) * scale, scale=scale)
