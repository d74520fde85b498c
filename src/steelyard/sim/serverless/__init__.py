"""A serverless platform in virtual time: pools, staged starts, slots, keep-alive, pre-warming."""

from steelyard.sim.serverless.engine import run
from steelyard.sim.serverless.platform import Platform, Pool, Schedulers
from steelyard.sim.serverless.policies import (
    Delay,
    FunctionState,
    IdlePlan,
    KeepAlive,
    PoolSizer,
    Prewarm,
    PrewarmOrder,
    RegionChoice,
)
from steelyard.sim.serverless.reference import replay
from steelyard.sim.serverless.result import ServerlessResult
from steelyard.sim.serverless.startup import EmpiricalQuantiles, StartUp
from steelyard.sim.serverless.workload import CloudFunction, Workload

__all__ = [
    "CloudFunction",
    "Delay",
    "EmpiricalQuantiles",
    "FunctionState",
    "IdlePlan",
    "KeepAlive",
    "Platform",
    "Pool",
    "PoolSizer",
    "Prewarm",
    "PrewarmOrder",
    "RegionChoice",
    "Schedulers",
    "ServerlessResult",
    "StartUp",
    "Workload",
    "replay",
    "run",
]
