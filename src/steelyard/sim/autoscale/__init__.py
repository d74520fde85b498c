"""A service of replicas on virtual time: start-up, load, queue, promise and price."""

from steelyard.sim.autoscale.plant import METERS, ServicePlant, checked_demand
from steelyard.sim.autoscale.service import Service

__all__ = ["METERS", "Service", "ServicePlant", "checked_demand"]
