"""What work costs.

FLOPs, bytes, seconds, memory, joules, dollars and grams from one operator list.
"""

from steelyard.cost.bill import Bill, bill
from steelyard.cost.correction import Correction, fit_correction
from steelyard.cost.eager import eager_training_memory
from steelyard.cost.efficiency import Efficiencies
from steelyard.cost.engine_step import EngineStepTime
from steelyard.cost.flops import forward_flops, model_flops_per_token
from steelyard.cost.layout import Layout
from steelyard.cost.longcontext import KVSpec, ServePoint, serve_point
from steelyard.cost.memory import (
    MemoryBreakdown,
    kv_bytes_per_token,
    serving_memory,
    training_memory,
)
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.optimal import OptimalThroughput, optimal_throughput
from steelyard.cost.resident import resident_serving_memory, resident_training_memory
from steelyard.cost.roofline import Machine, roofline_time_s
from steelyard.cost.sessions import SessionLoad, SessionOutcome, sessions
from steelyard.cost.step import StepCost, training_step
from steelyard.cost.step_time import FEATURES, ServeStepTime
from steelyard.cost.topology import Topology

__all__ = [
    "FEATURES",
    "Bill",
    "Correction",
    "Efficiencies",
    "EngineStepTime",
    "KVSpec",
    "Layout",
    "Machine",
    "MemoryBreakdown",
    "OperatorTable",
    "OptimalThroughput",
    "ServePoint",
    "ServeStepTime",
    "SessionLoad",
    "SessionOutcome",
    "StepCost",
    "Topology",
    "bill",
    "eager_training_memory",
    "fit_correction",
    "forward_flops",
    "kv_bytes_per_token",
    "model_flops_per_token",
    "operators",
    "optimal_throughput",
    "resident_serving_memory",
    "resident_training_memory",
    "roofline_time_s",
    "serve_point",
    "serving_memory",
    "sessions",
    "training_memory",
    "training_step",
]
