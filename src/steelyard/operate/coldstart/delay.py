"""Which requests may wait for a slot in place of a pod of their own."""

from dataclasses import dataclass

from steelyard.errors import require
from steelyard.sim.serverless.policies import FunctionState, Rule

__all__ = ["AsyncDelay"]


@dataclass(frozen=True, kw_only=True)
class AsyncDelay:
    """Holds asynchronous requests back while the function's own pods will serve them in time.

    Attributes:
        deadline_s: longest wait; a request that still waits then starts a pod.
    """

    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        require(self, deadline_s=(self.deadline_s > 0, "above 0"))

    def wait_s(self, state: FunctionState) -> float:
        """Return the deadline where the queue is expected to be served within it, else 0."""
        # Without a pod nothing would free a slot, and the start would come a deadline later.
        if not state.is_async or not state.num_pods:
            return 0.0
        slots = state.num_pods * state.slots
        expected_s = (state.num_queued + 1) * state.mean_duration_s / slots
        return self.deadline_s if expected_s <= self.deadline_s else 0.0

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        return Rule(0, (self.deadline_s,))
