"""Who goes first.

Orders of requests, fair sharing between clients, and how fairness is measured.
"""

from steelyard.serve.scheduling.fairness.dlpm import DLPM
from steelyard.serve.scheduling.fairness.drawn import MarkovPriorities, RandomPriorities
from steelyard.serve.scheduling.fairness.order import FCFS, OrderPolicy, Priority, ShortestJob
from steelyard.serve.scheduling.fairness.service import ServiceRecord, jain_index, service_bound
from steelyard.serve.scheduling.fairness.vtc import VTC

__all__ = [
    "DLPM",
    "FCFS",
    "VTC",
    "MarkovPriorities",
    "OrderPolicy",
    "Priority",
    "RandomPriorities",
    "ServiceRecord",
    "ShortestJob",
    "jain_index",
    "service_bound",
]
