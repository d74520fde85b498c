"""How an index of texts is built, and what a build did."""

from dataclasses import dataclass, field

from steelyard.errors import require
from steelyard.retrieve.corpus.files import SkippedFiles
from steelyard.retrieve.corpus.index import CorpusIndex
from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.retrieve.forecasts import BuildFigures
from steelyard.retrieve.text.weighing import WeighedFusion

__all__ = ["CorpusBuild", "CorpusOptions"]


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """How texts are cut and indexed.

    Attributes:
        kind: flat, ivf, ivfpq, bm25 or hybrid, or the shape of an index; "auto" is hybrid with
            cells where comparing all vectors takes long.
        words: most words of a passage.
        dim: numbers in a vector of the latent encoder.
        text_field: column or key with the text of tables.
        seed: seed of all draws.
    """

    kind: str | StoreShape = "auto"
    words: int = 128
    dim: int = 128
    text_field: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: a number is out of range.
        """
        require(
            self,
            words=(self.words >= 8, "8 or more"),
            dim=(self.dim >= 1, "1 or more"),
            seed=(self.seed >= 0, "0 or more"),
        )

    @property
    def shape(self) -> StoreShape:
        """Shape of the index before cells and weights are chosen."""
        if isinstance(self.kind, StoreShape):
            return self.kind
        return StoreShape.named("hybrid" if self.kind == "auto" else self.kind)


@dataclass(frozen=True, kw_only=True)
class CorpusBuild:
    """What a build did.

    Attributes:
        index: the index, open.
        read: files that were read.
        unchanged: files whose passages were taken over.
        removed: files of the last build that are no more.
        encoded: passages that were encoded.
        reused: passages whose vectors were known.
        skipped: files and rows without text.
        weighed: how words and vectors were weighed, None where there is only one of them.
        is_fitted: whether a latent encoder was fitted.
        why: why the index is of its kind.
        forecast: what was forecast, None where an index was brought up to date.
        measured: what was measured, None likewise.
        stage_s: seconds by stage.
        forecast_s: seconds by stage that were forecast; empty likewise.
    """

    index: CorpusIndex
    read: int
    unchanged: int
    removed: int
    encoded: int
    reused: int
    skipped: SkippedFiles
    weighed: WeighedFusion | None
    is_fitted: bool
    why: str
    forecast: BuildFigures | None = None
    measured: BuildFigures | None = None
    stage_s: dict[str, float] = field(default_factory=dict)
    forecast_s: dict[str, float] = field(default_factory=dict)
