"""A pipeline while it is fitted: which steps are known, and what the next pass learns."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.pack import Pack, write_pack
from steelyard.data.pipeline.codec import packed_steps, unpacked_steps
from steelyard.data.pipeline.kinds import FITTED
from steelyard.data.pipeline.staging import Learning, Stage, StageFold, next_stage
from steelyard.data.pipeline.step import FittedStep, PipelineStep
from steelyard.data.stages import hash_of
from steelyard.data.table.row_folds import RowCountFold
from steelyard.data.table.selecting import narrowed
from steelyard.data.table.sources import stamp_of
from steelyard.data.table.work import scan_work
from steelyard.errors import CapacityError, ConfigError
from steelyard.units import parse, pretty

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["Passing", "PipelineFitting", "read_for"]

_COPIES = 4
"""How often the states of rows are in memory while parts are merged and looked through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """How passes are made.

    Attributes:
        memory: most bytes that rows and states may take, such as "200MB"; None for no bound.
        workers: processes.
        cluster: Ray address; empty for this machine.
    """

    memory: str | float | None = None
    workers: int = 1
    cluster: str = ""


class PipelineFitting:
    """A pipeline of which some steps are known.

    Attributes:
        known: fitted steps by place.
        warnings: what is odd about columns, in words.
        rows: rows of the last pass.
        scans: passes so far.
        read_bytes: bytes that they have read.
    """

    def __init__(
        self, steps: Sequence[PipelineStep], table: "DataTable", journal: Path | None = None
    ) -> None:
        """Begin.

        Args:
            steps: steps in order.
            table: training rows.
            journal: folder that keeps what is finished.

        Raises:
            ConfigError: there is no step.
        """
        if not steps:
            raise ConfigError("a pipeline needs a step")
        self._steps, self._table, self._journal = steps, table, journal
        self.known: dict[int, FittedStep] = {}
        self.warnings: list[str] = []
        self.rows = self.scans = self.read_bytes = 0

    def next(self) -> Stage | None:
        """Return the next pass; None when all steps are known."""
        while len(self.known) < len(self._steps):
            stage, found = next_stage(self._steps, self.known, self._table.schema)
            self.take(found)
            if stage.learning:
                return stage
            # The first step that is not known could always learn.
            assert found
        return None

    def take(self, found: Mapping[int, FittedStep]) -> None:
        """Take in steps that are known now."""
        self.known |= found
        for place, step in found.items():
            told = getattr(step, "warnings", ())
            self.warnings += [f"step {place + 1}: {line}" for line in told]

    def steps_known(self) -> tuple[FittedStep, ...]:
        """Return all steps in order."""
        return tuple(self.known[place] for place in range(len(self._steps)))

    def run(self, stage: Stage, passing: Passing, done: Callable[[int], None]) -> None:
        """Read the table once, and let the steps of a pass learn.

        Args:
            stage: the pass.
            passing: how it is made.
            done: is told the bytes of each part that is finished.

        Raises:
            CapacityError: the budget does not hold what is kept of each row.
        """
        fold, table = StageFold(stage), read_for(self._table, stage)
        self.scans += 1
        kept = self._kept_path(fold.name)
        if kept is not None and kept.exists():
            self._take_kept(kept, stage)
            return
        folded = table.fold(
            fold,
            RowCountFold(),
            memory=_left(table, fold, passing.memory),
            workers=passing.workers,
            cluster=passing.cluster,
            journal=self._parts(table),
            done=done,
        )
        self.rows = folded.rows
        self.read_bytes += folded.quarantine.reads.num_bytes
        found = self._learned(stage, table, folded.results[fold.name])
        if kept is not None:
            self._keep(kept, found)
        self.take(found)

    def _learned(
        self, stage: Stage, table: "DataTable", results: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, FittedStep]:
        """Return the steps of a pass, as learned."""
        schema = table.schema
        found: dict[int, FittedStep] = {}
        for item in stage.items:
            if isinstance(item, Learning):
                found[item.place] = item.step.fitted(item.columns, schema, results[item.place])
            else:
                schema = item.schema(schema)
        return found

    def _parts(self, table: "DataTable") -> Path | None:
        """Return the folder for finished parts; a table with steps has no journal."""
        is_plain = not table.steps and table.source is None
        return self._journal / f"pass-{self.scans}" if self._journal and is_plain else None

    def _kept_path(self, name: str) -> Path | None:
        """Return the file of what a pass learned, the same for the same rows and steps."""
        if self._journal is None or self._table.frame is not None or self._table.steps:
            return None
        files = [[item.path, stamp_of(item.path)] for item in self._table.files]
        return self._journal / f"{hash_of([name, files])[:16]}.pack"

    def _keep(self, path: Path, found: Mapping[int, FittedStep]) -> None:
        """Write what a pass learned."""
        told, sections = packed_steps(list(found.values()))
        about = {"places": list(found), "steps": told, "rows": self.rows}
        raw = np.frombuffer(json.dumps(about).encode(), np.uint8)
        write_pack(path, {"about": raw} | sections)

    def _take_kept(self, path: Path, stage: Stage) -> None:
        """Take in what a pass learned before a kill."""
        pack = Pack.open(path)
        about = json.loads(pack["about"].tobytes())
        steps = unpacked_steps(about["steps"], pack.sections(), FITTED, str(path))
        self.rows = about["rows"]
        self.take(dict(zip(about["places"], steps, strict=True)))


def _left(table: "DataTable", fold: StageFold, memory: str | float | None) -> float | None:
    """Return what a budget leaves beside what is kept of each row."""
    if memory is None:
        return None
    budget = parse(memory, "byte") if isinstance(memory, str) else float(memory)
    width = sum(getattr(own, "row_bytes", 0) for item in fold.stage.learning for own in item.folds)
    if not width:
        return budget
    rows = sum(work.rows for work in scan_work(table, is_profiled=False))
    grown = _COPIES * width * rows
    if grown > budget / 2:
        raise CapacityError(
            f"memory: {pretty(budget, 'byte')} do not hold {width} bytes for each of about "
            f"{rows:,.0f} rows, which a search for duplicates keeps",
            hint=f"give {pretty(2.1 * grown, 'byte')}, or leave the search out",
        )
    return budget - grown


def read_for(table: "DataTable", stage: Stage) -> "DataTable":
    """Return a table with the columns alone that a pass needs, its rows numbered if it needs that.

    Args:
        table: the table.
        stage: the pass.

    Returns:
        The table.
    """
    needed: DataTable = narrowed(table, stage.reads)
    return needed.with_row_numbers() if stage.needs_rows else needed
