"""A realistic decoder shape near a parameter count."""

import math
from dataclasses import replace

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import count_parameters
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.units import parse

__all__ = ["decoder_near", "global_batch_tokens", "learning_rate", "model_of"]


def decoder_near(
    parameters: float, *, vocab_size: int = 32768, sequence_length: int = 2048
) -> Architecture:
    """Choose a Llama-style decoder near a parameter count, with a usual aspect ratio.

    Width over depth grows from 64 for 100 million parameters to 128 for tens of billions, as in
    published families; widths are multiples of 128 (64 below 768), heads are 64 or 128 wide, and
    above a billion parameters eight key/value heads are shared and the head is untied.

    Args:
        parameters: target count, embeddings included.
        vocab_size: rows of the token embedding.
        sequence_length: longest sequence.

    Returns:
        The architecture, named after its size.

    Raises:
        InfeasibleError: the vocabulary's tables alone exceed the target.

    Source: shapes of GPT-3 (arXiv 2005.14165, table 2.1) and Llama 3 (arXiv 2407.21783, table 3).
    """
    candidates = []
    for hidden in _widths(parameters):
        base = _shape(hidden, 1, parameters, vocab_size, sequence_length)
        # Size is linear in depth: two depths tell the slope and what stands outside the layers.
        one, two = (count_parameters(replace(base, num_layers=layers)).total for layers in (1, 2))
        layers = _even((parameters - (2 * one - two)) / (two - one))
        if layers >= 1:
            candidates.append(replace(base, num_layers=layers))
    best = min(candidates, key=lambda shape: _distance(shape, parameters), default=None)
    if best is None or count_parameters(best).total > 2 * parameters:
        raise InfeasibleError(
            f"budget: {parameters:,.0f} parameters are too few for a transformer with a "
            f"vocabulary of {vocab_size:,}",
            hint="raise the budget or use a smaller vocabulary",
        )
    total = count_parameters(best).total
    return replace(best, name=f"decoder-{_size_name(total)}", published_parameters=0.0)


def _widths(parameters: float) -> list[int]:
    """List the widths to try: fine steps for small models, coarse ones for large models."""
    # Coarse steps keep the number of heads divisible by eight, for tensor parallelism. The center
    # is where 12 x width^2 parameters a layer and an aspect ratio near 110 meet the target.
    center = max(64.0, (parameters / 12 * 110) ** (1 / 3))
    step = 64 if center < 768 else 128 if center < 2560 else 512 if center < 6144 else 1024
    first = max(step, int(0.4 * center) // step * step)
    last = int(1.8 * center) // step * step + step
    return list(range(first, last + 1, step))


def _shape(
    hidden: int, layers: int, parameters: float, vocab_size: int, sequence_length: int
) -> Architecture:
    """Make a decoder of this width and depth."""
    large = parameters >= 1e9
    head_dim = 128 if large and hidden % 128 == 0 else 64
    heads = hidden // head_dim
    grouped = 8 if large and heads % 8 == 0 else heads
    return Architecture(
        name="decoder",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=grouped,
        head_dim=head_dim,
        intermediate_size=128 * math.ceil(8 * hidden / 3 / 128),
        vocab_size=vocab_size,
        max_positions=sequence_length,
        tied_embeddings=not large,
        source="chosen by steelyard.plan.shapes",
    )


def _even(layers: float) -> int:
    """Round a depth: to a multiple of 4 from 24, of 2 from 6, so that pipelines divide it."""
    step = 4 if layers >= 24 else 2 if layers >= 6 else 1
    return int(step * round(layers / step))


def _distance(arch: Architecture, parameters: float) -> float:
    """Score a shape: how far its size and its aspect ratio are from the targets, in logarithms."""
    # Size weighs six times as much: the law chose it, the aspect ratio is a habit.
    aspect = min(128.0, max(48.0, 64.0 * (parameters / 1e8) ** 0.15))
    size_error = abs(math.log(count_parameters(arch).total / parameters))
    return 6 * size_error + abs(math.log(arch.hidden_size / arch.num_layers / aspect))


def _size_name(total: float) -> str:
    """Print a parameter count as 125M, 6.7B or 1010B."""
    if total < 1e9:
        return f"{total / 1e6:.3g}M"
    # Three digits of a thousand would be printed as a power of ten.
    return f"{float(f'{total:.3g}') / 1e9:g}B"


def global_batch_tokens(flops: float) -> float:
    """Return the tokens per step that large runs use at this compute.

    Args:
        flops: training compute of the run.

    Returns:
        Tokens per optimizer step.

    Source: DeepSeek LLM 2024 (arXiv 2401.02954), equation 1: 0.2920 C^0.3271.
    """
    return 0.2920 * flops**0.3271


def learning_rate(flops: float) -> float:
    """Return the peak learning rate that large runs use at this compute.

    Args:
        flops: training compute of the run.

    Returns:
        Peak learning rate of AdamW.

    Source: DeepSeek LLM 2024 (arXiv 2401.02954), equation 1: 0.3118 C^-0.1250.
    """
    return 0.3118 * flops**-0.1250


def model_of(
    text: str, *, vocab_size: int = 32768, sequence_length: int = 2048
) -> tuple[Architecture, list[str]]:
    """Return the model that a name or a size stands for.

    Args:
        text: catalog name, or parameters such as "1B".
        vocab_size: rows of the token embedding of a shape made for a size.
        sequence_length: longest sequence of such a shape.

    Returns:
        The architecture, and the catalog's decoders nearest in size where it was made for one.

    Raises:
        CatalogError: no model has the name, and it is no size.
        InfeasibleError: the vocabulary's tables alone exceed the size.
    """
    try:
        wanted = parse(text, "parameter")
    except ConfigError:
        return catalog.architecture_by_name(text), []
    made = decoder_near(wanted, vocab_size=vocab_size, sequence_length=sequence_length)
    decoders = (catalog.architecture_by_name(name) for name in catalog.names("architectures"))
    sizes = {
        arch.name: abs(math.log(count_parameters(arch).total / wanted))
        for arch in decoders
        if arch.kind == "decoder"
    }
    return made, sorted(sizes, key=lambda name: sizes[name])[:3]
