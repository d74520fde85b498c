"""Serving fleets in virtual time: replicas as objects, or all of it in a compiled loop."""

from steelyard.sim.fleet.fleet import run_fleet
from steelyard.sim.fleet.jobs import FleetJob, FleetReplica, Moved, Route
from steelyard.sim.fleet.scaling import ScaledFleet

__all__ = ["FleetJob", "FleetReplica", "Moved", "Route", "ScaledFleet", "run_fleet"]
