"""What a serverless platform is asked: functions, and their requests over time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, TraceError, require

__all__ = ["CloudFunction", "Workload"]


@dataclass(frozen=True, kw_only=True)
class CloudFunction:
    """A deployed function.

    Attributes:
        name: its identifier.
        runtime: name of its start-up.
        size_class: pool of its pods, such as "300-128" (millicores and MB).
        trigger: what calls it, such as "TIMER-A"; an ending of -A says that no caller waits.
        slots: requests that a pod serves at a time.
        period_s: period of its timer, 0 for none.
        home: name of its region; the platform's first when empty.
        children: positions of the functions that it calls in a workflow.
    """

    name: str
    runtime: str
    size_class: str = ""
    trigger: str = "unknown"
    slots: int = 1
    period_s: float = 0.0
    home: str = ""
    children: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(
            self,
            slots=(self.slots >= 1, "at least 1"),
            period_s=(self.period_s >= 0, "0 or more"),
        )

    @property
    def is_async(self) -> bool:
        """Whether the caller does not wait for the answer."""
        return self.trigger.endswith("-A")


@dataclass(frozen=True)
class Workload:
    """Requests of functions, by rising time.

    Attributes:
        functions: who is called.
        time_s: arrivals [N], seconds.
        function: position in `functions` of each request, [N].
        duration_s: execution without start-up [N], seconds.
        horizon_s: end of what is simulated, seconds; the last arrival when 0.
    """

    functions: Sequence[CloudFunction]
    time_s: NDArray[np.float64]
    function: NDArray[np.int64]
    duration_s: NDArray[np.float64]
    horizon_s: float = field(default=0.0)

    def __post_init__(self) -> None:
        for name, kind in (("time_s", float), ("function", np.int64), ("duration_s", float)):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=kind))
        count = len(self.time_s)
        if not (count == len(self.function) == len(self.duration_s)):
            raise TraceError("columns of a workload differ in length", hint="give one row each")
        self._refuse(self.time_s, ~(self.time_s >= 0), "time_s", "finite and at least 0")
        self._refuse(self.duration_s, ~(self.duration_s >= 0), "duration_s", "at least 0")
        falls = np.concatenate(([False], np.diff(self.time_s) < 0))
        self._refuse(self.time_s, falls, "time_s", "at or after the row before")
        known = (self.function >= 0) & (self.function < len(self.functions))
        self._refuse(self.function, ~known, "function", f"in [0, {len(self.functions)})")
        if not self.horizon_s:
            object.__setattr__(self, "horizon_s", float(self.time_s[-1]) if count else 0.0)

    def __len__(self) -> int:
        return len(self.time_s)

    @staticmethod
    def _refuse(column: NDArray, wrong: NDArray[np.bool_], name: str, allowed: str) -> None:
        """Refuse a column by its first wrong row."""
        if wrong.any():
            row = int(np.argmax(wrong))
            raise TraceError(
                f"row {row}, {name} is {column[row]}, but must be {allowed}",
                hint="correct or leave out that row",
            )

    def scale(self, factor: float, *, seed: int = 0) -> "Workload":
        """Return a workload with a fraction of the functions, or with copies of them.

        Timers keep their times and every function its own pattern, which scaling rates would not.

        Args:
            factor: functions over those there are; above 1 whole copies come first.
            seed: seed of the choice of functions.

        Returns:
            The workload; workflows keep a child only where it is chosen as well.

        Raises:
            ConfigError: `factor` is not above 0.
        """
        if not factor > 0:
            raise ConfigError(f"factor is {factor}, but must be above 0")
        count = len(self.functions)
        # Whole copies, as a drawn function twice would leave others out at factors above 1.
        copies, rest = divmod(round(factor * count), count)
        extra = np.sort(np.random.default_rng(seed).permutation(count)[:rest])
        chosen = [np.arange(count)] * copies + [extra]
        functions: list[CloudFunction] = []
        rows: list[tuple[NDArray, NDArray]] = []
        for copy, part in enumerate(chosen):
            place = np.full(count, -1)
            place[part] = np.arange(len(part)) + len(functions)
            functions += [_renamed(self.functions[at], copy, place) for at in part.tolist()]
            kept = np.flatnonzero(place[self.function] >= 0)
            rows.append((kept, place[self.function[kept]]))
        index = np.concatenate([kept for kept, _ in rows])
        owner = np.concatenate([of for _, of in rows])
        order = np.argsort(self.time_s[index], kind="stable")
        index, owner = index[order], owner[order]
        return Workload(
            functions, self.time_s[index], owner, self.duration_s[index], self.horizon_s
        )


def _renamed(function: CloudFunction, copy: int, place: NDArray[np.int64]) -> CloudFunction:
    """Return a function whose children point to where they are now."""
    children = tuple(int(place[child]) for child in function.children if place[child] >= 0)
    name = f"{function.name}#{copy}" if copy else function.name
    return replace(function, name=name, children=children)
