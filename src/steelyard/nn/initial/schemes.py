"""Constants by which norm schemes keep deep stacks stable, derived from the depth."""

import math

from steelyard.catalog.architecture import Architecture

__all__ = ["deepnorm_constants", "residual_weight", "subln_gain", "weight_gain"]


def deepnorm_constants(encoder_layers: int, decoder_layers: int) -> dict[str, tuple[float, float]]:
    """Return what DeepNorm weighs the residual stream and initial weights with.

    Args:
        encoder_layers: N, 0 without an encoder.
        decoder_layers: M, 0 without a decoder.

    Returns:
        By part, "encoder" and "decoder" as far as there are layers: alpha of the sums alpha x +
        f(x), and the gain beta of MLPs, values and outputs.

    Source: Wang et al. 2022 (arXiv 2203.00555), figure 2; Ma et al. 2022 (arXiv 2211.13184),
        section 2.1.
    """
    n, m = encoder_layers, decoder_layers
    if n and m:
        return {
            "encoder": (0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)),
            "decoder": ((3 * m) ** 0.25, (12 * m) ** -0.25),
        }
    part, layers = ("encoder", n) if n else ("decoder", m)
    return {part: ((2 * layers) ** 0.25, (8 * layers) ** -0.25)}


def subln_gain(encoder_layers: int, decoder_layers: int) -> dict[str, float]:
    """Return the gain of MLPs, values and outputs under SubLN.

    Args:
        encoder_layers: N, 0 without an encoder.
        decoder_layers: M, 0 without a decoder.

    Returns:
        By part, as `deepnorm_constants`.

    Source: Wang et al. 2022 (arXiv 2210.06423), section 2.3 (Magneto).
    """
    n, m = encoder_layers, decoder_layers
    if n and m:
        return {
            "encoder": math.sqrt(math.log(3 * m) * math.log(2 * n) / 3),
            "decoder": math.sqrt(math.log(3 * m)),
        }
    return {"encoder" if n else "decoder": math.sqrt(math.log(2 * (n or m)))}


def residual_weight(arch: Architecture, part: str) -> float:
    """Return what a layer's residual stream is multiplied by before its update is added.

    Args:
        arch: architecture of the model.
        part: "encoder" or "decoder".

    Returns:
        1 without `deepnorm`.
    """
    return deepnorm_constants(*_depths(arch))[part][0] if arch.deepnorm else 1.0


def weight_gain(arch: Architecture, part: str) -> float:
    """Return the gain of initial weights of MLPs, values and outputs over Xavier's.

    Args:
        arch: architecture of the model.
        part: "encoder" or "decoder".

    Returns:
        1 without `deepnorm` and `subln`.
    """
    if arch.deepnorm:
        return deepnorm_constants(*_depths(arch))[part][1]
    return subln_gain(*_depths(arch))[part] if arch.subln else 1.0


def _depths(arch: Architecture) -> tuple[int, int]:
    """Return the layers of encoder and decoder."""
    return {
        "encoder": (arch.num_layers, 0),
        "decoder": (0, arch.num_layers),
        "encoder-decoder": (arch.num_layers, arch.num_layers),
    }[arch.kind]
