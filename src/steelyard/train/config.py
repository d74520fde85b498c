"""What a training run of a decoder is: one frozen record, valid or refused."""

from dataclasses import dataclass
from typing import Literal

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.validate import validate_architecture
from steelyard.errors import all_of, require
from steelyard.train.estimator_config import EstimatorConfig

__all__ = ["Measure", "TrainConfig"]

Measure = Literal[
    "noise-scale", "noise-scale-per-example", "noise-scale-norm-layers", "update-sizes"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig(EstimatorConfig):
    """One training run of a decoder; an example is a sequence.

    Attributes:
        architecture: shape of the model.
        sequence_length: tokens per sequence, at most the architecture's `max_positions`.
        eval_tokens: held-out tokens an evaluation predicts at most, rounded down to whole windows.
        measure: what is measured beside loss, time and memory: the gradient noise scale by
            micro-batches, by sequences, or by sequences in norm layers alone, and the sizes of
            updates. It changes no loss.
        measure_every: steps between these measurements.
    """

    architecture: Architecture
    sequence_length: int
    eval_tokens: int = 65536
    measure: tuple[Measure, ...] = ()
    measure_every: int = 10

    def __post_init__(self) -> None:
        """Refuse values that no run can have.

        Raises:
            ConfigError: a count or rate is out of range, or the parts contradict each other.
        """
        all_of(
            lambda: EstimatorConfig.__post_init__(self),
            self._check_decoder,
            lambda: validate_architecture(self.architecture, where="architecture"),
        )

    def _check_decoder(self) -> None:
        """Refuse what no decoder can be trained or measured with."""
        longest = self.architecture.max_positions
        require(
            self,
            eval_tokens=(self.eval_tokens >= 1, "at least 1"),
            measure=(
                len(set(self.measure)) == len(self.measure)
                and ("noise-scale" not in self.measure or self.accumulation > 1)
                and ("noise-scale-per-example" not in self.measure or self.batch_size > 1),
                "different from one another; 'noise-scale' wants accumulation of 2 or more, to "
                "compare micro-batches, and 'noise-scale-per-example' a batch_size of 2 or more",
            ),
            compile=(
                not self.compile
                or not {"noise-scale-per-example", "noise-scale-norm-layers"} & {*self.measure},
                "false where measure looks into modules, by example or at norm layers",
            ),
            measure_every=(self.measure_every >= 1, "at least 1"),
            sequence_length=(
                1 <= self.sequence_length <= longest,
                f"at least 1 and at most the architecture's max_positions = {longest}",
            ),
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step trains on."""
        return self.batch_size * self.sequence_length
