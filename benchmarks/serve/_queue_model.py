"""The gateway as a queue: M/G/c with a service time per request and per streamed token."""

from dataclasses import dataclass

__all__ = ["GatewayQueue", "fit"]


@dataclass(frozen=True, kw_only=True)
class GatewayQueue:
    """Processor time of a gateway and what follows from it.

    Attributes:
        request_s: processor seconds per request.
        token_s: processor seconds per streamed token.
        cores: cores it may use; 1 for one event loop.
    """

    request_s: float
    token_s: float
    cores: int = 1

    def service_s(self, tokens: float) -> float:
        """Seconds of one core that a request of so many output tokens takes."""
        return self.request_s + tokens * self.token_s

    def saturation_per_s(self, tokens: float) -> float:
        """Requests per second at which its cores are busy all the time."""
        return self.cores / self.service_s(tokens)

    def wait_s(self, rate_per_s: float, tokens: float, *, variation: float = 1.0) -> float:
        """Mean wait before service, infinite from saturation on.

        Args:
            rate_per_s: Poisson arrivals.
            tokens: output tokens per request.
            variation: squared coefficient of variation of the service time.

        Returns:
            Seconds; exact for one core, the Allen-Cunneen approximation with utilization to the
            power of sqrt(2 (c + 1)) - 1 for more.

        Source: Pollaczek-Khinchine; Sakasegawa 1977.
        """
        load = rate_per_s / self.saturation_per_s(tokens)
        if load >= 1:
            return float("inf")
        power = (2 * (self.cores + 1)) ** 0.5 - 1
        return (
            load**power / (self.cores * (1 - load)) * self.service_s(tokens) * (1 + variation) / 2
        )


def fit(samples: list[tuple[int, int, float]], *, cores: int = 1) -> GatewayQueue:
    """Fit the two times by least squares.

    Args:
        samples: (requests, output tokens, processor seconds) of at least two loads with different
            tokens per request.
        cores: cores of the gateway.

    Returns:
        The queue; a time that comes out negative is 0.
    """
    import numpy as np
    from scipy.optimize import nnls

    table = np.array([sample[:2] for sample in samples], dtype=float)
    times, _ = nnls(table, np.array([sample[2] for sample in samples]))
    return GatewayQueue(request_s=float(times[0]), token_s=float(times[1]), cores=cores)
