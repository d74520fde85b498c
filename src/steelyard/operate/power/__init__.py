"""Policies of a row of servers: its power budget, its scaling, and what its answers take."""

from steelyard.operate.power.answers import KindAccount
from steelyard.operate.power.chain import AnswerChain, ChainRun, run_chain
from steelyard.operate.power.chain_scenario import ChainScenario
from steelyard.operate.power.compare import (
    POLICIES,
    RowAnswer,
    compare_policies,
    longer_than,
    replay_scenario,
    uncapped,
)
from steelyard.operate.power.ladder import (
    CapLadder,
    CapStep,
    all_cap,
    no_cap,
    one_threshold,
    polca,
)
from steelyard.operate.power.oracle import ScheduledCaps, oracle
from steelyard.operate.power.scaling import SCALERS, ScaledRow, ScalingRules, scale_row

__all__ = [
    "POLICIES",
    "SCALERS",
    "AnswerChain",
    "CapLadder",
    "CapStep",
    "ChainRun",
    "ChainScenario",
    "KindAccount",
    "RowAnswer",
    "ScaledRow",
    "ScalingRules",
    "ScheduledCaps",
    "all_cap",
    "compare_policies",
    "longer_than",
    "no_cap",
    "one_threshold",
    "oracle",
    "polca",
    "replay_scenario",
    "run_chain",
    "scale_row",
    "uncapped",
]
