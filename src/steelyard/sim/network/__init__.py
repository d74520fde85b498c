"""Networks as graphs: flows get paths by a routing, and share links max-min fairly."""

from steelyard.sim.network.flows import Flows, RoutedFlows
from steelyard.sim.network.graph import Cabling, Network
from steelyard.sim.network.maxmin import FlowCompletion, fair_rates, link_bytes, simulate_flows
from steelyard.sim.network.routing import ecmp, ethereal, flowlets, spray
from steelyard.sim.network.topologies import (
    dragonfly_plus,
    fat_tree,
    leaf_spine,
    multi_plane,
    torus,
    zoned_fat_tree,
)

__all__ = [
    "Cabling",
    "FlowCompletion",
    "Flows",
    "Network",
    "RoutedFlows",
    "dragonfly_plus",
    "ecmp",
    "ethereal",
    "fair_rates",
    "fat_tree",
    "flowlets",
    "leaf_spine",
    "link_bytes",
    "multi_plane",
    "simulate_flows",
    "spray",
    "torus",
    "zoned_fat_tree",
]
