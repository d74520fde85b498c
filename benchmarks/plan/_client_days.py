"""Days of a production service, piece by piece, from published rates of its clients."""

import csv
import gzip
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from steelyard.plan.service.days import DayLoad
from steelyard.serve.traces import ClientStatistics, read_clients

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "llm-clients"
_WINDOW_S, _DAY_S, _PARTS = 600.0, 86_400.0, 24
_POOL = 5000


class ClientDays:
    """The 14 days of a service: every client's rate and burstiness of each ten minutes.

    Gaps are drawn from the published rate and variation of each window, lengths from the published
    statistics of each client; both hold for that client alone, so the mix of lengths moves with who
    sends.
    """

    def __init__(self, name: str, *, rate_per_s: float, piece_s: float) -> None:
        """Read the tables; all rates are scaled alike so that the mean of all days is given."""
        self.clients = {
            item.client: item for item in read_clients(DATA / f"servegen_{name}_clients.csv.gz")
        }
        self.windows: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
        with gzip.open(DATA / f"servegen_{name}_windows.csv.gz", "rt") as stream:
            for row in csv.DictReader(stream):
                at = int(float(row["window_start_s"]) // _WINDOW_S)
                told = (row["client"], float(row["rate_rps"]), float(row["cv"] or 1.0))
                self.windows[at].append(told)
        total = sum(rate for window in self.windows.values() for _, rate, _ in window)
        self.pools = {name: self._pool(item) for name, item in self.clients.items()}
        self.name = name
        self.scale = rate_per_s * len(self.windows) / total
        self.piece_s = piece_s

    @property
    def count(self) -> int:
        """Whole days."""
        return int((max(self.windows) + 1) * _WINDOW_S // _DAY_S)

    def day(self, number: int, generator: np.random.Generator) -> DayLoad:
        """Draw the pieces of a day: one window of each hour, chosen at random."""
        per_part = int(_DAY_S / _PARTS / _WINDOW_S)
        first = number * _PARTS * per_part
        pieces = [
            self._piece(first + part * per_part + int(generator.integers(per_part)), generator)
            for part in range(_PARTS)
        ]
        weights = [
            _WINDOW_S
            * self.scale
            * sum(
                rate
                for place in range(per_part)
                for _, rate, _ in self.windows[first + part * per_part + place]
            )
            for part in range(_PARTS)
        ]
        times, inputs, outputs = (
            np.concatenate([piece[at] for piece in pieces]) for at in range(3)
        )
        return DayLoad(
            name=f"{self.name}, day {number + 1}",
            arrival_s=times,
            input_tokens=inputs,
            output_tokens=outputs,
            part=np.repeat(np.arange(_PARTS), [len(piece[0]) for piece in pieces]),
            weights=np.array(weights),
            piece_s=self.piece_s,
        )

    def _piece(self, window: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Draw the requests of a piece of a window, by arrival."""
        parts = []
        for name, rate, cv in self.windows[window]:
            client = self.clients.get(name)
            if client is None or rate <= 0:
                continue
            now = replace(client, rate_per_s=rate * self.scale, cv=max(cv, 0.05))
            times = now.arrivals(generator, self.piece_s)
            inputs, outputs = self.pools[name]
            picked = generator.integers(0, _POOL, (2, len(times)))
            parts.append((times, inputs[picked[0]], outputs[picked[1]]))
        # Some hours of the tables hold no client at all.
        nothing = (np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
        joined = [np.concatenate(column) for column in zip(nothing, *parts, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return tuple(column[order] for column in joined)

    def _pool(self, client: ClientStatistics) -> tuple[np.ndarray, np.ndarray]:
        """Draw the lengths that a client's requests are picked from."""
        like, generator = self._like(client), np.random.default_rng(0)
        assert like.inputs and like.outputs
        return like.inputs.draw(generator, _POOL), like.outputs.draw(generator, _POOL)

    def _like(self, client: ClientStatistics) -> ClientStatistics:
        """Return the client, or that with known lengths which is closest in rate."""
        if client.inputs and client.outputs:
            return client
        known = [item for item in self.clients.values() if item.inputs and item.outputs]
        return min(known, key=lambda item: abs(np.log(item.rate_per_s / client.rate_per_s)))
