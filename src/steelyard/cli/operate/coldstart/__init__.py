"""`steelyard operate coldstart`: what a trace says about cold starts, and what would spare them."""

import cyclopts

from steelyard.cli.operate.coldstart.characterizing import characterize_trace
from steelyard.cli.operate.coldstart.simulating import simulate

__all__ = ["coldstart"]

coldstart = cyclopts.App(name="coldstart")
coldstart.command(characterize_trace, name="characterize")
coldstart.command(simulate)
