"""GPT models and the machine of published runs on Frontier."""

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cost.roofline import Machine

__all__ = ["LENGTH", "frontier_machine", "gpt"]

LENGTH = 2048
"""Tokens of a sequence."""


def gpt(
    name: str, layers: int, hidden: int, heads: int, *, vocabulary: int = 51_200, tied: bool = True
) -> Architecture:
    """Return a GPT; its vocabulary is that of GPT-2, padded, when not given."""
    return Architecture(
        name=name,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=4 * hidden,
        vocab_size=vocabulary,
        max_positions=LENGTH,
        mlp="gelu",
        tied_embeddings=tied,
    )


def frontier_machine() -> Machine:
    """Return one die of Frontier with its links."""
    cluster = catalog.cluster("Frontier")
    accelerator = catalog.accelerator(cluster.accelerator)
    return Machine.from_accelerator(accelerator, dtype="fp16", cluster=cluster)
