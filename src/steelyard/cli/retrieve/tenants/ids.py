"""Numbers of vectors as they are given on the command line."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError

__all__ = ["read_ids"]


def read_ids(text: str) -> NDArray[np.int64]:
    """Read numbers of vectors.

    Args:
        text: numbers separated by commas, or @ and a file with a number per line.

    Returns:
        int64 [N].

    Raises:
        ConfigError: a part is no number from 0.
        DataError: the file cannot be read.
    """
    words = text.split(",")
    if text.startswith("@"):
        try:
            words = Path(text[1:]).read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read --ids {text[1:]}: {error}") from error
    wrong = [word for word in words if not (word.strip().isascii() and word.strip().isdigit())]
    if wrong or not words:
        raise ConfigError(
            f"--ids has {wrong[0]!r}" if wrong else "--ids is empty",
            hint="give numbers from 0 like 3,5,8, or a file with one per line like @ids.txt",
        )
    return np.array([int(word) for word in words], np.int64)
