"""Learners side by side under one time budget: more rows in each round, until the time is over."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.preparing import work_folder
from steelyard.data.learning.bayes import BayesConfig
from steelyard.data.learning.boosting import BoostConfig
from steelyard.data.learning.fitting import check_options
from steelyard.data.learning.forest import ForestConfig
from steelyard.data.learning.kernel_machine import KernelConfig
from steelyard.data.learning.learners import LearnerConfig, Needs
from steelyard.data.learning.linear import LinearConfig
from steelyard.data.learning.losses import mean_loss
from steelyard.data.learning.measuring import column_warnings, part_of, scored
from steelyard.data.learning.model import TableModel
from steelyard.data.learning.neighbours import NeighbourConfig
from steelyard.data.learning.options import FitOptions
from steelyard.data.learning.preparing import PreparedRows, prepare_rows
from steelyard.data.learning.ridge import RidgeConfig
from steelyard.data.learning.samples import RowParts, sampled
from steelyard.data.learning.scores import Scored
from steelyard.errors import ConfigError, DataError, FitError

if TYPE_CHECKING:
    from steelyard.data.table import DataTable
    from steelyard.laws.fitting.fitted import Fit

__all__ = ["CompareOptions", "ComparedLearner", "ComparedTable", "compare_table"]

FAMILY: dict[str, LearnerConfig] = {
    "bayes": BayesConfig(),
    "ridge": RidgeConfig(),
    "linear": LinearConfig(),
    "neighbours": NeighbourConfig(),
    "kernel": KernelConfig(),
    "boosted": BoostConfig(),
    "forest": ForestConfig(),
}
"""Learners with their usual settings, those that take least time first."""
_FIRST_ROWS, _GROWTH, _STEEPNESS = 500, 2, 1.15
_TWO = np.arange(2)
_LEAST_POINTS, _FLOOR_POINTS = 4, 6
"""Fits that a power needs, and one above a floor."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What is compared.

    Attributes:
        fit: what is learned from which rows; its learner does not matter.
        time_s: time for fits, in seconds; the passes over the table come before.
        learners: names; empty for all that can predict the target.
        more: learners of one's own by name, beside the family, such as
            {"neural": steelyard.train.tabular.NeuralConfig()}.
    """

    fit: FitOptions
    time_s: float = 60.0
    learners: Sequence[str] = ()
    more: Mapping[str, LearnerConfig] = field(default_factory=dict)

    @property
    def family(self) -> dict[str, LearnerConfig]:
        """Learners that may be compared, by name."""
        return FAMILY | dict(self.more)

    @property
    def names(self) -> list[str]:
        """Learners that are compared."""
        return list(self.learners) or list(self.family)

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        if not self.time_s > 0:
            raise ConfigError(f"{self.time_s:g} s for all fits", hint="give more than 0")
        if wrong := [name for name in self.learners if name not in self.family]:
            known = ", ".join(self.family)
            raise ConfigError(f"no learner {wrong[0]!r}", hint=f"learners are {known}")


@dataclass(kw_only=True)
class ComparedLearner:
    """A learner with the largest sample that it was fitted to.

    Attributes:
        name: what users call it.
        model: its model.
        rows: rows it was fitted to.
        fit_s: time of that fit.
        turn_s: the same with scores of the rows kept aside.
        loss: loss of the rows that choose: log loss, or root mean square error.
        scores: measures of rows that chose nothing.
        points: rows and loss of the rows that measure, of each fit.
    """

    name: str
    model: TableModel
    rows: int
    fit_s: float
    turn_s: float
    loss: float
    scores: list[Scored]
    points: list[tuple[int, float]] = field(default_factory=list)

    def law(self) -> "Fit | None":
        """Return the loss over rows as a power, of six fits above a floor; None of under four."""
        if len(self.points) < _LEAST_POINTS:
            return None
        from steelyard.laws import fit, power_law

        rows, losses = (np.array(part, float) for part in zip(*self.points, strict=True))
        try:
            has_floor = len(rows) >= _FLOOR_POINTS
            law = power_law("samples", has_floor, letters="power_law_floor")
            return fit(law, {"samples": rows}, losses)
        except FitError:
            return None


@dataclass(frozen=True, kw_only=True)
class ComparedTable:
    """Learners, the one of least loss of the rows that choose first.

    Attributes:
        learners: what was fitted.
        rows: rows that may be learned from.
        measured: rows that measure.
        left_out: reason by learner that was not fitted.
        warnings: what is odd about columns.
        took_s: time of all fits.
    """

    learners: list[ComparedLearner]
    rows: int
    measured: int
    left_out: dict[str, str]
    warnings: list[str]
    took_s: float


def compare_table(
    table: "DataTable",
    options: CompareOptions,
    folder: Path,
    *,
    done: Callable[[str, float], None] = lambda _what, _share: None,
) -> ComparedTable:
    """Fit a family of learners within one time budget.

    Each round doubles the rows. A fit whose time would end after the budget, as the last one tells,
    is not begun. Learners are ranked by half of the rows kept aside and measured by the other half.

    Args:
        table: the table.
        options: what is compared.
        folder: takes the rows; removed at the end.
        done: is told what is worked on, and the share of it that is done.

    Returns:
        The learners.

    Raises:
        ConfigError: no such column or learner, or an option is out of range.
        DataError: a column cannot be predicted, or too few rows are kept aside.
        CapacityError: the disk is full.
    """
    check_options(table, replace(options.fit, reduce="", learner=None))
    family = options.family
    with work_folder(folder):
        prepared: dict[str, PreparedRows] = {}
        # The first learner of each kind stands for the others: rows are the same for all.
        wanted: dict[Needs, LearnerConfig] = {}
        for name in options.names:
            wanted.setdefault(family[name].needs, family[name])
        for needs, learner in wanted.items():
            own = folder / needs
            own.mkdir(exist_ok=True)
            own_options = replace(options.fit, learner=learner)
            prepared[needs] = prepare_rows(table, own_options, needs, own, done)
        found = _Race(options, prepared, done).run()
        del prepared
    return found


class _Race:
    """Learners while rounds are run."""

    def __init__(
        self,
        options: CompareOptions,
        prepared: dict[str, PreparedRows],
        done: Callable[[str, float], None],
    ) -> None:
        self.options, self.prepared, self.done = options, prepared, done
        self.family, names = options.family, options.names
        some = next(iter(prepared.values()))
        self.target = some.target
        self.parts = RowParts(np.asarray(some.store.is_held), options.fit.seed)
        if not len(self.parts.choose) or not len(self.parts.measure):
            raise DataError("no rows are kept aside to measure", hint="keep more aside")
        out = {"bayes"} if self.target.task == "regress" else {"ridge"}
        self.left_out = {
            name: f"does not predict {'numbers' if 'bayes' in out else 'classes'}"
            for name in names
            if name in out
        }
        self.names = [name for name in names if name not in out]
        if not self.names:
            name, why = next(iter(self.left_out.items()))
            raise ConfigError(f"{name} {why}", hint="compare other learners")
        self.found: dict[str, ComparedLearner] = {}

    def run(self) -> ComparedTable:
        """Run rounds until the time is over or all rows were learned from."""
        for name in self.names:
            self._warm_up(name)
        begun_s, most, count = time.perf_counter(), len(self.parts.learn), _FIRST_ROWS
        while True:
            # The last round takes all rows, also where they are not twice as many.
            count = most if 1.5 * count > most else count
            fitted = [name for name in self.names if self._fits(name, count, begun_s)]
            if count == most or (not fitted and self.found):
                break
            count *= _GROWTH
        ranked = sorted(self.found.values(), key=lambda item: item.loss)
        for name in self.names:
            if name not in self.found:
                self.left_out[name] = "the time was over"
        warnings = [line for rows in self.prepared.values() for line in rows.warnings]
        # Columns that features leave out are told once, not as constant codes again.
        out = {line.removesuffix(": left out") for line in warnings}
        some = self.prepared.get("codes") or next(iter(self.prepared.values()))
        return ComparedTable(
            learners=ranked,
            rows=most,
            measured=len(self.parts.measure),
            left_out=self.left_out,
            warnings=[
                line
                for line in dict.fromkeys(warnings + column_warnings(some))
                if line not in out or line in warnings
            ],
            took_s=time.perf_counter() - begun_s,
        )

    def _warm_up(self, name: str) -> None:
        """Fit a learner once: kernels are compiled before time is taken."""
        self.done(f"{name}: kernels", 0.0)
        rows = sampled(self.prepared[self.family[name].needs], self.parts, _FIRST_ROWS)
        with suppress(DataError):
            self.family[name].fit(rows.job(self.options.fit)).scores(part_of(rows.store, _TWO))

    def _fits(self, name: str, count: int, begun_s: float) -> bool:
        """Fit a learner to a sample if the time allows it."""
        now_s, before = time.perf_counter() - begun_s, self.found.get(name)
        if before is not None:
            # It had no time for the last sample: the next one is larger.
            if before.rows * 2 * _GROWTH <= count:
                return False
            growth = (count / before.rows) ** _STEEPNESS
            if now_s + before.turn_s * growth > self.options.time_s:
                return False
        elif now_s > self.options.time_s and self.found:
            return False
        rows = sampled(self.prepared[self.family[name].needs], self.parts, count)
        self.done(f"{name} of {count:,} rows", min(now_s / self.options.time_s, 1.0))
        fit_s = time.perf_counter()
        try:
            learner = self.family[name].fit(rows.job(self.options.fit))
        except DataError as error:
            # A small sample may lack a class; the next one is larger.
            self.left_out[name] = str(error)
            return count < len(self.parts.learn)
        took_s = time.perf_counter() - fit_s
        self.left_out.pop(name, None)
        model = TableModel(inputs=rows.inputs, target=self.target, learner=learner)
        store = self.prepared[self.family[name].needs].store
        losses, scores = [], np.empty((1, 0), np.float32)
        for places in (self.parts.choose, self.parts.measure):
            scores = learner.scores(part_of(store, places))
            losses.append(self._loss(scores, store.targets[places]))
        points = [] if before is None else before.points
        self.found[name] = ComparedLearner(
            name=name,
            model=model,
            rows=count,
            fit_s=took_s,
            turn_s=time.perf_counter() - fit_s,
            loss=losses[0],
            scores=scored(self.target, store.targets[self.parts.measure], scores),
            points=[*points, (count, losses[1])],
        )
        return True

    def _loss(self, scores: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
        """Return the loss of scores: log loss, or root mean square error."""
        loss = mean_loss(self.target, np.asarray(truth), scores)
        return float(np.sqrt(loss)) if self.target.task == "regress" else loss
