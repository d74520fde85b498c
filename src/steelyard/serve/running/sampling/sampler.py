"""From logits to tokens, for a whole step at once; each row pays only for what its request asks.

Order of processing, as in vLLM and, for what it has, the OpenAI API: grammar, `min_tokens`,
`logit_bias`, repetition, frequency and presence penalties, temperature, `min_p`, `top_k`, `top_p`.
Reported log probabilities are those of the raw logits; only beams rank tokens by what grammar,
biases and penalties made of them.
"""

import math

import numpy as np
from torch import Tensor

from steelyard.errors import BackendError, ConfigError
from steelyard.serve.running.grammar import Grammars
from steelyard.serve.running.sampling.kernels import SamplingKernels, numba_kernels
from steelyard.serve.running.sampling.logprobs import LogProbs, asks_logprobs
from steelyard.serve.running.sampling.peaks import Peaks
from steelyard.serve.running.sampling.penalties import (
    TokenHistory,
    add_bias,
    forbid_end,
    has_penalty,
)
from steelyard.serve.running.sampling.threads import RowThreads
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.states import RequestStates
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["Sampler"]

_GREEDY_BELOW = 1e-5
"""Temperatures below it take the likeliest token, as dividing by them leaves nothing else."""
_UNKNOWN = -1
"""Stands for a likeliest token that has yet to be found."""


class Sampler:
    """Chooses the tokens of a step.

    A draw depends only on the request's seed, its output position and its logits: neither on the
    other requests of the step nor on their order. What is remembered of a request (counts for
    penalties, states of grammars) follows the request's output and can be made again from it, so
    preemption and forks need no word from the scheduler.

    Attributes:
        grammars: compiles and follows grammars, or None when there is no tokenizer.
    """

    def __init__(self, grammars: Grammars | None = None) -> None:
        """Start with nothing remembered.

        Args:
            grammars: grammars of the tokenizer; without it requests with a grammar are refused.
        """
        self.grammars = grammars
        self._histories = RequestStates(TokenHistory)
        self._threads = RowThreads()
        self._kernels: SamplingKernels | None = None

    @property
    def kernels(self) -> SamplingKernels:
        """Functions over rows; those of numba unless others were set."""
        if self._kernels is None:
            self._kernels = numba_kernels()
        return self._kernels

    @kernels.setter
    def kernels(self, kernels: SamplingKernels) -> None:
        """Use other functions from the next step on."""
        self._kernels = kernels

    def check(self, params: SamplingParams, vocab_size: int) -> None:
        """Refuse parameters that this model cannot honor.

        Args:
            params: parameters of a request.
            vocab_size: vocabulary of the model.

        Raises:
            ConfigError: a bias names a token outside the vocabulary or is not finite, or the
                grammar cannot be used.
        """
        for token, addend in params.logit_bias:
            if not (0 <= token < vocab_size and np.isfinite(addend)):
                raise ConfigError(
                    f"logit_bias has {addend} for token {token}",
                    hint=f"give finite addends for tokens in [0, {vocab_size})",
                )
        if params.grammar and self.grammars is None:
            raise ConfigError(
                "a grammar needs a tokenizer, which this model lacks",
                hint="serve a folder with tokenizer.json",
            )
        if params.grammar and self.grammars is not None:
            self.grammars.check(params.grammar)

    def warm_up(self, vocab_size: int) -> None:
        """Compile the kernels, so that no timed step pays for it.

        Args:
            vocab_size: vocabulary of the model.
        """
        logits = np.zeros((1, vocab_size), dtype=np.float32)
        peaks = np.zeros(1, dtype=np.float32)
        self.kernels.find_peaks(logits, peaks)
        for params in (
            SamplingParams(),
            SamplingParams(temperature=1.0, top_k=1, top_p=0.5, min_p=0.1, logprobs=1),
        ):
            report = LogProbs(logits, peaks, [params], self.kernels, self._threads)
            report.finish(self._choose(logits, peaks, [params], np.zeros(1, dtype=np.int64)))

    def sample(self, logits: Tensor, plan: StepPlan, known: Peaks | None = None) -> StepOutput:
        """Choose one token per sampled row.

        Args:
            logits: [R, V], one row per sampled row of the plan; may be overwritten.
            plan: plan of the step.
            known: peaks of the logits, where the kernels found them; may be overwritten.

        Returns:
            Tokens, and log probabilities when a request asks for them, has beams, or has outputs to
            rank.

        Raises:
            BackendError: the model gave a logit that is NaN or infinite.
        """
        if (known is not None or logits.device.type != "cpu") and all(
            _is_greedy(request.params) for request in plan.sampled
        ):
            return _take_likeliest(known or _peaks_of(logits), plan)
        values = logits.float().contiguous().numpy(force=True)
        peaks = np.empty(len(values), dtype=np.float32) if known is None else known.values
        if known is None:
            self._threads.run(self.kernels.find_peaks, values.shape[1], (), values, peaks)
        _refuse_broken(peaks, plan)
        params = [request.params for request in plan.sampled]
        positions = plan.output_positions
        changed = [row for row, item in enumerate(params) if _is_changed(item, positions[row])]
        report = LogProbs(values, peaks, params, self.kernels, self._threads, changed)
        errors = self._edit(values, changed, plan) if changed else {}
        peaks[changed] = values[changed].max(-1) if changed else 0.0
        # Nothing may be left, as where every token ends an output that must not end yet.
        for row in changed:
            if np.isneginf(peaks[row]):
                errors.setdefault(row, "no token is left to choose")
                values[row] = peaks[row] = 0.0
        likeliest = None
        if known is not None:
            likeliest = known.tokens
            likeliest[changed] = _UNKNOWN
        tokens = self._choose(values, peaks, params, positions, likeliest)
        return StepOutput(tokens=tokens, errors=errors, **report.finish(tokens))

    def _edit(self, values: np.ndarray, changed: list[int], plan: StepPlan) -> dict[int, str]:
        """Apply grammars, `min_tokens`, biases and penalties in place.

        Args:
            values: float32 [R, V], changed in place.
            changed: rows to edit.
            plan: plan of the step.

        Returns:
            Why rows could not be edited, by row.
        """
        requests = plan.sampled
        positions = plan.output_positions.tolist()
        held = [row for row in changed if requests[row].params.grammar]
        errors = self._constrain(values, held, requests, positions) if held else {}
        for row in changed:
            request = requests[row]
            # A grammar has held the end tokens back itself, unless it allows nothing else.
            if not request.params.grammar:
                forbid_end(values[row], request.params, positions[row])
            add_bias(values[row], request.params)
            if has_penalty(request.params):
                history = self._histories.get(request)
                history.update(positions[row])
                history.penalize(values[row])
        return errors

    def _constrain(
        self, values: np.ndarray, rows: list[int], requests: list[Request], positions: list[int]
    ) -> dict[int, str]:
        """Leave rows only what their grammars allow."""
        if self.grammars is None:
            raise BackendError(
                "a request has a grammar but the engine has no tokenizer",
                hint="check requests with Sampler.check",
            )
        masks, errors = self.grammars.masks(
            [requests[row] for row in rows], [positions[row] for row in rows]
        )
        self.kernels.forbid(values, np.array(rows, dtype=np.int64), masks)
        return {rows[at]: reason for at, reason in errors.items()}

    def _choose(
        self,
        values: np.ndarray,
        peaks: np.ndarray,
        params: list[SamplingParams],
        positions: np.ndarray,
        likeliest: np.ndarray | None = None,
    ) -> np.ndarray:
        """Take or draw one token for each row of float32 [R, V], of which some may be known."""
        size = values.shape[1]
        drawn = np.array([item.temperature >= _GREEDY_BELOW for item in params], dtype=bool)
        tokens = np.full(len(params), _UNKNOWN) if likeliest is None else likeliest.copy()
        cold, hot = np.flatnonzero(~drawn & (tokens == _UNKNOWN)), np.flatnonzero(drawn)
        if len(cold):
            found = np.empty(len(cold), dtype=np.int64)
            self._threads.run(self.kernels.likeliest, size, (values, peaks), cold, found)
            tokens[cold] = found
        if len(hot):
            chosen = [params[row] for row in hot]
            found = np.empty(len(hot), dtype=np.int64)
            columns = _columns(chosen, size, positions[hot])
            work = (values, peaks), hot, *columns, found
            self._threads.run(self.kernels.draw_tokens, size, *work)
            tokens[hot] = found
        return tokens


def _is_greedy(params: SamplingParams) -> bool:
    """Whether a row needs nothing but its largest logit."""
    return params.temperature < _GREEDY_BELOW and not (
        params.needs_history or params.logit_bias or asks_logprobs(params)
    )


def _peaks_of(logits: Tensor) -> Peaks:
    """Find the likeliest tokens where the logits are, so that only they leave the device."""
    values, tokens = logits.max(-1)
    return Peaks(values.float().numpy(force=True), tokens.numpy(force=True))


def _take_likeliest(peaks: Peaks, plan: StepPlan) -> StepOutput:
    """Take the likeliest tokens."""
    _refuse_broken(peaks.values, plan)
    return StepOutput(tokens=peaks.tokens.copy())  # the next step may overwrite the peaks


def _columns(
    params: list[SamplingParams], size: int, positions: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return the parameters of the rows to draw in the order in which `draw_tokens` takes them."""
    return (
        np.array([item.temperature for item in params], dtype=np.float64),
        np.array([item.min_p for item in params], dtype=np.float64),
        np.array([item.top_k or size for item in params], dtype=np.int64),
        np.array([item.top_p for item in params], dtype=np.float64),
        np.array([item.seed for item in params], dtype=np.uint64),
        positions.astype(np.uint64),
    )


def _is_changed(params: SamplingParams, position: int) -> bool:
    """Whether a row's logits are edited before the choice."""
    return bool(
        params.grammar or params.logit_bias or position < params.min_tokens or has_penalty(params)
    )


def _refuse_broken(peaks: np.ndarray, plan: StepPlan) -> None:
    """Refuse logits whose largest one is not finite; a NaN counts as the largest."""
    # Sums of float32 stay finite in Python's floats; numpy takes longer for the rows of a step.
    if math.isfinite(sum(peaks.tolist())):
        return
    broken = [plan.sampled[row].id for row in np.flatnonzero(~np.isfinite(peaks))]
    if broken:
        shown = ", ".join(broken[:5]) + (f" and {len(broken) - 5} more" if len(broken) > 5 else "")
        raise BackendError(
            f"the model gave NaN or infinite logits for {shown}",
            hint="check its weights; a narrow dtype may overflow, so try float32",
        )
