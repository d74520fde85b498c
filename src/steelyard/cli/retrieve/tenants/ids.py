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
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise DataError(
                f"cannot read --ids {text}: {reason}", hint="name a file with a number per line"
            ) from error
    wrong = [word for word in words if not _is_number(word.strip())]
    if wrong or not words:
        raise ConfigError(
            f"--ids has {wrong[0]!r}" if wrong else "--ids is empty",
            hint="give numbers from 0 like 3,5,8, or a file with one per line like @ids.txt",
        )
    return np.array([int(word) for word in words], np.int64)


def _is_number(word: str) -> bool:
    """Whether a word is a number that a vector can have."""
    return word.isascii() and word.isdigit() and int(word) < 2**63
