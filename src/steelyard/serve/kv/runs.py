"""Runs of consecutive blocks in size classes, where a fitting one is found in logarithmic time."""

__all__ = ["FreeRuns", "SizeClasses"]


class SizeClasses:
    """Runs by start; those of [2^k, 2^(k+1)) blocks share a class.

    Adding, removing and finding cost at most one look at each of the log2(N) classes.

    Attributes:
        sizes: blocks of each run, by its start.
        num_blocks: blocks of all runs.
    """

    def __init__(self) -> None:
        """Start without a run."""
        self.sizes: dict[int, int] = {}
        self.num_blocks = 0
        self._classes: list[dict[int, None]] = []

    def add(self, start: int, size: int) -> None:
        """Keep a run of at least one block."""
        rank = size.bit_length()
        while len(self._classes) <= rank:
            self._classes.append({})
        self._classes[rank][start] = None
        self.sizes[start] = size
        self.num_blocks += size

    def remove(self, start: int) -> int:
        """Forget a run and return its size."""
        size = self.sizes.pop(start)
        del self._classes[size.bit_length()][start]
        self.num_blocks -= size
        return size

    def at_least(self, size: int) -> int:
        """Find a run of some size or more.

        Args:
            size: blocks, at least 1.

        Returns:
            The start of one from the smallest class that has one (only the newest run of the size's
            own class is looked at), or -1.
        """
        rank = size.bit_length()
        for runs in self._classes[rank:]:
            start = next(reversed(runs), -1)
            if start >= 0 and self.sizes[start] >= size:
                return start
        return -1

    def largest(self) -> int:
        """Return the start of a run of the highest class, -1 without runs."""
        return next((next(reversed(runs)) for runs in reversed(self._classes) if runs), -1)


class FreeRuns(SizeClasses):
    """Free blocks as maximal runs: given blocks merge with their neighbours.

    Source: Shen et al. 2024 (arXiv 2411.18424), dynamic block group manager.
    """

    def __init__(self, count: int) -> None:
        """Start with blocks 0 to `count` - 1 in one run."""
        super().__init__()
        self._start_of: dict[int, int] = {}
        if count:
            self.give(0, count)

    def give(self, start: int, size: int) -> None:
        """Free blocks [start, start + size)."""
        if start in self._start_of:
            left = self._start_of[start]
            size += self.remove(left)
            start = left
        if start + size in self.sizes:
            size += self.remove(start + size)
        self.add(start, size)

    def take(self, start: int, size: int) -> int:
        """Take blocks from the front of a run.

        Args:
            start: first block of the run.
            size: most blocks to take.

        Returns:
            Blocks taken; 0 when no run begins there.
        """
        if start not in self.sizes:
            return 0
        whole = self.remove(start)
        taken = min(size, whole)
        if whole > taken:
            self.add(start + taken, whole - taken)
        return taken

    def add(self, start: int, size: int) -> None:
        """Keep a run that has no free neighbour."""
        super().add(start, size)
        self._start_of[start + size] = start

    def remove(self, start: int) -> int:
        """Forget a run and return its size."""
        size = super().remove(start)
        del self._start_of[start + size]
        return size
