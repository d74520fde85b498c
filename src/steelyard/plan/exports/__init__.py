"""A plan in the words of engines that run it: Megatron-LM, torchtitan, SkyPilot and our own."""

from steelyard.plan.exports.job import Arrangement, TrainingJob
from steelyard.plan.exports.megatron import read_megatron, to_megatron
from steelyard.plan.exports.own import read_own, to_own
from steelyard.plan.exports.skypilot import to_skypilot
from steelyard.plan.exports.torchtitan import read_torchtitan, to_torchtitan

__all__ = [
    "Arrangement",
    "TrainingJob",
    "read_megatron",
    "read_own",
    "read_torchtitan",
    "to_megatron",
    "to_own",
    "to_skypilot",
    "to_torchtitan",
]
