"""Designs of studies: which runs a table would hold, before any of them has a loss."""

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import ConfigError
from steelyard.laws.fitting.terms import Array

__all__ = [
    "chinchilla_grid",
    "crossed",
    "isoflop_grid",
    "learning_curve_grid",
    "repeated_data_grid",
    "routed_grid",
]

Grid = dict[str, Array]


def crossed(**axes: ArrayLike) -> Grid:
    """Cross axes: every combination of their values is a run.

    Args:
        **axes: values per column, positive, each of its own length.

    Returns:
        Columns in the order given, the last one running fastest, [n] each.

    Raises:
        ConfigError: an axis is empty or holds values that are not positive and finite.
    """
    values = {name: _axis(name, axis) for name, axis in axes.items()}
    mesh = np.meshgrid(*values.values(), indexing="ij")
    return {name: column.ravel() for name, column in zip(values, mesh, strict=True)}


def chinchilla_grid(
    sizes: ArrayLike = (7e7, 1.5e8, 3e8, 6e8, 1.2e9, 2.5e9, 5e9, 1e10),
    tokens_per_parameter: ArrayLike = (2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
) -> Grid:
    """Cross sizes with tokens per parameter.

    Args:
        sizes: parameters, [s].
        tokens_per_parameter: [r].

    Returns:
        "parameters", "tokens" and "flops" (6 per parameter and token), [s r] each.

    Raises:
        ConfigError: a value is not positive and finite.
    """
    grid = crossed(parameters=sizes, ratio=tokens_per_parameter)
    tokens = grid.pop("ratio") * grid["parameters"]
    return {**grid, "tokens": tokens, "flops": 6 * grid["parameters"] * tokens}


def isoflop_grid(
    budgets_flops: ArrayLike = (6e18, 1e19, 3e19, 6e19, 1e20, 3e20, 6e20, 1e21, 3e21),
    runs: int = 7,
    *,
    tokens_per_parameter: float = 20.0,
    span: float = 16.0,
) -> Grid:
    """Lay runs of equal compute across sizes, in log-spaced rows around a guessed optimum.

    Args:
        budgets_flops: [c], FLOP.
        runs: runs per budget, at least 3.
        tokens_per_parameter: ratio at the middle of every row.
        span: largest over smallest size of a row, above 1.

    Returns:
        "parameters", "tokens" and "flops", [c runs] each.

    Raises:
        ConfigError: fewer than 3 runs, or a value is not positive and finite.
    """
    if runs < 3 or not span > 1:
        raise ConfigError(
            f"an isoFLOP row needs at least 3 runs over a span above 1, given {runs} and {span:g}"
        )
    grid = crossed(flops=budgets_flops, place=np.geomspace(span**-0.5, span**0.5, runs))
    # The middle of a row is the size whose tokens are so many times itself: C = 6 N (ratio N).
    sizes = (
        np.sqrt(grid["flops"] / (6 * _axis("tokens_per_parameter", tokens_per_parameter)))
        * grid["place"]
    )
    return {"parameters": sizes, "tokens": grid["flops"] / 6 / sizes, "flops": grid["flops"]}


def learning_curve_grid(samples: float = 2**20, shards: int = 12, *, repeats: int = 1) -> Grid:
    """Halve a data set again and again: nested shards, the largest all of it.

    Args:
        samples: samples of the whole set.
        shards: number of sizes, at least 2; the smallest must hold one sample.
        repeats: runs per shard, each to be drawn with noise of its own.

    Returns:
        "samples" and "shard" (1 for the smallest), [shards repeats] each, from small to large.

    Raises:
        ConfigError: fewer than 2 shards or 1 repeat, or shards below one sample.
    """
    if shards < 2 or repeats < 1 or not samples / 2 ** (shards - 1) >= 1:
        raise ConfigError(
            f"{shards} shards of {samples:g} samples, {repeats} runs each: 2 shards, 1 run and 1 "
            f"sample are the least"
        )
    sizes = np.floor(samples / 2.0 ** np.arange(shards - 1, -1, -1))
    return {
        "samples": np.repeat(sizes, repeats),
        "shard": np.repeat(np.arange(1.0, shards + 1), repeats),
    }


def repeated_data_grid(
    sizes: ArrayLike = (1e8, 4e8, 1.6e9),
    unique_tokens: ArrayLike = (1e8, 4e8, 1.6e9),
    epochs: ArrayLike = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
) -> Grid:
    """Cross sizes with amounts of unique data and the times it is read.

    Args:
        sizes: parameters, [s].
        unique_tokens: [u].
        epochs: passes, [e].

    Returns:
        "parameters", "unique_tokens", "epochs" and "tokens" (all that are read), [s u e] each.

    Raises:
        ConfigError: a value is not positive and finite.
    """
    grid = crossed(parameters=sizes, unique_tokens=unique_tokens, epochs=epochs)
    return {**grid, "tokens": grid["unique_tokens"] * grid["epochs"]}


def routed_grid(
    sizes: ArrayLike = (1.5e7, 2.5e7, 5.5e7, 1.3e8, 3.7e8, 8.7e8),
    experts: ArrayLike = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0),
) -> Grid:
    """Cross sizes of the dense model with numbers of experts.

    Args:
        sizes: parameters of the dense model, [s].
        experts: experts per routed layer, 1 for the dense model, [e].

    Returns:
        "parameters" and "experts", [s e] each.

    Raises:
        ConfigError: a value is not positive and finite.
    """
    return crossed(parameters=sizes, experts=experts)


def _axis(name: str, values: ArrayLike) -> Array:
    """Turn an axis into positive float64 values, [v]."""
    axis = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if axis.ndim != 1 or not len(axis) or not (np.isfinite(axis) & (axis > 0)).all():
        raise ConfigError(f"grid axis {name} must hold positive finite numbers, given {values}")
    return axis
