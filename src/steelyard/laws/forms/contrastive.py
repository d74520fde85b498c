"""Contrastive language-image models: error by model, data and samples seen, and what binds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Constant, Power, Sum
from steelyard.laws.forms.terms import positive, real

__all__ = ["Bottleneck", "bottleneck", "contrastive", "contrastive_gmacs"]

_PARTS = {
    "model": ("gmacs", "A", "alpha"),
    "data": ("unique_samples", "B", "beta"),
    "samples": ("samples", "C", "gamma"),
}


def contrastive() -> Law:
    """Error = E + A / gmacs^alpha + B / unique_samples^beta + C / samples^gamma.

    Model size is compute per sample, because parameters do not tell a large patch from a small one.
    Data is what is unique, samples is what was seen, repeats included.

    Returns:
        The law with inputs "gmacs" (per sample, both towers), "unique_samples" and "samples", 7
        parameters.

    Example:
        >>> fit(contrastive(), table, "error", delta=math.inf)  # doctest: +SKIP

    Source: the parametric form of Hoffmann et al. 2022 (arXiv 2203.15556), equation 10, with one
        part per resource of Cherti et al. 2023 (arXiv 2212.07143), section 4.
    """
    # Starts of B reach far up: unique samples count in the hundreds of millions, and a steep beta
    # needs a coefficient that large to matter there.
    powers = [Power(coefficient, exponent, name) for name, coefficient, exponent in _PARTS.values()]
    return Law(
        name="contrastive",
        term=Sum((Constant("E"), *powers)),
        parameters=(
            positive("E", -9.0, 0.0, -3.0, -1.5),
            positive("A", -20.0, 80.0, -1.0, 0.5),
            real("alpha", 0.02, 3.0, 0.2, 0.6),
            positive("B", -20.0, 80.0, 4.0, 12.0, 28.0),
            real("beta", 0.02, 3.0, 0.3, 0.8, 1.5),
            positive("C", -20.0, 80.0, 3.0, 10.0),
            real("gamma", 0.02, 3.0, 0.3, 0.6),
        ),
        formula="E + A / G^alpha + B / U^beta + C / S^gamma",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """What a run is short of.

    Attributes:
        shares: for "model", "data" and "samples", the part of the whole gain that growing only this
            resource by a small factor brings, 0..1; they sum to 1.
        gains: for each resource, the relative fall of the error when it alone doubles, 0..1.
        limiting: the resource with the largest share.
        confidence: fraction of the bootstraps that name the same one; 1 without bootstraps.
        error: error predicted for the run.
    """

    shares: dict[str, Estimate]
    gains: dict[str, Estimate]
    limiting: str
    confidence: float
    error: float


def bottleneck(fit: Fit, point: Mapping[str, Any], level: float = 0.8) -> Bottleneck:
    """Say which resource a run is short of, by the derivatives of the joint law.

    Args:
        fit: fit of `contrastive()`.
        point: the run's "gmacs", "unique_samples" and "samples".
        level: probability inside the intervals, 0..1.

    Returns:
        Shares and gains of the three resources.

    Raises:
        FitError: another law, or an input that is missing or not positive.
    """
    if fit.law.powers != {column: (scale, power) for column, scale, power in _PARTS.values()}:
        raise FitError(
            f"law {fit.law.name} does not tell model, data and samples apart",
            hint="fit laws.images.contrastive() to the runs",
        )
    values = fit.draws()
    exponents = np.stack([values[exponent] for _, _, exponent in _PARTS.values()])
    parts = np.stack(
        [
            values[coefficient] / float(point[column]) ** values[exponent]
            for column, coefficient, exponent in _PARTS.values()
        ]
    )
    slopes = exponents * parts
    order = slopes.argmax(axis=0)
    return Bottleneck(
        shares=_estimates(slopes / slopes.sum(axis=0), level),
        gains=_estimates(parts * (1 - 0.5**exponents) / (values["E"] + parts.sum(axis=0)), level),
        limiting=list(_PARTS)[order[0]],
        confidence=float((order[1:] == order[0]).mean()) if len(order) > 1 else 1.0,
        error=fit.predict(point, level, extrapolate=True).first.value,
    )


def _estimates(fractions: Array, level: float) -> dict[str, Estimate]:
    """Name the fraction of each resource, [3, 1 + B]."""
    return {
        name: Estimate.of(float(values[0]), values[1:], level)
        for name, values in zip(_PARTS, fractions, strict=True)
    }


def contrastive_gmacs(
    *,
    image_size: int,
    patch_size: int,
    image_width: int,
    image_layers: int,
    text_width: int,
    text_layers: int,
    context_tokens: int = 77,
    mlp_ratio: float = 4.0,
) -> float:
    """Count the multiply-adds of both towers for one image-text pair.

    Counts the patch embedding, and per layer 4 w^2 + 2 r w^2 per token for projections and MLP and
    2 t w per token for attention; norms, embeddings and the two final projections are left out, so
    it is within 0.3 % of profiled counts.

    Args:
        image_size: side of the square image, pixels.
        patch_size: side of a patch, pixels, divides the image's.
        image_width: width of the vision transformer.
        image_layers: number of layers of the vision transformer.
        text_width: width of the text transformer.
        text_layers: number of layers of the text transformer.
        context_tokens: context of the text tower, padding included.
        mlp_ratio: hidden size of the image tower's MLP over its width; the text tower's is 4.

    Returns:
        GMAC per sample, 1e9 multiply-adds.

    Raises:
        FitError: sizes that are not positive, or a patch that does not divide the image.

    Source: Dosovitskiy et al. 2021 (arXiv 2010.11929), section 3.1; Radford et al. 2021 (arXiv
        2103.00020), section 2.4.
    """
    sizes = (
        image_size,
        patch_size,
        image_width,
        image_layers,
        text_width,
        text_layers,
        context_tokens,
        mlp_ratio,
    )
    if not all(np.isfinite(size) and size > 0 for size in sizes) or image_size % patch_size:
        raise FitError(
            f"towers of sizes {sizes}: all must be positive and the patch must divide the image"
        )
    patches = (image_size // patch_size) ** 2
    embedding = patches * 3 * patch_size**2 * image_width
    return (
        embedding
        + _tower(patches + 1, image_width, image_layers, mlp_ratio)
        + _tower(context_tokens, text_width, text_layers, 4.0)
    ) / 1e9


def _tower(tokens: int, width: int, layers: int, mlp_ratio: float) -> float:
    """Count the multiply-adds of a transformer."""
    return layers * ((4 + 2 * mlp_ratio) * tokens * width**2 + 2 * tokens**2 * width)
