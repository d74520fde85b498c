"""Policies that keep a row of servers under its power budget."""

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

__all__ = [
    "POLICIES",
    "CapLadder",
    "CapStep",
    "RowAnswer",
    "ScheduledCaps",
    "all_cap",
    "compare_policies",
    "longer_than",
    "no_cap",
    "one_threshold",
    "oracle",
    "polca",
    "replay_scenario",
    "uncapped",
]
