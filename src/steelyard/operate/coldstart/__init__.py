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
from steelyard.operate.coldstart.pools import FixedPool, ForecastPool, blend_of_seasons
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
    "ForecastPool",
    "ForecastPrewarm",
    "HomePlacement",
    "HybridHistogram",
    "KeepAliveOracle",
    "LeastColdStart",
    "PolicyOutcome",
    "TimeFit",
    "TimerAware",
    "TimerPrewarm",
    "UtilityAware",
    "WorkloadGenerator",
    "blend_of_seasons",
    "characterize",
    "compare",
    "fit_times",
    "load_workload",
]
