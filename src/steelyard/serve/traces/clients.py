"""A service's load as the sum of its clients: each with its own rate, burstiness and lengths."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from steelyard.errors import ConfigError, TraceError
from steelyard.serve.traces.fields import open_text, read_number
from steelyard.serve.traces.lengths import LengthStatistics
from steelyard.serve.traces.record import TraceRow

__all__ = ["ClientStatistics", "client_mix", "read_clients"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientStatistics:
    """What is known of one client.

    Attributes:
        client: name of the client.
        rate_per_s: mean requests per second.
        cv: coefficient of variation of its inter-arrival times.
        family: distribution that its gaps follow.
        inputs: statistics of its prompt lengths, None when not known.
        outputs: statistics of its output lengths, None when not known.
    """

    client: str
    rate_per_s: float
    cv: float
    family: Literal["Gamma", "Weibull"] = "Gamma"
    inputs: LengthStatistics | None = None
    outputs: LengthStatistics | None = None

    def arrivals(self, generator: np.random.Generator, duration_s: float) -> np.ndarray:
        """Draw its arrivals in [0, duration_s): a renewal process watched from a random moment on.

        Args:
            generator: source of randomness.
            duration_s: length of the trace.

        Returns:
            Rising times.

        Source: ServeGen (arXiv 2505.09999), section 3; Cox 1962, Renewal Theory, section 5.4
        (equilibrium renewal process).
        """
        shape, scale = self._gap_shape()
        # A random moment is more likely to fall in a long gap, so the first gap is drawn in
        # proportion to its length and then cut uniformly. Without this, the expected count would
        # not be rate times duration, and bursty clients would send too much.
        if self.family == "Gamma":
            first = generator.gamma(shape + 1.0, scale)
        else:
            first = scale * generator.gamma(1.0 + 1.0 / shape, 1.0) ** (1.0 / shape)
        times = [np.array([first * generator.random()])]
        while times[-1][-1] < duration_s:
            count = int(self.rate_per_s * (duration_s - times[-1][-1]) * 1.1) + 16
            gaps = (
                generator.gamma(shape, scale, count)
                if self.family == "Gamma"
                else scale * generator.weibull(shape, count)
            )
            times.append(times[-1][-1] + np.cumsum(gaps))
        joined = np.concatenate(times)
        return joined[joined < duration_s]

    def _gap_shape(self) -> tuple[float, float]:
        """Return shape and scale of the gaps from rate and coefficient of variation."""
        if self.family == "Gamma":
            return 1.0 / self.cv**2, self.cv**2 / self.rate_per_s
        shape = _weibull_shape(self.cv)
        return shape, 1.0 / (self.rate_per_s * math.gamma(1.0 + 1.0 / shape))


def _weibull_shape(cv: float) -> float:
    """Find the shape of a Weibull distribution from its coefficient of variation."""
    low = 0.05
    high = 100.0
    # cv**2 + 1 = Gamma(1 + 2/k) / Gamma(1 + 1/k)**2 falls in k: bisection finds the k; it goes by
    # logarithms, as the Gamma function overflows for small k.
    for _ in range(60):
        middle = math.sqrt(low * high)
        log_ratio = math.lgamma(1.0 + 2.0 / middle) - 2.0 * math.lgamma(1.0 + 1.0 / middle)
        low, high = (middle, high) if log_ratio > math.log1p(cv**2) else (low, middle)
    return math.sqrt(low * high)


def read_clients(path: Path) -> list[ClientStatistics]:
    """Read a table of client statistics.

    A client whose lengths are not known takes those of the client next to it in rate.

    Args:
        path: CSV, plain or gzip-compressed, with `client, mean_rate_rps, mean_cv, arrival_family`,
            and `input_tokens_*` and `output_tokens_*` for mean, p50, p90, p95, p99.

    Returns:
        Clients with a rate above 0, in the order of the file.

    Raises:
        TraceError: the file cannot be read, a column is missing, or a value is wrong; names file,
            row and field.
    """
    with open_text(path, "a table of client statistics in CSV") as stream:
        reader = csv.DictReader(stream)
        clients = [_client(row, f"{path}, line {reader.line_num}") for row in reader]
    clients = [client for client in clients if client.rate_per_s > 0]
    if not any(client.inputs and client.outputs for client in clients):
        raise TraceError(f"{path} has no client with known lengths", hint="give at least one")
    return clients


def _client(row: dict[str, str], where: str) -> ClientStatistics:
    """Check one row."""
    family = row.get("arrival_family") or "Gamma"
    if family not in ("Gamma", "Weibull"):
        raise TraceError(f"{where}: arrival_family is {family!r}", hint="it is Gamma or Weibull")
    return ClientStatistics(
        client=row.get("client") or where,
        rate_per_s=read_number(row, "mean_rate_rps", where),
        cv=max(read_number(row, "mean_cv", where), 0.01),  # the Gamma shape is 1 / cv**2
        family=family,
        inputs=_lengths(row, "input_tokens", where),
        outputs=_lengths(row, "output_tokens", where),
    )


def _lengths(row: dict[str, str], name: str, where: str) -> LengthStatistics | None:
    """Read the statistics of one length, or None when the row has none."""
    if not row.get(f"{name}_mean"):
        return None
    parts = [
        read_number(row, f"{name}_{part}", where) for part in ("mean", "p50", "p90", "p95", "p99")
    ]
    return LengthStatistics(mean=parts[0], quantiles=(parts[1], parts[2], parts[3], parts[4]))


def client_mix(
    clients: Sequence[ClientStatistics],
    generator: np.random.Generator,
    *,
    duration_s: float,
    rate_per_s: float | None = None,
) -> list[TraceRow]:
    """Draw a trace of many clients.

    Args:
        clients: statistics of each, at least one with known lengths.
        generator: source of randomness.
        duration_s: length of the trace, above 0.
        rate_per_s: mean arrivals per second of all clients together; every client's rate is scaled
            alike. None keeps them.

    Returns:
        Rows by arrival, each with its client's name.

    Raises:
        ConfigError: duration or rate is not positive, or no client has known lengths.
    """
    known = [item for item in clients if item.inputs and item.outputs]
    total = sum(item.rate_per_s for item in clients)
    wanted = total if rate_per_s is None else rate_per_s
    if not known or not 0 < duration_s < math.inf or not 0 < wanted < math.inf:
        raise ConfigError(
            f"cannot draw {duration_s} s at {wanted} requests per s from {len(known)} clients "
            f"with known lengths"
        )
    rows: list[TraceRow] = []
    for client in clients:
        scaled = ClientStatistics(
            client=client.client,
            rate_per_s=client.rate_per_s * wanted / total,
            cv=client.cv,
            family=client.family,
        )
        like = min(
            known,
            key=lambda item: (
                item is not client,
                abs(math.log(item.rate_per_s / client.rate_per_s)),
            ),
        )
        assert like.inputs and like.outputs
        times = scaled.arrivals(generator, duration_s)
        inputs = like.inputs.draw(generator, len(times))
        outputs = like.outputs.draw(generator, len(times))
        rows += [
            TraceRow(arrival_s=at_s, input_tokens=size, output_tokens=answer, client=client.client)
            for at_s, size, answer in zip(
                times.tolist(), inputs.tolist(), outputs.tolist(), strict=True
            )
        ]
    return sorted(rows, key=lambda row: row.arrival_s)
