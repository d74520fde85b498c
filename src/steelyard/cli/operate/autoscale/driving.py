"""`steelyard operate autoscale drive`: as many server processes as the demand asks for."""

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import cyclopts

from steelyard.cli.flags import flags
from steelyard.cli.operate.autoscale.demand import book_of, demand_of
from steelyard.cli.output import Switch, print_json
from steelyard.errors import ConfigError
from steelyard.operate.autoscale.book import ForecastBook
from steelyard.operate.autoscale.config import AutoscaleConfig
from steelyard.operate.autoscale.forecasting import DemandForecast
from steelyard.operate.autoscale.replicas import ServeReplicas
from steelyard.operate.autoscale.scaler import ScalerPolicy
from steelyard.operate.autoscale.study import controller_of
from steelyard.operate.forecast.bookkeeping import SaidSteps
from steelyard.operate.forecast.guarded import Deadline, forecaster_of
from steelyard.sim.autoscale import Service
from steelyard.sim.control import ControlReport, Journal, drive

__all__ = ["drive_replicas"]

_Flags = flags(AutoscaleConfig)


def drive_replicas(
    source: str,
    *,
    start: Annotated[str, cyclopts.Parameter(name="--start")],
    journal: Path,
    column: str = "",
    first_port: int = 8801,
    turns: int = 0,
    store: str = "",
    no_keep: Switch = False,
    json: Switch = False,
    options: _Flags | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Hold as many server processes as the demand asks for, until Ctrl-C; they drain at the end.

    The demand is read again with every step of it. Commands are numbered in the journal before they
    are carried out: a controller that was killed goes on with the processes that it had started,
    and repeats no command.

    Example: steelyard operate autoscale drive answer.json --start 'serve-it --port {port}'

    Args:
        source: address of a Prometheus range query, or a file of series.
        start: command of a replica; {port} becomes its port.
        journal: JSON file of the commands that were sent.
        column: id of the series that is the demand, where there are several.
        first_port: port of the first replica.
        turns: decisions to make, 0 to go on until Ctrl-C.
        store: folder of the run store, whose ledger holds each forecast beside the demand that
            came; the user's own when left out.
        no_keep: keep no forecasts.
        json: print what was done as JSON.
        options: the service and its promise.
    """
    if turns < 0:
        raise ConfigError(f"--turns is {turns}, but must be 0 or more")
    config = options or AutoscaleConfig()
    watch = _Watch(source, column, book_of(source, column, store=store, no_keep=no_keep))
    report, num_fallbacks = _driven(watch, config, shlex.split(start), first_port, journal, turns)
    _show(report, num_fallbacks, json=json)


def _driven(
    watch: "_Watch",
    config: AutoscaleConfig,
    words: list[str],
    first_port: int,
    journal: Path,
    turns: int,
) -> tuple[ControlReport, int]:
    """Drive processes; return what was done, and how many forecasts were replaced."""
    service, scaler, forecaster = controller_of(config, watch.demand)
    policy = ScalerPolicy(
        scaler,
        forecaster=forecaster,
        # The first turn reads the last step again.
        history=watch.demand.load[:-1],
        within=Deadline(config.forecast_deadline_s),
        keep=watch.keep,
    )
    replicas = ServeReplicas(
        words,
        first_port=first_port,
        most=service.max_replicas,
        # Without any drain a request that has begun would be cut off.
        drain_s=max(service.drain_s, 1.0),
        file=journal.with_suffix(".replicas.json"),
    )
    left = iter(range(turns)) if turns else None
    try:
        report = drive(
            policy,
            watch.meters(service, replicas),
            {"replicas": replicas},
            period_s=watch.demand.step_s,
            journal=Journal(journal),
            is_over=lambda: left is not None and next(left, None) is None,
            clock=time.time,
        )
    finally:
        replicas.close()
    return report, policy.num_fallbacks


class _Watch:
    """The demand as it was read last, and the book of what was forecast of it."""

    def __init__(self, source: str, column: str, book: ForecastBook | None) -> None:
        self._source, self._column, self._book = source, column, book
        self.demand = demand_of(source, column)

    def meters(
        self, service: Service, replicas: ServeReplicas
    ) -> dict[str, Callable[[], float | None]]:
        """Return what the policy sees; the demand comes first, as the use is made of it."""

        def use() -> float | None:
            ready = replicas.ready()
            return self.demand.load[-1] / (ready * service.capacity) if ready else None

        return {
            "demand": self._read,
            "utilization": use,
            "ready": replicas.ready,
            "starting": replicas.starting,
        }

    def _read(self) -> float:
        """Read the demand again, and check what was forecast of the steps that came."""
        self.demand = demand_of(self._source, self._column)
        if self._book is not None:
            self._book.settle(self.demand.load, start_s=self.demand.start_s)
        return float(self.demand.load[-1])

    def keep(self, known: int, forecast: DemandForecast) -> None:
        """Write a forecast down before anything is done with it."""
        if forecaster_of(forecast.source) != forecast.source:
            sys.stderr.write(f"{forecast.source}\n")
        if self._book is not None:
            # The policy counts turns, some of which may have been missed; the record does not.
            first_s, step_s = self.demand.end_s, self.demand.step_s
            self._book.keep(
                SaidSteps.of(forecast, series=self._source, first_s=first_s, step_s=step_s)
            )


def _show(report: ControlReport, num_fallbacks: int, *, json: bool) -> None:
    """Print what was sent."""
    if json:
        print_json(
            {
                "num_sent": report.num_sent,
                "num_failed": report.num_failed,
                "num_fallbacks": num_fallbacks,
                "replicas": [item.command.value for item in report.landed],
            }
        )
    else:
        print(
            f"{report.num_sent} commands, {report.num_failed} failed; "
            f"{num_fallbacks} forecasts were replaced"
        )
