"""The likeliest tokens of a step."""

from typing import NamedTuple

import numpy as np

__all__ = ["Peaks"]


class Peaks(NamedTuple):
    """What is largest in each row of logits.

    Attributes:
        values: float32 [R], the largest logits; NaN where a row has a NaN.
        tokens: int64 [R], the first token that has it.
    """

    values: np.ndarray
    tokens: np.ndarray
