"""Log probabilities of chosen and likeliest tokens."""

import numpy as np

from steelyard.serve.running.sampling.kernels import SamplingKernels
from steelyard.serve.running.sampling.threads import RowThreads
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["LogProbs", "asks_logprobs"]


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
        kernels: SamplingKernels,
        threads: RowThreads,
        changed: list[int] | None = None,
    ) -> None:
        """Look at the raw logits.

        Args:
            logits: float32 [R, V].
            peaks: float32 [R], largest logit of each row.
            params: [R].
            kernels: functions over rows.
            threads: share the rows.
            changed: rows whose logits will be edited.
        """
        self._logits = logits
        self._kernels = kernels
        self._threads = threads
        self._rows = np.array(
            [row for row, item in enumerate(params) if asks_logprobs(item)], dtype=np.int64
        )
        asking = [params[row] for row in self._rows]
        self._is_beam = np.array([item.beam_width > 0 for item in asking], dtype=bool)
        # A beam search takes twice its width, so that ended hypotheses leave enough to go on with.
        self._width = max(
            (max(item.logprobs or 0, 2 * item.beam_width) for item in asking), default=0
        )
        self._totals = np.empty(len(self._rows))
        if len(self._rows):
            work = (logits, peaks), self._rows, self._totals
            threads.run(kernels.log_totals, logits.shape[1], *work)
        # Rows that will be edited are copied now: the log probabilities are those of raw logits.
        edited = set(changed or ())
        self._raw = {int(row): logits[row].copy() for row in self._rows if row in edited}
        is_wide = np.array([bool(item.logprobs) for item in asking], dtype=bool)
        self._plain = self._tops(np.flatnonzero(is_wide & ~self._is_beam))

    def _tops(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return some of the asking rows, their likeliest tokens [N, K] and log probabilities."""
        rows = self._rows[which]
        tokens = np.empty((len(rows), self._width), dtype=np.int64)
        values = np.empty((len(rows), self._width), dtype=np.float32)
        if len(rows) and self._width:
            work = (self._logits,), rows, tokens, values
            self._threads.run(self._kernels.top_logits, self._logits.shape[1], *work)
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
        # Beams alone rank by what grammar, biases and penalties made of the logits, hence only now.
        for which, ids, values in (self._plain, self._tops(np.flatnonzero(self._is_beam))):
            top_tokens[self._rows[which]], top_logprobs[self._rows[which]] = ids, values
        return {"logprobs": logprobs, "top_tokens": top_tokens, "top_logprobs": top_logprobs}


def asks_logprobs(params: SamplingParams) -> bool:
    """Whether a request needs log probabilities: to report, to rank outputs, or to search."""
    return params.logprobs is not None or params.beam_width > 0 or params.best_of > params.n
