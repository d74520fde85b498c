"""Train transformers: a small exact trainer, its schedules, checkpoints and cooldown studies.

Names here load without torch; the trainer is `steelyard.train.trainer.train`, the study
`steelyard.train.study.run_ladder_rung`, and `steelyard.train.worker.train_in_subprocess` trains in
a fresh process.
"""

from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.source import TokenSource

__all__ = ["Progress", "TokenSource", "TrainConfig", "TrainResult"]
