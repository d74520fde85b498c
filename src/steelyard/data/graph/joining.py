"""Sections of a pack from the sections of several, without holding them in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.data.pack import Pack, PackWriter

__all__ = ["add_joined"]


def add_joined(
    writer: PackWriter, name: str, packs: Sequence[Pack], section: str, scratch: Path
) -> None:
    """Write one section that is made of those of several packs, one after the other.

    Args:
        writer: writer of the pack.
        name: name of the section.
        packs: one or more, whose sections are of one dtype and differ in their first size alone.
        section: name in each of them.
        scratch: file that holds the values for a while; their pages belong to the system's cache.
    """
    shape, dtype = packs[0][section].shape, packs[0][section].dtype
    rows = 0
    with scratch.open("wb") as file:
        for pack in packs:
            values = pack[section]
            rows += len(values)
            file.write(np.ascontiguousarray(values).data)
    whole: Any = (rows, *shape[1:])
    writer.add(
        name, np.memmap(scratch, dtype, "r", shape=whole) if rows else np.zeros(whole, dtype)
    )
    scratch.unlink()
