"""Steps that run while the next one is being scheduled."""

from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from torch import Tensor

from steelyard.serve.running.sampling import Sampler
from steelyard.serve.running.weights import ComputedIn
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["EngineRunner"]


class EngineRunner(ABC):
    """Runs steps in the order they were launched, and hands each the tokens of the one before.

    A plan made before the previous step's tokens were known names them in `StepPlan.feedback`; they
    are filled in by the worker, so scheduling never waits for them.

    Attributes:
        kernel: name of what runs a step.
        kernel_note: why it is not a faster one; empty when there is none.
        weights: number type in which linear layers are computed; None for the model's own.
        sampler: turns logits into tokens, and refuses requests it cannot sample for.

    Source: Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), section 4.2 (asynchronous scheduling).
    """

    kernel: str
    kernel_note: str = ""
    weights: ComputedIn | None = None

    def __init__(self, sampler: Sampler) -> None:
        """Start without a thread; the first launch makes one."""
        self.sampler = sampler
        self._worker: ThreadPoolExecutor | None = None
        self._latest = np.empty(0, dtype=np.int64)

    @property
    @abstractmethod
    def kv(self) -> Tensor:
        """Tensor of all keys and values."""

    @abstractmethod
    def warm_up(self) -> None:
        """Compile and start what the first step would otherwise wait for."""

    @abstractmethod
    def _run(self, plan: StepPlan, token_ids: np.ndarray) -> StepOutput:
        """Run one step now, with token ids int64 [T]."""

    def launch(self, plan: StepPlan) -> Future[StepOutput]:
        """Run a step in the runner's thread, after all launched before it.

        Args:
            plan: plan of a scheduler of the same config; tokens that the previous step has yet to
                give stand in `feedback`.

        Returns:
            Its `result()` waits for the output, or raises what the step raised.
        """
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="step")
        return self._worker.submit(self._step, plan)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step, after all that were launched.

        Args:
            plan: plan of a scheduler of the same config.

        Returns:
            The tokens of the sampled rows.
        """
        return self._step(plan) if self._worker is None else self.launch(plan).result()

    def _step(self, plan: StepPlan) -> StepOutput:
        """Fill in the tokens of the previous step and run."""
        tokens = plan.token_ids
        if len(plan.feedback):
            tokens = tokens.copy()
            tokens[plan.feedback[:, 0]] = self._latest[plan.feedback[:, 1]]
        output = self._run(plan, tokens)
        self._latest = output.tokens
        return output
