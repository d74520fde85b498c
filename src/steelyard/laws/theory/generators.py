"""Tables of runs whose truth is known, and the designs of studies they are drawn on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.points import check_inputs
from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.random_features import RandomFeatureModel

__all__ = [
    "GeneratedRuns",
    "chinchilla_grid",
    "crossed",
    "draw",
    "isoflop_grid",
    "learning_curve_grid",
    "random_feature_runs",
    "repeated_data_grid",
    "routed_grid",
]

_OUTLIER_LOG_SIZE = 0.2
_DIVERGED_LOG_RANGE = (0.7, 2.3)
"""Logs of 2 and 10, which a loss that blew up lies above its target."""


@dataclass(frozen=True, eq=False)
class GeneratedRuns(Mapping[str, Array]):
    """Runs of a known law, a mapping from column to values [n] that `fit` takes as it is.

    Attributes:
        columns: inputs and target, [n] each.
        target: name of the target's column.
        clean: the target without noise, [n].
        params: what was planted, natural units.
        is_outlier: runs moved beyond the noise, [n].
        is_diverged: runs whose loss blew up, [n].
        source: how the runs were made.
    """

    columns: Mapping[str, Array]
    target: str
    clean: Array
    params: Mapping[str, float]
    is_outlier: NDArray[np.bool_]
    is_diverged: NDArray[np.bool_]
    source: str

    def __getitem__(self, name: str) -> Array:
        """Return a column, [n]."""
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        """Go through the names of the columns."""
        return iter(self.columns)

    def __len__(self) -> int:
        """Count the columns."""
        return len(self.columns)

    @property
    def num_runs(self) -> int:
        """Number of runs, n."""
        return len(self.clean)


def draw(
    law: Law,
    params: Mapping[str, float],
    inputs: Mapping[str, ArrayLike],
    noise: float,
    generator: np.random.Generator,
    *,
    target: str = "loss",
    outliers: float = 0.0,
    diverged: float = 0.0,
) -> GeneratedRuns:
    """Draw runs of a law.

    Args:
        law: any law.
        params: parameters of the law in natural units.
        inputs: values by input of the law, [n], such as a grid of this module.
        noise: standard deviation of the log target; 0.01 is about one percent.
        generator: draws the noise.
        target: name of the column made.
        outliers: probability that a run lies a further 20 % of log target (one standard deviation)
            off, either way, 0..1.
        diverged: probability that a run ends at 2 to 10 times its target, 0..1.

    Returns:
        The runs with what was planted.

    Raises:
        ConfigError: noise is negative, a probability not in 0..1, or the target's name that of an
            input.
        FitError: an input or a parameter of the law is missing or not positive.

    Example:
        >>> truth = {"A": 400.0, "alpha": 0.28, "E": 1.7}
        >>> grid = {"tokens": np.geomspace(1e8, 1e11, 24)}
        >>> runs = draw(law, truth, grid, 0.01, np.random.default_rng(0))  # doctest: +SKIP
        >>> laws.fit(law, runs, "loss").params  # doctest: +SKIP
    """
    if not 0 <= noise < np.inf or not all(0 <= share <= 1 for share in (outliers, diverged)):
        raise ConfigError(
            f"noise {noise:g} must not be negative, and outliers {outliers:g} and diverged "
            f"{diverged:g} lie in 0..1"
        )
    if target in law.inputs:
        raise ConfigError(
            f"the target {target!r} is an input of law {law.name}", hint="name the target otherwise"
        )
    columns = check_inputs(law, inputs)
    log = np.array(law.predict(law.coordinates(params)[None], columns)[0])
    clean = np.exp(log)
    count = len(log)
    log += noise * generator.standard_normal(count)
    is_outlier = generator.random(count) < outliers
    log += np.where(is_outlier, _OUTLIER_LOG_SIZE * generator.standard_normal(count), 0.0)
    is_diverged = generator.random(count) < diverged
    log += np.where(is_diverged, generator.uniform(*_DIVERGED_LOG_RANGE, count), 0.0)
    return GeneratedRuns(
        MappingProxyType({**columns, target: np.exp(log)}),
        target,
        clean,
        dict(params),
        is_outlier,
        is_diverged,
        f"drawn from {law.name}, log noise {noise:g}, outliers {outliers:g}, diverged {diverged:g}",
    )


def random_feature_runs(
    model: RandomFeatureModel,
    steps: ArrayLike,
    widths: ArrayLike,
    samples: ArrayLike = np.inf,
    *,
    noise: float = 0.0,
    generator: np.random.Generator,
) -> GeneratedRuns:
    """Make a table of runs of the random-feature model, which follows no fitted law exactly.

    Args:
        model: model that trains.
        steps: whole numbers, [t].
        widths: features, [w].
        samples: different examples, [s] or one.
        noise: standard deviation of the log loss.
        generator: draws the noise.

    Returns:
        One row per combination with columns "steps", "width", "parameters" (the width), "tokens"
        (the steps), "samples" (left out where endless) and "loss"; exponents are in `params` by the
        fields of `model.exponents()`.

    Raises:
        ConfigError: as for `RandomFeatureModel.loss`.
    """
    when = np.atleast_1d(np.asarray(steps, dtype=np.int64))
    examples = np.atleast_1d(np.asarray(samples, dtype=np.float64))
    rows = [
        (width, count)
        for width in np.atleast_1d(np.asarray(widths, dtype=np.float64))
        for count in examples
    ]
    clean = np.concatenate([model.loss(when, width, count).test for width, count in rows])
    width_column, sample_column = np.repeat(np.array(rows), len(when), axis=0).T
    steps_column = np.tile(when.astype(np.float64), len(rows))
    loss = clean * np.exp(noise * generator.standard_normal(len(clean)))
    columns = {
        "steps": steps_column,
        "width": width_column,
        "parameters": width_column,
        "tokens": steps_column,
        "loss": loss,
    }
    if np.isfinite(examples).all():  # laws take no infinite inputs
        columns["samples"] = sample_column
    exponents = model.exponents()
    planted = {name: float(getattr(exponents, name)) for name in exponents.__slots__}
    none = np.zeros(len(clean), dtype=bool)
    source = f"random-feature model a={model.a:g} b={model.b:g}, log noise {noise:g}"
    return GeneratedRuns(MappingProxyType(columns), "loss", clean, planted, none, none, source)


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
    return {
        "samples": np.repeat(np.floor(samples / 2.0 ** np.arange(shards - 1, -1, -1)), repeats),
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
