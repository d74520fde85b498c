"""Sampling in C++: what `sampling.draws` and its neighbours do, without numba.

Importing numba and loading its compiled functions takes most of a second, in which a server that
starts answers nothing; compiling them anew takes five.
"""

import numpy as np

from steelyard.serve.running.native.library import compiled_draws

__all__ = ["NativeSampling"]

_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_LONG, _UNSIGNED, _MASK = np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.int32)
_COLUMNS = (_LONG, _DOUBLE, _DOUBLE, _LONG, _DOUBLE, _UNSIGNED, _UNSIGNED, _LONG)
"""Types of the rows, parameters and tokens of a draw."""


class NativeSampling:
    """The functions of `sampling.kernels.SamplingKernels`, compiled on this machine.

    Draws equal those of numba but for the rounding of sums: they differ where a draw falls within
    about 1e-7 of the edge between two tokens.
    """

    def __init__(self) -> None:
        """Load the library, compiling it if this machine has not done so yet (a second).

        Raises:
            BackendError: there is no compiler, it failed, or the library does not load.
        """
        self._library = compiled_draws()

    def find_peaks(self, logits: np.ndarray, peaks: np.ndarray) -> None:
        """Write the largest logit of each row of float32 [R, V], NaN where a row has a NaN."""
        count, size = logits.shape
        self._library.steelyard_peaks(_at(logits), size, count, _at(peaks))

    def likeliest(
        self, logits: np.ndarray, peaks: np.ndarray, rows: np.ndarray, tokens: np.ndarray
    ) -> None:
        """Write the first token that has its row's largest logit, int64 [N]."""
        self._library.steelyard_likeliest(*_head(logits, peaks, rows), _at(tokens, _LONG))

    def draw_tokens(self, logits: np.ndarray, peaks: np.ndarray, *columns: np.ndarray) -> None:
        """Draw a token per row.

        Args:
            logits: float32 [R, V].
            peaks: float32 [R].
            *columns: rows, temperature, min_p, top_k, top_p, seeds, positions and tokens, [N]
                each, as `draws.draw_tokens` takes them.
        """
        places = [_at(item, kind) for item, kind in zip(columns, _COLUMNS, strict=True)]
        self._library.steelyard_draw(*_head(logits, peaks, columns[0]), *places[1:])

    def log_totals(
        self, logits: np.ndarray, peaks: np.ndarray, rows: np.ndarray, totals: np.ndarray
    ) -> None:
        """Write log(sum(exp(logits))) of rows, float64 [N]."""
        self._library.steelyard_log_totals(*_head(logits, peaks, rows), _at(totals, _DOUBLE))

    def top_logits(
        self, logits: np.ndarray, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray
    ) -> None:
        """Write the largest logits of rows: int64 [N, K] and float32 [N, K]."""
        places = _at(rows, _LONG), tokens.shape[1]
        self._library.steelyard_tops(
            _at(logits),
            logits.shape[1],
            len(rows),
            *places,
            _at(tokens, _LONG),
            _at(values),
        )

    def forbid(self, logits: np.ndarray, rows: np.ndarray, masks: np.ndarray) -> None:
        """Set to minus infinity what masks int32 [N, W] do not allow."""
        places = _at(rows, _LONG), masks.shape[1], _at(masks, _MASK)
        self._library.steelyard_forbid(_at(logits), logits.shape[1], len(rows), *places)


def _at(array: np.ndarray, kind: np.dtype = _FLOAT) -> int:
    """Return where an array stands; one of another type or with gaps would be misread."""
    assert array.dtype == kind and array.flags.c_contiguous, (array.dtype, kind)
    return array.ctypes.data


def _head(
    logits: np.ndarray, peaks: np.ndarray, rows: np.ndarray
) -> tuple[int, int, int, int, int]:
    """Return the first arguments of functions over some rows."""
    return (
        _at(logits),
        logits.shape[1],
        _at(peaks),
        len(rows),
        _at(rows, _LONG),
    )
