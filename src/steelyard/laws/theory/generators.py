"""Tables of runs whose truth is known, to test fitters and planners before real runs are spent."""

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

__all__ = ["GeneratedRuns", "draw", "random_feature_runs"]

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
        inputs: values by input of the law, [n], such as a grid of `steelyard.laws.theory.grids`.
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
    source = (
        f"drawn from {law.name}, log noise {noise:g}, outliers {outliers:g}, diverged {diverged:g}"
    )
    return GeneratedRuns(
        MappingProxyType({**columns, target: np.exp(log)}),
        target,
        clean,
        dict(params),
        is_outlier,
        is_diverged,
        source,
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
    sizes = np.atleast_1d(np.asarray(widths, dtype=np.float64))
    examples = np.atleast_1d(np.asarray(samples, dtype=np.float64))
    rows = [(width, count) for width in sizes for count in examples]
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
