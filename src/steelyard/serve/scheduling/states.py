"""What is remembered of requests between steps, such as counts of tokens or places in grammars."""

from collections.abc import Callable
from typing import Generic, TypeVar

from steelyard.serve.scheduling.request import Request

__all__ = ["RequestStates", "common_length"]

_MOST_STATES = 1024

_State = TypeVar("_State")


def common_length(first: list[int], second: list[int]) -> int:
    """Return the number of leading tokens that are equal."""
    pairs = zip(first, second, strict=False)
    shorter = min(len(first), len(second))
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)


class RequestStates(Generic[_State]):
    """States by request, made anew where they are not known."""

    def __init__(self, make: Callable[[Request], _State]) -> None:
        """Remember nothing.

        Args:
            make: makes the state of a request at its start.
        """
        self._make = make
        self._known: dict[str, tuple[Request, _State]] = {}

    def get(self, request: Request) -> _State:
        """Return the state of a request, at its start when it is not known."""
        found = self._known.get(request.id)
        # An id may come again; the object tells whether it is the same request.
        if found is None or found[0] is not request:
            self._make_room()
            found = self._known[request.id] = (request, self._make(request))
        return found[1]

    def _make_room(self) -> None:
        """Forget requests that ended when there are many; nobody says when one ends."""
        if len(self._known) >= _MOST_STATES:
            self._known = {
                key: item for key, item in self._known.items() if item[0].finish_reason is None
            }
        if len(self._known) >= _MOST_STATES:
            self._known = {}  # a state that is forgotten is made again from the request's output
