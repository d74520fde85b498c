"""The order in which requests get the pool: the protocol, and orders that know no clients."""

from typing import Protocol

from steelyard.serve.scheduling.request import Request

__all__ = ["FCFS", "OrderPolicy", "Priority", "ShortestJob"]


class OrderPolicy(Protocol):
    """Ranks requests. The scheduler tells it what happens and asks for keys.

    A smaller key goes first.

    A policy that derives from this class learns nothing unless it says so.

    Keys of one policy compare with each other. They may change between any two calls; the scheduler
    reads them when it admits, and for all requests (running, swapped, waiting) at each update of
    the priorities.
    """

    def arrive(self, request: Request, now_s: float) -> None:
        """Learn of a new request.

        Args:
            request: request whose `order` is set.
            now_s: time on the driver's clock.
        """

    def served(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Learn of tokens that ran for a request in one step.

        Args:
            request: request that arrived.
            prefill_tokens: prompt tokens computed.
            decode_tokens: output tokens sampled.
        """

    def leave(self, request: Request) -> None:
        """Learn that a request ended or was aborted."""

    def update(self, now_s: float) -> None:
        """Learn that a new round of priorities begins."""

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return a request's rank.

        Args:
            request: request that has arrived and not left.
            now_s: time on the driver's clock.

        Returns:
            A tuple to sort by, smallest first.
        """
        ...


class FCFS(OrderPolicy):
    """First come, first served."""

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return the rank of arrival."""
        return (request.order,)


class Priority(OrderPolicy):
    """The request's own priority, smaller first; equal ones by arrival."""

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return (priority, rank of arrival)."""
        return (request.priority, request.order)


class ShortestJob(OrderPolicy):
    """Fewest tokens left, prompt and expected output together; equal ones by arrival.

    A request that says nothing of its output is taken to use all of `max_tokens`; one that passed
    its expectation has one token left.
    """

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return (tokens left, rank of arrival)."""
        output = request.expected_output or request.params.max_tokens
        prompt = max(len(request.prompt) - request.num_computed, 0)
        return (prompt + max(output - len(request.output), 1), request.order)
