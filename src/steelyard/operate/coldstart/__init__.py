"""Cold starts: what a trace says about them, and the policies that spare them."""

from steelyard.operate.coldstart.characterize import ColdStartReport, characterize
from steelyard.operate.coldstart.compare import POLICIES, PolicyOutcome, compare
from steelyard.operate.coldstart.delay import AsyncDelay
from steelyard.operate.coldstart.fits import TimeFit, fit_times
from steelyard.operate.coldstart.generate import WorkloadGenerator
from steelyard.operate.coldstart.keepalive import (
    FixedKeepAlive,
    HybridHistogram,
    KeepAliveOracle,
    TimerAware,
    UtilityAware,
)
from steelyard.operate.coldstart.loading import load_workload
from steelyard.operate.coldstart.placement import HomePlacement, LeastColdStart
from steelyard.operate.coldstart.pools import FixedPool, SeasonalPool
from steelyard.operate.coldstart.prewarm import ChainPrewarm, ForecastPrewarm, TimerPrewarm
from steelyard.operate.coldstart.profile import DemandProfile

__all__ = [
    "POLICIES",
    "AsyncDelay",
    "ChainPrewarm",
    "ColdStartReport",
    "DemandProfile",
    "FixedKeepAlive",
    "FixedPool",
    "ForecastPrewarm",
    "HomePlacement",
    "HybridHistogram",
    "KeepAliveOracle",
    "LeastColdStart",
    "PolicyOutcome",
    "SeasonalPool",
    "TimeFit",
    "TimerAware",
    "TimerPrewarm",
    "UtilityAware",
    "WorkloadGenerator",
    "characterize",
    "compare",
    "fit_times",
    "load_workload",
]
