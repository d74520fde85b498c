"""`steelyard operate autoscale serve`: the number of replicas as JSON that KEDA reads."""

import sys
import time

from steelyard.cli.flags import flags
from steelyard.cli.operate.autoscale.demand import book_of, demand_of
from steelyard.cli.output import Switch
from steelyard.errors import ConfigError
from steelyard.operate.autoscale.config import AutoscaleConfig
from steelyard.operate.autoscale.endpoint import Recommender, make_server

__all__ = ["serve"]

_Flags = flags(AutoscaleConfig)


def serve(
    source: str,
    *,
    column: str = "",
    port: int = 8790,
    period: float = 60.0,
    shadow: Switch = False,
    replicas: int = 0,
    store: str = "",
    no_keep: Switch = False,
    options: _Flags | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Serve the number of replicas that a demand asks for, on this machine's own address.

    A KEDA trigger of the kind metrics-api reads it with valueLocation "replicas" and targetValue
    "1". The demand is read again every period.

    Example: steelyard operate autoscale serve 'http://prometheus:9090/api/v1/query_range?query=...'

    Args:
        source: address of a Prometheus range query, or a file of series.
        column: id of the series that is the demand, where there are several.
        port: port to listen on, 0 for a free one.
        period: seconds between two readings of the demand.
        shadow: only say what would be done: "replicas" stays what --replicas says.
        replicas: replicas that there are now, for --shadow.
        store: folder of the run store, whose ledger holds each forecast beside the demand that
            came; the user's own when left out.
        no_keep: keep no forecasts.
        options: the service and its promise.
    """
    if shadow and replicas < 1:
        raise ConfigError("--shadow needs --replicas, the number that there are now")
    if not 1 <= period < float("inf") or not 0 <= port < 65_536:
        raise ConfigError(
            f"--period is {period} and --port is {port}, but they must be at least 1 and in "
            "[0, 65535]"
        )
    recommender = Recommender(
        lambda: demand_of(source, column),
        options or AutoscaleConfig(),
        period_s=period,
        held=replicas if shadow else 0,
        clock=time.monotonic,
        book=book_of(source, column, store=store, no_keep=no_keep),
    )
    server = make_server(recommender, port)
    sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}/ answers with JSON\n")
    sys.stdout.flush()
    with server:
        server.serve_forever()
