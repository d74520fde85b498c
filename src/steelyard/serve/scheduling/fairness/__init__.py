"""Order policies: who goes first, fair sharing between clients, and a measure of fairness."""

from steelyard.serve.scheduling.fairness.dlpm import DLPM
from steelyard.serve.scheduling.fairness.jain import jain_index
from steelyard.serve.scheduling.fairness.order import FCFS, OrderPolicy, Priority, ShortestJob
from steelyard.serve.scheduling.fairness.vtc import VTC

__all__ = [
    "DLPM",
    "FCFS",
    "VTC",
    "OrderPolicy",
    "Priority",
    "ShortestJob",
    "jain_index",
]
