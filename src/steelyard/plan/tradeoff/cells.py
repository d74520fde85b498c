"""What was measured: quality by seed, speed by round, and how it is kept."""

from dataclasses import dataclass, field
from typing import Literal

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError, require
from steelyard.plan.tradeoff.configuration import Configuration
from steelyard.plan.tradeoff.tasks import Template

__all__ = ["ClockName", "MeasurePlan", "Measured", "QualityCell", "SpeedCell"]

ClockName = Literal["wall", "processor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasurePlan:
    """What is measured, and at which resources.

    Attributes:
        lengths: tokens of contexts, rising.
        reference: lengths at which accuracy and performance are compared; each one of `lengths`.
        memory_bytes: memory of weights, keys and values together, the same for all.
        ttft_s: longest time to the first token; what takes longer does not count as served. 0 for
            no limit.
        seeds: seeds of questions; each is one repeat of accuracy, at least 3.
        rounds: repeats of speed, at least 3.
        count: questions of a task, length and seed.
        texts: pieces of text of a length and seed whose loss is taken.
        documents: different contexts of a round of speed.
        asks: questions about each of them, one after the other.
        output_tokens: tokens generated for each.
        template: how records are written.
    """

    lengths: tuple[int, ...]
    reference: tuple[int, ...]
    memory_bytes: int
    ttft_s: float = 0.0
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int = 3
    count: int = 8
    texts: int = 4
    documents: int = 4
    asks: int = 3
    output_tokens: int = 32
    template: Template = field(default_factory=Template)

    def __post_init__(self) -> None:
        """Refuse a plan whose repeats or lengths say nothing.

        Raises:
            ConfigError: names the field, the value and the range.
        """
        require(
            self,
            lengths=(
                len(self.lengths) > 0 and list(self.lengths) == sorted(set(self.lengths)),
                "rising numbers of tokens",
            ),
            reference=(
                bool(self.reference) and set(self.reference) <= set(self.lengths),
                "some of the lengths",
            ),
            memory_bytes=(self.memory_bytes > 0, "above 0"),
            ttft_s=(self.ttft_s >= 0, "at least 0"),
            rounds=(self.rounds >= 3, "at least 3, for a noise band"),
            count=(self.count >= 1, "at least 1"),
            texts=(self.texts >= 1, "at least 1"),
            output_tokens=(self.output_tokens >= 2, "at least 2"),
        )
        if len(set(self.seeds)) < 3:
            raise ConfigError(
                f"{len(set(self.seeds))} different seeds", hint="a noise band needs at least 3"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityCell:
    """Answers of one configuration to the questions of one seed.

    Attributes:
        configuration: its name.
        seed: seed of the questions.
        accuracy: for each task, the share of right answers at each length of the plan.
        loss: nats per token of text at each length of the plan.
    """

    configuration: str
    seed: int
    accuracy: dict[str, list[float]]
    loss: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedCell:
    """Speed of one configuration in one round, in the memory of the plan.

    Attributes:
        configuration: its name.
        round: which repeat.
        tokens_per_s: output tokens per second at each reference length; 0 where it does not fit.
        ttft_s: mean time to the first token at each.
        tpot_s: mean time of a further token at each.
        fits_tokens: longest context that the memory holds; infinite for a bounded cache.
        weight_bytes: bytes of the weights.
    """

    configuration: str
    round: int
    tokens_per_s: list[float]
    ttft_s: list[float]
    tpot_s: list[float]
    fits_tokens: float
    weight_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All cells of a measurement.

    Attributes:
        model: architecture of the model as it was trained.
        plan: what was measured.
        configurations: the first is the baseline.
        quality: one cell for each configuration and seed.
        speed: one for each configuration and round; the baseline has twice as many rounds, whose
            halves tell the noise.
        clock: what the seconds of speed are: those of the wall, or the processor's own.
    """

    model: Architecture
    plan: MeasurePlan
    configurations: tuple[Configuration, ...]
    quality: tuple[QualityCell, ...]
    speed: tuple[SpeedCell, ...]
    clock: ClockName = "wall"
