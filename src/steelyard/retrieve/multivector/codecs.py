"""What a store keeps of token vectors: half precision, bytes with a scale, or residual codes."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.embeddings.codecs import RowCodec, row_codec
from steelyard.data.kmeans import kmeans, nearest
from steelyard.errors import ConfigError
from steelyard.retrieve.pq import ProductQuantizer

__all__ = ["ResidualTokens", "TokenCodec", "TokenKind", "learned_of", "token_codec"]

TokenCodec = RowCodec
"""Token vectors into bytes of one length and back."""

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
TokenKind = Literal["fp16", "int8", "pq"]
_CENTERS, _PART_CENTERS = 1024, 256
_ITERATIONS = 12


class ResidualTokens:
    """Vectors as the nearest of some centers and a product code of what is left.

    Attributes:
        coarse: centers [C, D].
        quantizer: centers of the parts of what is left.

    Source: Santhanam et al. 2022 (ColBERTv2, arXiv 2112.01488), residual compression; the residual
        is a product code here, of as many bytes as two bits per number.
    """

    number = 2

    def __init__(self, coarse: Floats, quantizer: ProductQuantizer) -> None:
        """Take what `trained` found.

        Args:
            coarse: centers [C, D], C up to 65,536.
            quantizer: centers of parts.
        """
        self.coarse = np.ascontiguousarray(coarse, np.float32)
        self.quantizer = quantizer

    @classmethod
    def trained(cls, sample: Floats, *, centers: int = _CENTERS, seed: int = 0) -> "ResidualTokens":
        """Learn centers from a sample of token vectors.

        Args:
            sample: [N, D]; D a multiple of 4.
            centers: nearest centers C; an eighth of the sample at most.
            seed: seed of first centers.

        Returns:
            The codec.

        Raises:
            ConfigError: the sample or the vectors are too small for codes.
        """
        if len(sample) < _PART_CENTERS or sample.shape[1] % 4:
            raise ConfigError(
                f"codes learned from {len(sample)} tokens of {sample.shape[1]} numbers",
                hint=f"give {_PART_CENTERS} tokens or more of a multiple of 4 numbers, "
                "or keep fp16 or int8",
            )
        count = max(1, min(centers, len(sample) // 8))
        found = kmeans(
            sample,
            count,
            seed=seed,
            iterations=_ITERATIONS,
            tolerance=1e-3,
            start="drawn",
            precision="float32",
        )
        coarse = found.centers.astype(np.float32)
        left = sample - coarse[found.labels]
        return cls(coarse, ProductQuantizer.trained(left, sample.shape[1] // 4, seed=seed))

    @property
    def row_bytes(self) -> int:
        """Bytes of a token."""
        return 2 + self.quantizer.parts

    def encode(self, rows: Floats) -> Codes:
        """Return numbers of centers and codes of what is left."""
        found = np.empty((len(rows), self.row_bytes), np.uint8)
        if len(rows):
            labels = nearest(rows, self.coarse)[0]
            found[:, :2] = labels.astype("<u2")[:, None].view(np.uint8)
            found[:, 2:] = self.quantizer.encode(rows - self.coarse[labels])
        return found

    def decode(self, codes: Codes) -> Floats:
        """Return vectors [T, D]."""
        labels = np.ascontiguousarray(codes[:, :2]).view("<u2")[:, 0]
        return self.coarse[labels] + self.quantizer.decode(codes[:, 2:])

    def learned(self) -> dict[str, NDArray[Any]]:
        """Return arrays that kernels decode by: coarse [C, D] and parts [P, 256, D / P]."""
        return {"coarse": self.coarse, "parts": self.quantizer.centers}


def learned_of(codec: TokenCodec) -> dict[str, NDArray[Any]]:
    """Return the arrays that kernels decode by; none of a codec that has learned nothing."""
    return codec.learned() if isinstance(codec, ResidualTokens) else {}


def token_codec(
    kind: str, dim: int, learned: Mapping[str, NDArray[Any]] | None = None
) -> TokenCodec:
    """Return a codec by its name.

    Args:
        kind: "fp16", "int8" or "pq".
        dim: numbers in a vector.
        learned: arrays of a codec that was trained; "pq" needs them.

    Returns:
        The codec.

    Raises:
        ConfigError: there is none of that name.
    """
    if kind in ("fp16", "int8"):
        return row_codec(kind, dim)
    if kind != "pq" or learned is None:
        raise ConfigError(f"tokens kept as {kind!r}", hint="give fp16, int8 or pq")
    return ResidualTokens(learned["coarse"], ProductQuantizer(np.asarray(learned["parts"])))
