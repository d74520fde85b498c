"""Which codes are long enough for a recall, where those of an index are not."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.kinds import IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.tuning import recall_at

__all__ = ["CodeSize", "smallest_code"]

_MOST_ROWS, _MOST_QUERIES = 50_000, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeSize:
    """Codes of some size, and what they find at most.

    Attributes:
        code_bytes: bytes of a code; 0 for whole vectors.
        recall: share of the true neighbours that is found with all cells.
        vectors: among which that was measured.
    """

    code_bytes: int
    recall: float
    vectors: int

    def told(self) -> str:
        """Say what reaches the goal."""
        if not self.code_bytes:
            return "only whole vectors find that many: build with --kind ivf"
        return (
            f"the smallest codes that find that many have {self.code_bytes} bytes "
            f"({self.recall:.3f} among {self.vectors:,} of the vectors): build with --kind ivfpq "
            f"--code-bytes {self.code_bytes}"
        )


def smallest_code(
    index: IVF,
    rows: NDArray[np.generic],
    queries: NDArray[np.generic],
    *,
    recall: float,
    k: int = 10,
    seed: int = 0,
) -> CodeSize:
    """Find the smallest codes, longer than those of an index, that reach a recall.

    What codes cannot tell apart no number of cells makes up for: codes of each size are made of at
    most 50,000 of the vectors, and all of them are compared. Among more vectors a little less is
    found.

    Args:
        index: index with codes that reach too little; its metric, and the candidates that it
            compares again, stay.
        rows: vectors that it holds [N, D].
        queries: [Q, D]; the first 200 ask.
        recall: share of the K true neighbours to find, above 0 to 1.
        k: K.
        seed: seed of the draw and of the codes.

    Returns:
        The codes; whole vectors where none of them reach it.

    Raises:
        ConfigError: the recall is out of range, or the index keeps no codes.
    """
    if not 0 < recall <= 1 or not isinstance(index, (IVFPQ, IVFFastScan)):
        raise ConfigError(
            f"codes for a recall of {recall:g} of an index of kind {index.kind}",
            hint="give an index with codes, and a recall above 0 to 1",
        )
    count = min(len(rows), _MOST_ROWS)
    places = np.random.default_rng(seed).choice(len(rows), count, replace=False)
    few = np.ascontiguousarray(rows[np.sort(places)], np.float32)
    asked = np.ascontiguousarray(queries[:_MOST_QUERIES], np.float32)
    exact = IVFFlat(index.dim, metric=index.metric)
    exact.add(few)
    truth = exact.search(asked, k).ids
    for made in _longer(index):
        made.train(few, seed=seed)
        made.add(few)
        reached = float(recall_at(made.search(asked, k).ids, truth).mean())
        if reached >= recall:
            return CodeSize(code_bytes=made.codec.parts, recall=reached, vectors=count)
    return CodeSize(code_bytes=0, recall=1.0, vectors=count)


def _longer(index: IVFPQ | IVFFastScan) -> Iterator[IVFPQ]:
    """Yield empty indexes of one cell with longer and longer codes of bytes."""
    is_half = isinstance(index, IVFFastScan)
    own = index.codec.parts // 2 if is_half else index.codec.parts
    for parts in range(own + 1, index.dim + 1):
        if index.dim % parts == 0:
            yield IVFPQ(
                index.dim,
                nlist=1,
                nprobe=1,
                parts=parts,
                metric=index.metric,
                rerank=index.rerank,
                rotate=isinstance(index, IVFPQ) and index.codec.rotate,
            )
