"""Steps that run while the next one is being scheduled."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["Launch", "Launcher"]


class Launch:
    """A step under way."""

    def __init__(self, future: "Future[StepOutput]") -> None:
        """Wrap the worker's future."""
        self._future = future

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return self._future.done()

    def result(self) -> StepOutput:
        """Wait for the step and give its output; raises what the step raised."""
        return self._future.result()


class Launcher:
    """Runs steps in the order they were launched, and hands each the tokens of the one before.

    A plan made before the previous step's tokens were known names them in `StepPlan.feedback`; they
    are filled in by the worker, so scheduling never waits for them.

    Source: Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), section 4.2 (asynchronous scheduling).
    """

    def __init__(self, run: Callable[[StepPlan, np.ndarray], StepOutput]) -> None:
        """Start without a thread; the first launch makes one.

        Args:
            run: executes a plan whose token ids are the second argument, int64 [T].
        """
        self._run = run
        self._worker: ThreadPoolExecutor | None = None
        self._latest = np.empty(0, dtype=np.int64)

    def launch(self, plan: StepPlan) -> Launch:
        """Queue a step and return at once."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="step")
        return Launch(self._worker.submit(self._step, plan))

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run a step after all launched ones and wait for it."""
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

    def close(self) -> None:
        """Wait for launched steps and end the thread; a later launch starts it anew."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None
