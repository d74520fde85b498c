"""The number of replicas as JSON over HTTP, as a KEDA `metrics-api` trigger reads it."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from steelyard.errors import SteelyardError
from steelyard.operate.autoscale.book import ForecastBook
from steelyard.operate.autoscale.config import AutoscaleConfig
from steelyard.operate.autoscale.demand import Demand
from steelyard.operate.autoscale.forecasting import GuardedDemand
from steelyard.operate.autoscale.scaler import ServiceState
from steelyard.operate.autoscale.study import controller_of
from steelyard.operate.forecast.bookkeeping import SaidSteps
from steelyard.operate.forecast.guarded import Deadline

__all__ = ["Recommender", "make_server"]


class Recommender:
    """Reads a demand from time to time and recommends replicas for the steps behind it.

    The forecaster is the one that was best on the demand read first; where it fails or is late, the
    quantiles of the last values stand in. A reading that fails leaves the last recommendation as it
    is, and the answer says so and how old it is.
    """

    def __init__(
        self,
        read: Callable[[], Demand],
        config: AutoscaleConfig,
        *,
        period_s: float,
        clock: Callable[[], float],
        held: int = 0,
        book: ForecastBook | None = None,
    ) -> None:
        """Make the first recommendation.

        Args:
            read: returns the demand so far.
            config: the service and its promise.
            period_s: seconds between two readings.
            clock: seconds that only grow.
            held: number to report as "replicas" in shadow mode, whatever is recommended; 0 to
                report the recommendation.
            book: keeps what is forecast until it is checked; None keeps nothing.

        Raises:
            SteelyardError: the first reading fails.
        """
        self._read, self._period_s, self._clock, self._held = read, period_s, clock, held
        self._book = book
        # A trigger may ask again before it was answered: one reading serves both.
        self._lock = threading.Lock()
        demand = read()
        self.service, self._scaler, chosen = controller_of(config, demand)
        self._forecast = GuardedDemand(chosen, Deadline(config.forecast_deadline_s))
        # Nobody says how many there are before the first answer: what the last load needs is the
        # best guess.
        self._replicas = held or self.service.replicas_for(float(demand.load[-1]))
        self._made_s, self._known_s = clock(), -np.inf
        self._problem = ""
        self._answer = self._recommend(demand)

    def answer(self) -> dict[str, Any]:
        """Return the answer, made anew where the last one is older than the period.

        Returns:
            "replicas" for the trigger; "recommended", "demand", "low" and "high" (80 % interval of
            the demand's peak that is covered), "forecaster" (with the reason where another stands
            in for it), "age_s", "problem".
        """
        with self._lock:
            now_s = self._clock()
            if now_s - self._made_s >= self._period_s:
                try:
                    self._answer = self._recommend(self._read())
                    self._made_s, self._problem = now_s, ""
                except SteelyardError as error:
                    self._problem = str(error)
            return self._answer | {"age_s": now_s - self._made_s, "problem": self._problem}

    def _recommend(self, demand: Demand) -> dict[str, Any]:
        """Ask the scaler, with the state that a service of its last answer would be in."""
        forecast = self._forecast(demand.load)
        assert forecast is not None  # a demand has many more steps than a forecast needs
        if self._book is not None:
            self._book.settle(demand.load, start_s=demand.start_s)
            said = SaidSteps.of(
                forecast, series=demand.source, first_s=demand.end_s, step_s=demand.step_s
            )
            self._book.keep(said)
        load = float(demand.load[-1])
        state = ServiceState(ready=self._replicas)
        # A step that was read before has been learned from: it counts once.
        if demand.end_s > self._known_s:
            use = load / (self._replicas * self.service.capacity)
            state = replace(state, demand=load, utilization=use)
            self._known_s = demand.end_s
        recommended = self._scaler.decide(self._clock(), forecast, state)
        # In shadow mode the service stays as it is, and so does what the scaler is told of it.
        self._replicas = self._held or recommended
        low, high = (float(np.max(forecast.quantile(level))) for level in (0.1, 0.9))
        return {
            "replicas": self._replicas,
            "recommended": recommended,
            "is_shadow": bool(self._held),
            "demand": load,
            "low": low,
            "high": high,
            "forecaster": forecast.source,
        }


def make_server(recommender: Recommender, port: int) -> ThreadingHTTPServer:
    """Return a server on this machine's own address; nobody else reaches it.

    Args:
        recommender: answers every GET of "/".
        port: port, 0 for a free one.

    Returns:
        The server, listening.

    Raises:
        OSError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        """Answers with the recommendation."""

        def do_GET(self) -> None:
            """Answer "/" with JSON and all else with 404."""
            is_known = self.path.partition("?")[0] in ("/", "/replicas")
            body = json.dumps(recommender.answer() if is_known else {"error": "not found"}).encode()
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a trigger asks every few seconds."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
