"""The number types of GGUF tensors: how many weights a block holds, and in how many bytes."""

from dataclasses import dataclass

__all__ = ["KINDS", "UNREAD", "TensorKind"]


@dataclass(frozen=True, slots=True)
class TensorKind:
    """A number type of stored tensors.

    Attributes:
        name: name in the format, such as "Q4_K".
        block_size: weights of a block, which follow each other in a row; 1 for plain numbers.
        block_bytes: bytes of a block, scales included.
    """

    name: str
    block_size: int
    block_bytes: int


KINDS = {
    0: TensorKind("F32", 1, 4),
    1: TensorKind("F16", 1, 2),
    2: TensorKind("Q4_0", 32, 18),
    3: TensorKind("Q4_1", 32, 20),
    6: TensorKind("Q5_0", 32, 22),
    7: TensorKind("Q5_1", 32, 24),
    8: TensorKind("Q8_0", 32, 34),
    12: TensorKind("Q4_K", 256, 144),
    13: TensorKind("Q5_K", 256, 176),
    14: TensorKind("Q6_K", 256, 210),
    30: TensorKind("BF16", 1, 2),
}
"""Types that are read, by their number in the file.

Source: `enum ggml_type` and the block structs of ggml (github.com/ggml-org/ggml)."""

UNREAD = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Names of types that exist and are not read, for the message that refuses them."""
