"""What a datastore indexes: vectors, exactly or in cells, words, or both."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from steelyard.errors import ConfigError
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.kinds import IVFPQ, IVFFlat
from steelyard.retrieve.text.fusion import Fusion

__all__ = ["StoreShape"]

VectorShape = Literal["", "flat", "ivf", "ivfpq"]
_CODE_BYTES, _RERANK = 16, 8


@dataclass(frozen=True, kw_only=True)
class StoreShape:
    """What is indexed, and how both parts are made one.

    Attributes:
        vectors: kind of the index of vectors, empty for none.
        words: whether words are indexed.
        cells: cells of each shard; four times the square root of its passages when 0.
        nprobe: cells that a query looks into; a sixteenth of them when 0.
        fusion: how both are made one.
    """

    vectors: VectorShape = "flat"
    words: bool = False
    cells: int = 0
    nprobe: int = 0
    fusion: Fusion = field(default_factory=Fusion)

    def __post_init__(self) -> None:
        """Refuse what indexes nothing, and unknown kinds."""
        if self.vectors not in ("", "flat", "ivf", "ivfpq") or not (self.vectors or self.words):
            raise ConfigError(
                f"an index of vectors {self.vectors!r} and {'' if self.words else 'no '}words",
                hint="vectors are flat, ivf or ivfpq; without them there are words",
            )
        if self.cells < 0 or self.nprobe < 0:
            raise ConfigError(f"{self.cells} cells, {self.nprobe} of them searched")

    @classmethod
    def named(cls, name: str, *, fusion: Fusion | None = None) -> "StoreShape":
        """Return the usual shape of a name.

        Args:
            name: flat, ivf, ivfpq, bm25 or hybrid.
            fusion: how words and vectors are made one.

        Returns:
            The shape.

        Raises:
            ConfigError: there is no such index.
        """
        shapes: dict[str, tuple[VectorShape, bool]] = {
            "flat": ("flat", False),
            "ivf": ("ivf", False),
            "ivfpq": ("ivfpq", False),
            "bm25": ("", True),
            "hybrid": ("flat", True),
        }
        if name not in shapes:
            raise ConfigError(f"no index is called {name!r}", hint=f"there are {', '.join(shapes)}")
        vectors, words = shapes[name]
        return cls(vectors=vectors, words=words, fusion=fusion or Fusion())

    @property
    def name(self) -> str:
        """The shape in words: "words + flat vectors"."""
        parts = ["words"] if self.words else []
        return " + ".join([*parts, f"{self.vectors} vectors"] if self.vectors else parts)

    def index(self, dim: int, count: int) -> IVF:
        """Return an index of vectors without any.

        Args:
            dim: numbers in a vector.
            count: vectors that will be added.

        Returns:
            The index; with fewer vectors than a code has centers they are kept whole.
        """
        if self.vectors == "flat" or count < 2:
            return IVFFlat(dim, metric="ip")
        cells = min(self.cells or round(4 * count**0.5), count)
        nprobe = min(self.nprobe or max(1, cells // 16), cells)
        # Codes of a byte have 256 centers, which a sample must be able to place.
        if self.vectors == "ivf" or count < 256:
            return IVFFlat(dim, nlist=cells, nprobe=nprobe, metric="ip")
        parts = max(n for n in range(1, min(_CODE_BYTES, dim) + 1) if dim % n == 0)
        return IVFPQ(dim, nlist=cells, parts=parts, nprobe=nprobe, metric="ip", rerank=_RERANK)

    def vector_key(self) -> list[Any]:
        """Return what the files of vectors depend on."""
        if self.vectors == "flat":
            return ["flat"]
        return [self.vectors, self.cells, self.nprobe]

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return asdict(self)

    @classmethod
    def of_plain(cls, values: Mapping[str, Any]) -> "StoreShape":
        """Return the shape of plain values; none are those of an exact index of vectors."""
        found = dict(values)
        fusion = Fusion(**found.pop("fusion")) if "fusion" in found else Fusion()
        return cls(**found, fusion=fusion)
