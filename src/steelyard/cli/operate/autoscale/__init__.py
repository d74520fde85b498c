"""`steelyard operate autoscale`: what each scaler would have cost, and one that serves."""

import cyclopts

from steelyard.cli.operate.autoscale.driving import drive_replicas
from steelyard.cli.operate.autoscale.replaying import replay_demand
from steelyard.cli.operate.autoscale.serving import serve

__all__ = ["autoscale"]

autoscale = cyclopts.App(name="autoscale")
autoscale.default(replay_demand)
autoscale.command(serve)
autoscale.command(drive_replicas, name="drive")
