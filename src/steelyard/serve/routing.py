"""Which replica a request goes to."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["RotatingRoute", "fewest_requests"]


class _Loaded(Protocol):
    """A replica as routing sees it."""

    @property
    def load(self) -> int:
        """Requests it was sent and has not finished with."""
        ...


def fewest_requests(replicas: Sequence[_Loaded], job: object) -> int:
    """Return the replica with the fewest requests, the first of several.

    Source: Zhong et al. 2024 (arXiv 2401.09670), section 4.3.
    """
    del job
    return min(range(len(replicas)), key=lambda index: replicas[index].load)


class RotatingRoute:
    """Sends requests to the replicas in turn."""

    def __init__(self) -> None:
        """Begin with the first replica."""
        self._turn = -1

    def __call__(self, replicas: Sequence[_Loaded], job: object) -> int:
        """Return the next replica."""
        del job
        self._turn += 1
        return self._turn % len(replicas)
