"""What is learned from which rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from steelyard.data.learning.boosting import BoostConfig
from steelyard.data.learning.learners import LearnerConfig
from steelyard.data.learning.targets import Task

__all__ = ["FitOptions"]


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What is learned from which rows.

    Attributes:
        target: column that is predicted.
        task: "classify" or "regress"; None for what the column looks like.
        leave_out: columns that are not learned from, such as keys.
        held_share: share of rows that are kept aside to end in time and to measure.
        by: column whose equal values stay on one side, such as a customer; rows by themselves when
            empty.
        memory: most bytes that the first pass may take, such as "200MB"; what is kept for each row
            then lies in mapped files of the folder. Empty for no bound.
        seed: changes which rows are kept aside, and what is drawn.
        reduce: narrower features for learners that take features, such as "pca:16" or "random:64";
            empty for all.
        learner: what learns; None for boosted trees.
        boosting: how boosted trees are fitted.
    """

    target: str
    task: Task | None = None
    leave_out: Sequence[str] = ()
    held_share: float = 0.2
    by: str = ""
    memory: str = ""
    seed: int = 0
    reduce: str = ""
    learner: LearnerConfig | None = None
    boosting: BoostConfig = field(default_factory=BoostConfig)

    @property
    def config(self) -> LearnerConfig:
        """What learns."""
        return self.learner or self.boosting
