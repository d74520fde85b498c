"""Mixtures: tasks with rates, also of mixtures, in one even and endless stream."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Union

from steelyard.data.tasks.task import Examples, refuse

__all__ = ["Rate", "TaskMixture", "by_examples"]

Rate = float | Callable[[int], float]
"""A number, or a function of the number of examples that returns one."""


def by_examples(
    *, scale: float = 1.0, maximum: float | None = None, temperature: float = 1.0
) -> Callable[[int], float]:
    """Return the rate function of a number of examples: scaled, then clipped, then tempered.

    Args:
        scale: factor on the number of examples.
        maximum: most that counts after scaling; None for no limit.
        temperature: T of the power 1 / T; 1 keeps proportions, more makes tasks more alike.

    Returns:
        A function from a number of examples to a rate.

    Raises:
        ConfigError: a value is not positive.

    Source: Raffel et al. 2020 (T5, arXiv 1910.10683), section 3.5.2; order of the three as in
        seqio (Roberts et al. 2023, arXiv 2203.17189).
    """
    given = {"scale": scale, "maximum": maximum, "temperature": temperature}
    wrong = [
        f"{name} = {value}" for name, value in given.items() if value is not None and value <= 0
    ]
    refuse("a rate by examples needs positive values", wrong)
    return partial(_by_examples, scale=scale, maximum=maximum, temperature=temperature)


def _by_examples(
    examples: int, *, scale: float, maximum: float | None, temperature: float
) -> float:
    """Compute the rate of a number of examples."""
    rate = examples * scale
    if maximum is not None:
        rate = min(rate, maximum)
    return rate ** (1.0 / temperature)


@dataclass(frozen=True)
class TaskMixture:
    """Tasks and mixtures with rates.

    A mixture's rate inside another is split among its tasks by its own rates; a task that is
    reached in several ways has the sum.

    Attributes:
        name: name for reports.
        parts: pairs of a task, its cache or a mixture, and its rate.
    """

    name: str
    parts: tuple[tuple[Union[Examples, "TaskMixture"], Rate], ...]

    def __post_init__(self) -> None:
        """Refuse a mixture that cannot be served.

        Raises:
            ConfigError: there is no part, a rate is not positive, one name stands for two tasks, or
                features differ; all violations are named.
        """
        wrong = [] if self.parts else ["it has no parts"]
        tasks: dict[str, Examples] = {}
        for part, rate in self.parts:
            wrong += _rate_violations(part, rate)
            for task in part.tasks if isinstance(part, TaskMixture) else (part,):
                # Reports, caches and rates go by name: one name must mean one task.
                if tasks.setdefault(task.name, task) is not task:
                    wrong.append(f"two different tasks are named {task.name!r}")
        first = next(iter(tasks.values()), None)
        for task in tasks.values():
            if first is not None and (gap := _feature_gap(first, task)):
                wrong.append(gap)
        refuse(f"mixture {self.name!r}", wrong)

    @property
    def tasks(self) -> list[Examples]:
        """Tasks reached, each once, in order of appearance."""
        found: dict[str, Examples] = {}
        for part, _ in self.parts:
            for task in part.tasks if isinstance(part, TaskMixture) else (part,):
                found.setdefault(task.name, task)
        return list(found.values())

    @property
    def num_examples(self) -> int:
        """Examples of all tasks."""
        return sum(map(len, self.tasks))

    def rates(self) -> dict[str, float]:
        """Return the rate of each task by its name; they need not sum to 1."""
        found = {task.name: 0.0 for task in self.tasks}
        for part, rate in self.parts:
            if isinstance(part, TaskMixture):
                inner = part.rates()
                # A function of examples sees all the examples of the inner mixture.
                whole = _rate(rate, part.num_examples)
                for name, share in inner.items():
                    found[name] += whole * share / sum(inner.values())
            else:
                found[part.name] += _rate(rate, len(part))
        return found


def _rate(rate: Rate, examples: int) -> float:
    """Return a rate as a number."""
    return float(rate(examples) if callable(rate) else rate)


def _rate_violations(part: Examples | TaskMixture, rate: Rate) -> list[str]:
    """List what is wrong with a part's size and rate."""
    count = part.num_examples if isinstance(part, TaskMixture) else len(part)
    if not count:
        return [f"{part.name!r} has no examples"]
    value = _rate(rate, count)
    good = math.isfinite(value) and value > 0
    return [] if good else [f"the rate of {part.name!r} is {value}, not a positive number"]


def _feature_gap(one: Examples, other: Examples) -> str:
    """Say how the features of two tasks differ; empty where they do not."""
    if one.features.keys() != other.features.keys():
        names = (", ".join(sorted(task.features)) for task in (one, other))
        return f"features of {one.name!r} are {next(names)}, of {other.name!r} {next(names)}"
    for name, feature in one.features.items():
        if feature.vocabulary.key != other.features[name].vocabulary.key:
            return f"{one.name!r} and {other.name!r} encode {name!r} with other vocabularies"
    return ""
