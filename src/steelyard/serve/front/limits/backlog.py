"""How much may be in flight: a bound on requests and on the tokens they are predicted to cost."""

from steelyard.serve.front.api.errors import ApiError

__all__ = ["Backlog"]


class Backlog:
    """Counts what is in flight and refuses what is too much; a policy without a clock of its own.

    The output length of a request is predicted as the mean of those that ended, at most its limit.
    A single request is always taken.

    Attributes:
        max_requests: most requests in flight.
        max_tokens: most predicted tokens in flight, 0 for no bound.
        num_requests: requests in flight.
        num_tokens: predicted tokens in flight.

    Source: Yao et al. 2024 (arXiv 2408.00008), routing: outstanding predicted tokens as load.
    """

    _WEIGHT = 0.05

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        """Start empty.

        Args:
            max_requests: most requests in flight, at least 1.
            max_tokens: most predicted tokens in flight, 0 for no bound.
        """
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.num_requests = self.num_tokens = 0
        self._mean_output = 0.0
        self._tokens_per_s = 0.0
        self._ended_s = 0.0

    def predict(self, limit: int, *, is_forced: bool = False) -> int:
        """Return the output tokens a sequence will have.

        Args:
            limit: most tokens it may have.
            is_forced: whether it runs to its limit in any case.

        Returns:
            At least 1.
        """
        if is_forced or not self._mean_output:
            return limit
        return max(min(limit, round(self._mean_output)), 1)

    def refuse_if_full(self) -> None:
        """Refuse any further request.

        Raises:
            ApiError: 429 with the time after which one will have ended.
        """
        if self.num_requests >= self.max_requests or (
            self.max_tokens and self.num_tokens >= self.max_tokens
        ):
            raise self._refusal(1)

    def enter(self, tokens: int) -> None:
        """Count a request.

        Args:
            tokens: predicted tokens of the request.

        Raises:
            ApiError: 429; nothing is counted.
        """
        # A request larger than the whole bound is let in when it is alone: it could never be
        # otherwise, and the engine runs it or refuses it for a reason of its own.
        is_over = self.max_tokens and self.num_tokens + tokens > self.max_tokens
        if self.num_requests and (self.num_requests >= self.max_requests or is_over):
            raise self._refusal(tokens)
        self.num_requests += 1
        self.num_tokens += tokens

    def leave(self, tokens: int, output_tokens: int, now_s: float, *, is_complete: bool) -> None:
        """Count a request out.

        Args:
            tokens: predicted tokens, as the request entered.
            output_tokens: mean output of its sequences.
            now_s: time on any clock that never falls.
            is_complete: whether it ended by itself, so that its length is one to learn from.
        """
        self.num_requests -= 1
        self.num_tokens -= tokens
        # The length of an answer that was cut off says nothing about that of others.
        if is_complete:
            step = self._WEIGHT if self._mean_output else 1.0
            self._mean_output += step * (output_tokens - self._mean_output)
        if self._ended_s:
            rate = tokens / max(now_s - self._ended_s, 1e-3)
            self._tokens_per_s += self._WEIGHT * (rate - self._tokens_per_s)
        self._ended_s = now_s

    def _refusal(self, tokens: int) -> ApiError:
        """Return the refusal of a request, with the time until there is room for it."""
        excess = max(self.num_tokens + tokens - (self.max_tokens or self.num_tokens), tokens)
        wait_s = min(max(excess / self._tokens_per_s, 1.0), 60.0) if self._tokens_per_s else 1.0
        text = f"the server is busy with {self.num_requests} requests; try again in {wait_s:.0f} s"
        return ApiError(429, text, code="overloaded", retry_after_s=wait_s)
