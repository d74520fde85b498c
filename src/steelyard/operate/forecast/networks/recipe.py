"""Pretraining as a recipe: the corpus, the shape and the run, from which a checkpoint is made."""

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from steelyard import config
from steelyard.errors import require
from steelyard.operate.forecast.corpus import generate_corpus
from steelyard.operate.forecast.networks.config import EncoderConfig
from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster
from steelyard.operate.forecast.networks.training import pretraining_budget
from steelyard.operate.series import SeriesSet, joined
from steelyard.train.result import EstimatorResult, OnStep

__all__ = ["PretrainRecipe", "run_recipe"]

CHECKPOINT = "forecaster.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainRecipe:
    """How a masked encoder is made; equal recipes make equal weights on one machine.

    Attributes:
        series: generated series.
        length: steps of each.
        corpus_seed: seed of the corpus.
        encoder: shape.
        steps: optimizer steps.
        batch_size: windows a step.
        learning_rate: peak rate.
        seed: seed of the order of windows.
    """

    series: int = 1500
    length: int = 5000
    corpus_seed: int = 1
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    steps: int = 3600
    batch_size: int = 128
    learning_rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that no corpus can have; the run's own are refused when it begins.

        Raises:
            ConfigError: a number is out of range.
        """
        require(
            self,
            series=(self.series >= 1, "at least 1"),
            length=(self.length >= 400, "at least 400"),
            steps=(self.steps >= 1, "at least 1"),
        )

    @classmethod
    def load(cls, path: Path | None = None) -> "PretrainRecipe":
        """Read a recipe.

        Args:
            path: TOML file; None for the recipe of the checkpoint that comes with the package.

        Returns:
            The recipe.

        Raises:
            ConfigError: a field is unknown or out of range.
        """
        if path is not None:
            return config.load(Path(path), cls)
        place = resources.files("steelyard.operate.forecast.networks") / "shipped.toml"
        with resources.as_file(place) as shipped:
            return config.load(shipped, cls)


def run_recipe(
    recipe: PretrainRecipe,
    directory: Path,
    *,
    own: SeriesSet | None = None,
    on_step: OnStep | None = None,
) -> tuple[MaskedEncoderForecaster, EstimatorResult]:
    """Make a checkpoint; a killed call goes on where it was.

    Args:
        recipe: what is made.
        directory: folder of the run; `forecaster.safetensors` is the checkpoint.
        own: series of one's own to add to the generated ones.
        on_step: called after each step.

    Returns:
        The forecaster and what the training loop measured.

    Raises:
        TraceError: no series is long enough.
        ConfigError: the folder holds another run.
    """
    corpus = generate_corpus(recipe.series, length=recipe.length, seed=recipe.corpus_seed)
    made = MaskedEncoderForecaster(recipe.encoder)
    budget = pretraining_budget(
        recipe.steps,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        seed=recipe.seed,
    )
    corpus = joined([corpus, own]) if own is not None else corpus
    result = made.pretrain(corpus, budget, directory, on_step=on_step)
    made.save(Path(directory) / CHECKPOINT)
    return made, result
