"""Train modules: one exact loop with its schedules, checkpoints, measurements and studies.

Names here load without torch; `steelyard.train.estimator.Estimator` trains any module,
`steelyard.train.trainer.train` a decoder, `steelyard.train.study.run_study` a study, and
`steelyard.train.worker.train_in_subprocess` trains in a fresh process.
"""

from steelyard.train.config import TrainConfig
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.result import EstimatorResult, Progress, TrainResult
from steelyard.train.source import TokenSource

__all__ = [
    "EstimatorConfig",
    "EstimatorResult",
    "Progress",
    "TokenSource",
    "TrainConfig",
    "TrainResult",
]
