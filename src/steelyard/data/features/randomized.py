"""Principal components of very wide rows: a few passes with random directions, no covariance."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.pca import PrincipalComponents, signed
from steelyard.errors import ConfigError, DataError

__all__ = ["randomized_components"]

_OVERSAMPLE = 10


def randomized_components(
    blocks: Callable[[], Iterable[NDArray[np.floating]]],
    width: int,
    count: int,
    *,
    power: int = 2,
    seed: int = 0,
) -> PrincipalComponents:
    """Find the components of rows in 2 + `power` passes over them.

    Each pass keeps a product of a few more columns than there are components; the covariance of all
    columns is never made.

    Args:
        blocks: returns the rows, some at a time [N, D], the same ones at each call.
        width: columns D.
        count: components, 1 to D.
        power: passes that sharpen the directions.
        seed: seed of the first directions.

    Returns:
        The components.

    Raises:
        ConfigError: a number is out of range.
        DataError: there are fewer than two rows.

    Source: Halko, Martinsson and Tropp 2011 (arXiv 0909.4061), algorithms 4.4 and 5.1; one product
        with the covariance per pass.
    """
    if not 1 <= count <= width or power < 0:
        raise ConfigError(
            f"{count} components of {width} columns, {power} passes that sharpen",
            hint=f"give 1 to {width} components and 0 or more passes",
        )
    rows, sums, total = 0, np.zeros(width), 0.0
    for block in blocks():
        rows, sums = rows + len(block), sums + block.sum(axis=0, dtype=np.float64)
    if rows < 2:
        raise DataError(f"{rows} rows have no directions", hint="give 2 or more")
    mean = sums / rows
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(width, min(count + _OVERSAMPLE, width))))[0]
    products = np.zeros_like(basis)
    for turn in range(power + 1):
        products, total = np.zeros_like(basis), 0.0
        for block in blocks():
            centred = block - mean
            products += centred.T @ (centred @ basis)
            total += float(np.einsum("nd,nd->", centred, centred))
        if turn < power:
            basis = np.linalg.qr(products)[0]
    # Rayleigh and Ritz: the best directions within the basis, without one more pass.
    small = basis.T @ products / (rows - 1)
    values, turned = np.linalg.eigh((small + small.T) / 2)
    order = np.argsort(-values)[:count]
    return PrincipalComponents(
        mean=mean,
        directions=signed((basis @ turned[:, order]).T),
        variances=np.maximum(values[order], 0.0),
        total=total / (rows - 1),
    )
