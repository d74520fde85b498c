"""One controller for many hosts: what its dispatch costs, and who gets the devices."""

from steelyard.sim.dispatch.controller import DispatchOutcome, simulate_dispatch
from steelyard.sim.dispatch.programs import Computation, ControlCosts, Tenant, fit_control_costs

__all__ = [
    "Computation",
    "ControlCosts",
    "DispatchOutcome",
    "Tenant",
    "fit_control_costs",
    "simulate_dispatch",
]
