"""Which series drives which, and which is the sum of which: levels by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import numpy as np

from steelyard.errors import ConfigError, TraceError
from steelyard.operate.series import SeriesSet

__all__ = ["Levels"]

_ROUNDING = 1e-6
"""Share of a total's largest value by which its parts may exceed it: sums of rounded numbers."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Levels of series by name: level 1 drives level 2, that drives level 3, and so on.

    A total stands above its parts. Columns are never told apart by their order in a file.

    Attributes:
        level: level of each series, 1 to the number of levels.
        sums: parts of each total, two or more; they lie on lower levels (larger numbers) than it.

    Source: Luo et al. 2024 (arXiv 2408.01000), levels of indicators; totals are ours.
    """

    level: Mapping[str, int]
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse levels with gaps, and totals that do not stand above two or more parts.

        Raises:
            ConfigError: the levels do not fit one another.
        """
        numbers = set(self.level.values())
        if len(self.level) < 2 or numbers != set(range(1, len(numbers) + 1)):
            raise ConfigError(
                f"{len(self.level)} series on levels {sorted(numbers)}",
                hint="give two or more series, on levels 1, 2, 3 and so on without a gap",
            )
        for total, parts in self.sums.items():
            if len(set(parts)) < 2 or len(set(parts)) < len(parts):
                raise ConfigError(
                    f"total {total!r} has the parts {', '.join(parts) or 'none'}",
                    hint="give two or more parts, each once",
                )
            high = [name for name in parts if self._of(name) <= self._of(total)]
            if high:
                raise ConfigError(
                    f"{high[0]!r} is a part of {total!r} but not on a level below it",
                    hint="give parts a larger level than their total",
                )

    def _of(self, name: str) -> int:
        """Return the level of a series that a sum names."""
        if name not in self.level:
            raise ConfigError(f"{name!r} of a sum has no level", hint="give it one")
        return self.level[name]

    @classmethod
    def of(cls, *rules: str) -> "Levels":
        """Read levels from words.

        Args:
            *rules: each says that a total is a sum, as in "all = east + west", or which series
                drive which, as in "load > cpu, memory > latency".

        Returns:
            The levels; each series is one below the lowest of those above it.

        Raises:
            ConfigError: a rule is neither, or series stand above one another in a circle.
        """
        above: dict[str, set[str]] = {}
        sums: dict[str, tuple[str, ...]] = {}
        for rule in rules:
            total, equals, right = rule.partition("=")
            if equals:
                parts = _names(right, "+", rule)
                groups = [_names(total, "+", rule), parts]
                if len(groups[0]) != 1 or groups[0][0] in sums:
                    raise ConfigError(
                        f"rule {rule!r} of levels has no new total before its =",
                        hint="give each total once",
                    )
                sums[groups[0][0]] = tuple(parts)
            else:
                groups = [_names(part, ",", rule) for part in rule.split(">")]
            # The first group stands below nothing by this rule; another rule may still lower it.
            for upper, lower in zip([[], *groups[:-1]], groups, strict=True):
                for name in lower:
                    above.setdefault(name, set()).update(upper)
        return cls(level=_longest_paths(above), sums=sums)

    @property
    def names(self) -> tuple[str, ...]:
        """All series, by level and then by name: one order, however a file has them."""
        return tuple(sorted(self.level, key=lambda name: (self.level[name], name)))

    @property
    def count(self) -> int:
        """Number of levels."""
        return max(self.level.values())

    def check(self, series: SeriesSet) -> None:
        """Refuse series that these levels do not describe.

        Args:
            series: columns of one table: equal beginning, step and length.

        Raises:
            TraceError: a series has no level or a level no series, the series are not of the same
                times, or a total is less than its parts.
        """
        strange = [name for name in series.ids if name not in self.level]
        if strange:
            raise TraceError(
                f"series {strange[0]!r} has no level{_place(series, strange[0])}",
                hint=f"levels are given for {', '.join(self.names)}: add it, or leave it out",
            )
        absent = [name for name in self.names if name not in series.ids]
        if absent:
            raise TraceError(
                f"no series {absent[0]!r}, which the levels name",
                hint=f"there are: {', '.join(series.ids[:8])}",
            )
        times = {
            (float(start), float(step), int(length))
            for start, step, length in zip(
                series.start_s, series.step_s, series.lengths, strict=True
            )
        }
        if len(times) > 1:
            raise TraceError(
                "the series do not begin, step and end together",
                hint="cut them to the same times; levels are of columns of one table",
            )
        for total in self.sums:
            self._check_total(series, total)

    def _check_total(self, series: SeriesSet, total: str) -> None:
        """Refuse a total that is less than its parts anywhere."""
        whole = np.asarray(series.row(series.index(total)), np.float64)
        rest = whole - self.sum_of_parts(series, total)
        wrong = np.flatnonzero(rest < -_ROUNDING * np.nanmax(np.abs(whole), initial=0.0))
        if len(wrong):
            step = int(wrong[0])
            raise TraceError(
                f"total {total!r} is {whole[step]:g} at value {step + 1}, less than "
                f"{whole[step] - rest[step]:g}, the sum of its parts "
                f"{' + '.join(self.sums[total])}{_place(series, total)}",
                hint="correct the value, or write the rule with > instead of =",
            )

    def sum_of_parts(self, series: SeriesSet, total: str) -> np.ndarray:
        """Return the sum [T] of a total's parts, float64; NaN where one was not observed."""
        rows = [series.row(series.index(name)) for name in self.sums[total]]
        return np.sum(np.asarray(rows, np.float64), axis=0)

    def is_exact(self, series: SeriesSet, total: str) -> bool:
        """Tell whether a total is the sum of its parts everywhere, but for rounding."""
        whole = np.asarray(series.row(series.index(total)), np.float64)
        rest = np.abs(whole - self.sum_of_parts(series, total))
        size = np.nanmax(np.abs(whole), initial=0.0)
        return bool(np.nanmax(rest, initial=0.0) <= _ROUNDING * size)


def _names(text: str, separator: str, rule: str) -> list[str]:
    """Split names, none of them empty."""
    found = [part.strip() for part in text.split(separator)]
    if not all(found):
        raise ConfigError(
            f"rule {rule!r} of levels has an empty name",
            hint="write 'all = east + west' or 'load > cpu, memory > latency'",
        )
    return found


def _longest_paths(above: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the level of each name: 1, or one more than the largest of those above it."""
    level: dict[str, int] = {}
    try:
        for name in TopologicalSorter(above).static_order():
            level[name] = 1 + max((level[upper] for upper in above.get(name, ())), default=0)
    except CycleError as error:
        raise ConfigError(
            f"levels go in a circle: {' > '.join(error.args[1])}", hint="leave one rule out"
        ) from error
    return level


def _place(series: SeriesSet, name: str) -> str:
    """Return where a series was read, for a message."""
    text = series.provenance[series.index(name)] if series.provenance else ""
    return f" ({text})" if text else ""
