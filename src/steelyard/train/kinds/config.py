"""What runs of other kinds than decoders are: frozen records, valid or refused."""

from dataclasses import dataclass, field

from steelyard.catalog.architecture import Architecture
from steelyard.data.images import GeneratedImages
from steelyard.errors import all_of, require
from steelyard.train.estimator_config import EstimatorConfig

__all__ = ["ImagesConfig", "PairsConfig", "ResNetShape"]

_WHOLE = "without a partition, which only decoders have"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetShape:
    """Shape of a residual network.

    Attributes:
        depth: layers with weights, 6 n + 2.
        width: factor of the channels.
        ghost_size: images per part of batch norm; 0 for the whole micro-batch.
    """

    depth: int = 8
    width: float = 1.0
    ghost_size: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagesConfig(EstimatorConfig):
    """One training run of a classifier; an example is an image.

    Attributes:
        network: shape of the network.
        images: what it learns to tell apart.
    """

    network: ResNetShape
    images: GeneratedImages = field(default_factory=GeneratedImages)

    def __post_init__(self) -> None:
        """Refuse values that no run can have.

        Raises:
            ConfigError: a count or rate is out of range, or the parts contradict each other; all
                violations are listed.
        """
        all_of(
            lambda: EstimatorConfig.__post_init__(self),
            lambda: require(self, parallel=(self.parallel.partition is None, _WHOLE)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PairsConfig(EstimatorConfig):
    """One training run of an encoder-decoder; an example is a row of inputs and one of targets.

    Attributes:
        architecture: shape of the model, of kind "encoder-decoder".
        task: name of the task or mixture to train on.
        heldout: name of the task or mixture to evaluate on.
        source_length: tokens of an encoder row.
        target_length: tokens of a decoder row.
        heldout_rows: rows that an evaluation reads.
        cache: folder that `steelyard data cache` made of the tasks: a row then holds as many
            examples as fit, unless steps of each reading, such as cut-out spans, change lengths.
            Empty reads the sources, one example in a row.
    """

    architecture: Architecture
    task: str
    heldout: str
    source_length: int
    target_length: int
    heldout_rows: int = 256
    cache: str = ""

    def __post_init__(self) -> None:
        """Refuse values that no run can have.

        Raises:
            ConfigError: a count or rate is out of range, or the parts contradict each other; all
                violations are listed.
        """
        all_of(lambda: EstimatorConfig.__post_init__(self), self._check_lengths)

    def _check_lengths(self) -> None:
        """Refuse rows that the architecture does not have."""
        arch = self.architecture
        longest = f"at least 1 and at most the architecture's max_positions = {arch.max_positions}"
        require(
            self,
            architecture=(arch.kind == "encoder-decoder", 'of kind "encoder-decoder"'),
            source_length=(1 <= self.source_length <= arch.max_positions, longest),
            target_length=(1 <= self.target_length <= arch.max_positions, longest),
            heldout_rows=(self.heldout_rows >= 1, "at least 1"),
            parallel=(self.parallel.partition is None, _WHOLE),
        )
