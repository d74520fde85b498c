"""`steelyard operate autoscale drive`: as many server processes as the demand asks for."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import cyclopts

from steelyard.cli.flags import flags
from steelyard.cli.operate.autoscale.demand import demand_of
from steelyard.cli.output import Switch, print_json
from steelyard.errors import ConfigError
from steelyard.operate.autoscale.config import AutoscaleConfig, scalers_of, service_of
from steelyard.operate.autoscale.replay import lead_steps
from steelyard.operate.autoscale.replicas import ServeReplicas
from steelyard.operate.autoscale.scaler import ScalerPolicy
from steelyard.operate.autoscale.study import choose_forecaster
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
    json: Switch = False,
    options: _Flags | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Hold as many server processes as the demand asks for, until Ctrl-C; they drain at the end.

    The demand is read again with every step of it. Commands are numbered in the journal before they
    are carried out: a controller that was killed goes on, and repeats none.

    Example: steelyard operate autoscale drive answer.json --start 'serve-it --port {port}'

    Args:
        source: address of a Prometheus range query, or a file of series.
        start: command of a replica; {port} becomes its port.
        journal: JSON file of the commands that were sent.
        column: id of the series that is the demand, where there are several.
        first_port: port of the first replica.
        turns: decisions to make, 0 to go on until Ctrl-C.
        json: print what was done as JSON.
        options: the service and its promise.
    """
    if turns < 0:
        raise ConfigError(f"--turns is {turns}, but must be 0 or more")
    config = options or AutoscaleConfig()
    found = demand_of(source, column)
    service = service_of(config, found.load)
    lead = lead_steps(service, found.step_s)
    forecaster, _ = choose_forecaster(found.load, step_s=found.step_s, horizon=lead)
    policy = ScalerPolicy(
        scalers_of(config, service, found.step_s)["BayesianScaler"],
        forecaster=forecaster,
        history=found.load[:-1],
    )
    replicas = ServeReplicas(
        shlex.split(start),
        first_port=first_port,
        most=service.max_replicas,
        drain_s=max(service.drain_s, 1.0),
    )

    left = iter(range(turns)) if turns else None
    try:
        report = drive(
            policy,
            _meters(source, column, service, replicas),
            {"replicas": replicas},
            period_s=found.step_s,
            journal=Journal(journal),
            is_over=lambda: left is not None and next(left, None) is None,
            clock=time.time,
        )
    finally:
        replicas.close()
    _show(report, json=json)


def _meters(
    source: str, column: str, service: Service, replicas: ServeReplicas
) -> dict[str, Callable[[], float | None]]:
    """Return what the policy sees: the last load, the use of what is ready, and counts."""

    def load() -> float:
        return float(demand_of(source, column).load[-1])

    def use() -> float | None:
        ready = replicas.ready()
        return load() / (ready * service.capacity) if ready else None

    return {
        "demand": load,
        "utilization": use,
        "ready": replicas.ready,
        "starting": replicas.starting,
    }


def _show(report: ControlReport, *, json: bool) -> None:
    """Print what was sent."""
    if json:
        print_json(
            {
                "num_sent": report.num_sent,
                "num_failed": report.num_failed,
                "replicas": [item.command.value for item in report.landed],
            }
        )
    else:
        print(f"{report.num_sent} commands, {report.num_failed} failed")
