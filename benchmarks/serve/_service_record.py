"""What each client was served, step by step, and how fair that was."""

from collections.abc import Iterable, Mapping

import numpy as np

from steelyard.serve.scheduling.fairness import jain_index

__all__ = ["ServiceRecord", "service_bound"]


def service_bound(*, w_in: float, w_out: float, longest_prompt: int, pool_tokens: int) -> float:
    """Return how far two backlogged clients may drift apart under `VTC`, in priced tokens.

    Args:
        w_in: price of a prompt token.
        w_out: price of an output token.
        longest_prompt: most prompt tokens of a request.
        pool_tokens: tokens the pool holds.

    Returns:
        2 max(w_in L_in, w_out M).

    Source: Sheng et al. 2024 (arXiv 2401.00588), section 4.
    """
    return 2 * max(w_in * longest_prompt, w_out * pool_tokens)


class ServiceRecord:
    """Priced tokens of each client per step, and who had requests waiting then."""

    def __init__(self, clients: Iterable[str]) -> None:
        """Start before the first step.

        Args:
            clients: who is watched.
        """
        self.clients = list(clients)
        self._service: list[list[float]] = []
        self._backlogged: list[list[bool]] = []

    def add(self, service: Mapping[str, float], backlogged: Iterable[str]) -> None:
        """Keep one step.

        Args:
            service: priced tokens by client; 0 for those not named.
            backlogged: clients that have a request waiting.
        """
        waiting = set(backlogged)
        self._service.append([service.get(name, 0.0) for name in self.clients])
        self._backlogged.append([name in waiting for name in self.clients])

    @property
    def service(self) -> np.ndarray:
        """Priced tokens, float64 [steps, clients]."""
        return np.array(self._service, dtype=np.float64).reshape(-1, len(self.clients))

    @property
    def backlogged(self) -> np.ndarray:
        """Who had requests waiting, bool [steps, clients]."""
        return np.array(self._backlogged, dtype=bool).reshape(-1, len(self.clients))

    def jain(self) -> float:
        """Return Jain's index over steps in which all clients waited; 1 when there is none."""
        saturated = self.backlogged.all(axis=1)
        return jain_index(self.service[saturated].sum(axis=0))

    def largest_difference(self) -> float:
        """Return the most by which one client ran ahead of another while both waited.

        Returns:
            Priced tokens, over all intervals in which both had requests waiting; 0 when no two
            clients ever waited together.
        """
        total = self.service.cumsum(axis=0)
        waiting = self.backlogged
        worst = 0.0
        for left in range(len(self.clients)):
            for right in range(left):
                apart = total[:, left] - total[:, right]
                # The service of a stretch's first step counts, so its baseline is the step before.
                for start, stop in _stretches(waiting[:, left] & waiting[:, right]):
                    part = apart[max(start - 1, 0) : stop]
                    worst = max(worst, float(part.max() - part.min()))
        return worst


def _stretches(flags: np.ndarray) -> Iterable[tuple[int, int]]:
    """Return the [start, stop) of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
