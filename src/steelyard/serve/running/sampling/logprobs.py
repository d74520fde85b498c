"""Log probabilities of chosen and likeliest tokens."""

import numpy as np

from steelyard.jit import njit
from steelyard.serve.running.sampling.draws import weigh
from steelyard.serve.running.sampling.threads import RowThreads
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["LogProbs", "asks_logprobs", "log_totals", "top_logits"]


class LogProbs:
    """Log probabilities of one step.

    Taken in part before logits are edited, finished when tokens are chosen.

    Rows that ask for none cost nothing and hold NaN, token -1 and minus infinity.
    """

    def __init__(
        self,
        logits: np.ndarray,
        peaks: np.ndarray,
        params: list[SamplingParams],
        threads: RowThreads,
        changed: list[int] | None = None,
    ) -> None:
        """Look at the raw logits.

        Args:
            logits: float32 [R, V].
            peaks: float32 [R], largest logit of each row.
            params: [R].
            threads: share the rows.
            changed: rows whose logits will be edited.
        """
        self._logits, self._threads = logits, threads
        self._rows = np.array(
            [row for row, item in enumerate(params) if asks_logprobs(item)], dtype=np.int64
        )
        self._is_beam = np.array([params[row].beam_width > 0 for row in self._rows], dtype=bool)
        self._width = max(
            (max(params[row].logprobs or 0, 2 * params[row].beam_width) for row in self._rows),
            default=0,
        )
        self._totals = np.empty(len(self._rows))
        if len(self._rows):
            threads.run(
                log_totals,
                len(self._rows),
                logits.shape[1],
                logits,
                peaks,
                self._rows,
                self._totals,
            )
        edited = set(changed or ())
        self._raw = {int(row): logits[row].copy() for row in self._rows if row in edited}
        wide = [
            params[row].logprobs is not None and params[row].logprobs != 0 for row in self._rows
        ]
        self._plain = self._tops(np.flatnonzero(np.array(wide, dtype=bool) & ~self._is_beam))

    def _tops(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Give `which` of the asking rows, their likeliest tokens [N, K] and those tokens' log probabilities."""
        rows = self._rows[which]
        tokens = np.empty((len(rows), self._width), dtype=np.int64)
        values = np.empty((len(rows), self._width), dtype=np.float32)
        if len(rows) and self._width:
            self._threads.run(
                top_logits, len(rows), self._logits.shape[1], self._logits, rows, tokens, values
            )
        return which, tokens, (values - self._totals[which, None]).astype(np.float32)

    def finish(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of the step's output.

        Args:
            tokens: int64 [R], chosen.

        Returns:
            "logprobs" when a row asks, "top_tokens" and "top_logprobs" when one asks for
            alternatives.
        """
        if not len(self._rows):
            return {}
        logprobs = np.full(len(tokens), np.nan, dtype=np.float32)
        for row, total in zip(self._rows.tolist(), self._totals.tolist(), strict=True):
            logprobs[row] = self._raw.get(row, self._logits[row])[tokens[row]] - total
        if not self._width:
            return {"logprobs": logprobs}
        top_tokens = np.full((len(tokens), self._width), -1, dtype=np.int64)
        top_logprobs = np.full((len(tokens), self._width), -np.inf, dtype=np.float32)
        for which, ids, values in (self._plain, self._tops(np.flatnonzero(self._is_beam))):
            top_tokens[self._rows[which]], top_logprobs[self._rows[which]] = ids, values
        return {"logprobs": logprobs, "top_tokens": top_tokens, "top_logprobs": top_logprobs}


def asks_logprobs(params: SamplingParams) -> bool:
    """Whether a request needs log probabilities: to report, to rank its outputs, or to search with beams."""
    return params.logprobs is not None or params.beam_width > 0 or params.best_of > params.n


@njit()
def log_totals(
    logits: np.ndarray,
    peaks: np.ndarray,
    rows: np.ndarray,
    totals: np.ndarray,
    first: int,
    end: int,
) -> None:
    """Give log(sum(exp(logits))) of rows.

    Args:
        logits: float32 [R, V].
        peaks: float32 [R], largest logit of each row.
        rows: int64 [N] rows to add up.
        totals: float64 [N], overwritten from `first` to `end`.
        first: of the `rows` to do.
        end: after the last.
    """
    weights = np.empty(logits.shape[1], np.float32)
    for at in range(first, end):
        totals[at] = peaks[rows[at]] + np.log(
            weigh(logits[rows[at]], peaks[rows[at]], 1.0, weights)
        )


@njit()
def top_logits(
    logits: np.ndarray,
    rows: np.ndarray,
    tokens: np.ndarray,
    values: np.ndarray,
    first: int,
    end: int,
) -> None:
    """Give the K largest logits of rows, largest first, equal ones by rising token.

    Where fewer than K are above minus infinity, the rest is token -1 and minus infinity.

    Args:
        logits: float32 [R, V].
        rows: int64 [N] rows to look at.
        tokens: int64 [N, K], overwritten from `first` to `end`.
        values: float32 [N, K], overwritten likewise.
        first: of the `rows` to do.
        end: after the last.
    """
    width = tokens.shape[1]
    for at in range(first, end):
        ids, best = tokens[at], values[at]
        ids[:] = -1
        best[:] = -np.inf
        row = logits[rows[at]]
        for token in range(len(row)):
            value = row[token]
            if value > best[width - 1]:
                place = width - 1
                while place > 0 and value > best[place - 1]:
                    best[place], ids[place] = best[place - 1], ids[place - 1]
                    place -= 1
                best[place], ids[place] = value, token
