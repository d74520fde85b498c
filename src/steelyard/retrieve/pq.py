"""Product quantization: each part of a vector as the number of the nearest of some centers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.kmeans import kmeans, nearest
from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["ProductQuantizer", "train_rotation"]

Floats = NDArray[np.float32]
_CENTERS = 256
_MOST_SAMPLES = 256 * _CENTERS
_ITERATIONS, _STEPS = 15, 2


@dataclass(frozen=True, slots=True)
class ProductQuantizer:
    """Centers of each part.

    Attributes:
        centers: float32 [parts, 256, D / parts], or with 16 centers.

    Source: Jegou et al. 2011 (product quantization for nearest neighbor search), section 2.
    """

    centers: Floats

    @classmethod
    def trained(
        cls,
        vectors: Floats,
        parts: int,
        *,
        seed: int = 0,
        earlier: "ProductQuantizer | None" = None,
        centers: int = _CENTERS,
    ) -> "ProductQuantizer":
        """Place the centers.

        Args:
            vectors: sample [N, D]; at most 65,536 are used, drawn at random.
            parts: bytes of a code; divides D.
            seed: seed of the draw and of the first centers.
            earlier: quantizer whose centers are moved on, two steps only.
            centers: centers of each part, 256 for codes of bytes, 16 for half bytes.

        Returns:
            The quantizer.

        Raises:
            ConfigError: parts do not divide D, or the sample has fewer vectors than centers.
        """
        if parts < 1 or vectors.shape[1] % parts:
            raise ConfigError(
                f"{vectors.shape[1]} numbers in {parts} parts", hint="give a divisor of the width"
            )
        if len(vectors) < centers:
            raise ConfigError(f"a sample of {len(vectors)} vectors", hint=f"give {centers} or more")
        rng = np.random.default_rng(seed)
        if len(vectors) > _MOST_SAMPLES:
            vectors = vectors[np.sort(rng.choice(len(vectors), _MOST_SAMPLES, replace=False))]
        made = [
            kmeans(
                part,
                centers,
                seed=seed,
                iterations=_STEPS if earlier else _ITERATIONS,
                tolerance=1e-4,
                start=earlier.centers[place] if earlier else "drawn",
                precision="float32",
            ).centers
            for place, part in enumerate(np.split(vectors, parts, axis=1))
        ]
        return cls(np.ascontiguousarray(np.stack(made), dtype=np.float32))

    @property
    def parts(self) -> int:
        """Bytes of a code."""
        return len(self.centers)

    def encode(self, vectors: Floats) -> NDArray[np.uint8]:
        """Return the codes of vectors.

        Args:
            vectors: [N, D].

        Returns:
            uint8 [N, parts].
        """
        parts = np.split(vectors, self.parts, axis=1)
        return np.stack(
            [nearest(part, own)[0] for part, own in zip(parts, self.centers, strict=True)], axis=1
        ).astype(np.uint8)

    def decode(self, codes: NDArray[np.uint8]) -> Floats:
        """Return the vectors that codes stand for.

        Args:
            codes: uint8 [N, parts].

        Returns:
            float32 [N, D].
        """
        found = [own[codes[:, part]] for part, own in enumerate(self.centers)]
        return np.concatenate(found, axis=1)

    def inner_tables(self, query: Floats) -> Floats:
        """Return the inner product of each part of a query with each of its centers.

        Args:
            query: [D].

        Returns:
            float32 [parts, centers].
        """
        return inner_tables(query, self.centers)


@njit(fastmath={"reassoc", "contract", "nsz"})
def inner_tables(query: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return inner products [parts, 256] of parts of a query with centers [parts, 256, d]."""
    parts, count, width = centers.shape
    found = np.empty((parts, count), np.float32)
    for part in range(parts):
        for center in range(count):
            total = np.float32(0.0)
            for place in range(width):
                total += query[part * width + place] * centers[part, center, place]
            found[part, center] = total
    return found


def train_rotation(
    vectors: Floats, parts: int, *, rounds: int = 20, seed: int = 0
) -> tuple[Floats, ProductQuantizer]:
    """Find a rotation after which parts of vectors are quantized with less error.

    Args:
        vectors: sample [N, D].
        parts: bytes of a code.
        rounds: times that centers are placed for a rotation, and a rotation for centers.
        seed: seed of the first centers.

    Returns:
        Rotation [D, D], applied as `vectors @ rotation`, and the quantizer of rotated vectors.

    Raises:
        ConfigError: as `ProductQuantizer.trained`.

    Source: Ge et al. 2013 (optimized product quantization), algorithm 1: alternation of centers
        and the orthogonal Procrustes problem.
    """
    rotation = np.eye(vectors.shape[1], dtype=np.float32)
    quantizer = ProductQuantizer.trained(vectors, parts, seed=seed)
    for _ in range(rounds):
        rebuilt = quantizer.decode(quantizer.encode(vectors @ rotation))
        left, _, right = np.linalg.svd(vectors.T @ rebuilt)
        rotation = (left @ right).astype(np.float32)
        quantizer = ProductQuantizer.trained(
            vectors @ rotation, parts, seed=seed, earlier=quantizer
        )
    return rotation, quantizer
