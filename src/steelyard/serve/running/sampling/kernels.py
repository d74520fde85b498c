"""What the sampler runs over rows of logits: the same functions in C++ or compiled with numba."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

__all__ = ["SamplingKernels", "numba_kernels"]


class SamplingKernels(Protocol):
    """Functions over rows of logits float32 [R, V]; `sampling.draws` and others explain each.

    They hold no lock of the interpreter, so threads may share the rows.
    """

    def find_peaks(self, logits: np.ndarray, peaks: np.ndarray) -> None:
        """Write the largest logit of each row, NaN where a row has a NaN."""
        ...

    def likeliest(
        self, logits: np.ndarray, peaks: np.ndarray, rows: np.ndarray, tokens: np.ndarray
    ) -> None:
        """Write the first token that has its row's largest logit."""
        ...

    @property
    def draw_tokens(self) -> Callable[..., None]:
        """Draw a token per row, with the arguments of `draws.draw_tokens`."""
        ...

    def log_totals(
        self, logits: np.ndarray, peaks: np.ndarray, rows: np.ndarray, totals: np.ndarray
    ) -> None:
        """Write log(sum(exp(logits))) of rows."""
        ...

    def top_logits(
        self, logits: np.ndarray, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray
    ) -> None:
        """Write the largest logits of rows."""
        ...

    def forbid(self, logits: np.ndarray, rows: np.ndarray, masks: np.ndarray) -> None:
        """Set to minus infinity what masks do not allow."""
        ...


class _NumbaKernels:
    """The functions compiled with numba."""

    def __init__(self) -> None:
        """Import numba, which takes a third of a second."""
        from steelyard.serve.running.sampling import draws, masks, tops

        self.find_peaks = draws.find_peaks
        self.likeliest = draws.likeliest
        self.draw_tokens = draws.draw_tokens
        self.log_totals = tops.log_totals
        self.top_logits = tops.top_logits
        self.forbid = masks.forbid


def numba_kernels() -> SamplingKernels:
    """Return the functions compiled with numba; importing it takes a third of a second."""
    return _NumbaKernels()
