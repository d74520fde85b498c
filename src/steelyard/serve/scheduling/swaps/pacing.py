"""Whether to wait for requests on their way into the pool, or to run a step without them."""

from collections import deque

__all__ = ["SwapPacing"]


class SwapPacing:
    """Decides from a sliding record of steps and swaps.

    A step takes about as long for few sequences as for many, while the weights are what it reads.
    With r sequences running, c on their way for w more seconds and steps of S seconds, waiting
    yields r + c tokens in w + S, going on yields 2 r + c in 2 S; waiting is better when w < S c /
    (2 r + c): always when nothing can run, hardly ever when most of the batch is there.

    Source: Shen et al. 2024 (arXiv 2411.18424), adaptive swapping strategy; the inequality is
    derived here.
    """

    def __init__(self, *, window: int = 32) -> None:
        """Start without a record, when only an empty batch waits.

        Args:
            window: steps and swaps that count.
        """
        self._steps: deque[float] = deque(maxlen=window)
        self._swaps: deque[tuple[int, float]] = deque(maxlen=window)

    def step(self, seconds: float) -> None:
        """Keep the time of a step."""
        self._steps.append(seconds)

    def swapped(self, num_blocks: int, seconds: float) -> None:
        """Keep the time of a transfer into the pool, from its start to its landing."""
        self._swaps.append((num_blocks, seconds))

    def should_wait(self, num_running: int, num_coming: int, num_blocks: int) -> bool:
        """Decide before a step.

        Args:
            num_running: sequences that would run now.
            num_coming: sequences on their way into the pool.
            num_blocks: blocks of these that are still to come.

        Returns:
            Whether to wait for them first.
        """
        if not num_running or not num_coming:
            return num_coming > 0
        moved = sum(count for count, _ in self._swaps)
        if not moved or not self._steps:
            return False
        expected_s = num_blocks * sum(seconds for _, seconds in self._swaps) / moved
        step_s = sum(self._steps) / len(self._steps)
        return expected_s < step_s * num_coming / (2 * num_running + num_coming)
