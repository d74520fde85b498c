"""Steps that are fitted in as few passes as they allow, and then applied to any table."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.pack import Pack, write_pack
from steelyard.data.pipeline.codec import key_of, packed_steps, unpacked_steps
from steelyard.data.pipeline.fitting import Passing, PipelineFitting
from steelyard.data.pipeline.kinds import FITTED
from steelyard.data.pipeline.staging import applied
from steelyard.data.pipeline.step import FittedStep, PipelineStep
from steelyard.data.stages import hash_of
from steelyard.data.table.fitting import ROW
from steelyard.data.table.quarantine import Quarantine
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["LINEAGE", "FittedPipeline", "Pipeline", "TransformStep"]

LINEAGE = b"steelyard.pipeline"
"""Key of the metadata of columns that a pipeline made: a hash of the pipeline."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class TransformStep:
    """Applies fitted steps to batches, and sets rows aside.

    Attributes:
        steps: steps that are known, in order.
        schema: columns of the result.
        training: whether rows are those that the steps were fitted on.
    """

    steps: tuple[FittedStep, ...]
    schema: "pa.Schema"
    training: bool = False

    def __call__(
        self, batch: "pa.RecordBatch", path: str, quarantine: Quarantine
    ) -> "pa.RecordBatch":
        """Return a batch after all steps.

        Args:
            batch: rows; their numbers are in `ROW` where a step sets rows aside.
            path: their file.
            quarantine: takes rows that are set aside.

        Returns:
            The rows that are left, with the columns of `schema`.
        """
        import pyarrow as pa

        given = {"training": self.training, "path": path, "quarantine": quarantine}
        for step in self.steps:
            batch = applied(step, batch, **given)
        names = self.schema.names
        return pa.RecordBatch.from_arrays([batch[name] for name in names], schema=self.schema)


@dataclass(frozen=True, kw_only=True)
class FittedPipeline:
    """Steps that know what they had to learn.

    Attributes:
        steps: fitted steps in order.
        rows: rows they were fitted on.
        scans: passes over the table that took.
        read_bytes: bytes that were read in them.
        warnings: what is odd about columns, in words.
        needs_rows: whether steps need the numbers of rows.
    """

    steps: tuple[FittedStep, ...]
    rows: int = 0
    scans: int = 0
    read_bytes: int = 0
    warnings: tuple[str, ...] = ()
    needs_rows: bool = False

    @property
    def key(self) -> str:
        """A hash of all that the steps do: 16 hexadecimal digits."""
        return hash_of([key_of(step) for step in self.steps])[:16]

    def transform(self, table: "DataTable", *, training: bool = False) -> "DataTable":
        """Return a table after all steps; rows are read when they are needed.

        Rows that a step sets aside go to the quarantine of whoever reads the table.

        Args:
            table: has the columns that the steps read.
            training: whether its rows are those that the pipeline was fitted on: duplicates are
                then set aside, and target encoding leaves out what it learned from a row's fold.

        Returns:
            The table; its columns carry the pipeline's `key` as metadata.

        Raises:
            ConfigError: a column is missing.
        """
        numbered = table.with_row_numbers() if self.needs_rows else table
        schema = numbered.schema
        for place, step in enumerate(self.steps):
            wanted = (*step.columns, *(getattr(step, "others", ()) if training else ()))
            if missing := [name for name in wanted if name not in schema.names]:
                raise ConfigError(
                    f"step {place + 1} ({type(step).__name__}) needs the column {missing[0]!r}",
                    hint=f"columns are {', '.join(name for name in schema.names if name != ROW)}",
                )
            schema = step.schema(schema)
        if ROW in schema.names:
            schema = schema.remove(schema.get_field_index(ROW))
        lineage = f"{self.key}{'-training' if training else ''}"
        schema = schema.with_metadata({LINEAGE: lineage.encode()})
        return numbered.remade(TransformStep(self.steps, schema, training), schema)

    def save(self, path: Path) -> None:
        """Write the pipeline to a file of arrays and plain values.

        Args:
            path: the file; an older one is replaced at the end.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        told, sections = packed_steps(self.steps)
        about = {
            "version": _VERSION,
            "kind": "pipeline",
            "steps": told,
            "rows": self.rows,
            "scans": self.scans,
            "warnings": list(self.warnings),
            "needs_rows": self.needs_rows,
        }
        raw = np.frombuffer(json.dumps(about).encode(), np.uint8)
        write_pack(path, {"about": raw} | sections)

    @classmethod
    def open(cls, path: Path) -> "FittedPipeline":
        """Read a pipeline.

        Args:
            path: file of `save`.

        Returns:
            The pipeline.

        Raises:
            DataError: the file is no pipeline, of another version, or damaged.
        """
        pack = Pack.open(path)
        about = json.loads(pack["about"].tobytes()) if pack.find("about") is not None else {}
        if about.get("kind") != "pipeline":
            raise DataError(
                f"{path} is no pipeline", hint="fit one: steelyard data table transform"
            )
        if about["version"] != _VERSION:
            raise DataError(f"{path} is of version {about['version']}, this reads {_VERSION}")
        return cls(
            steps=tuple(unpacked_steps(about["steps"], pack.sections(), FITTED, str(path))),
            rows=about["rows"],
            scans=about["scans"],
            warnings=tuple(about["warnings"]),
            needs_rows=about["needs_rows"],
        )


@dataclass(frozen=True)
class Pipeline:
    """Steps in the order in which they are applied.

    Attributes:
        steps: the steps.
    """

    steps: Sequence[PipelineStep] = field(default=())

    def fit(
        self,
        table: "DataTable",
        *,
        memory: str | float | None = None,
        workers: int = 1,
        cluster: str = "",
        journal: Path | None = None,
        done: Callable[[int, int], None] = lambda _scan, _bytes: None,
    ) -> FittedPipeline:
        """Learn what the steps need from a table, which should hold training rows alone.

        Steps that do not wait for one another's results learn in the same pass, and passes read
        the columns alone that they need. Results do not depend on the number of workers.

        Args:
            table: training rows.
            memory: most bytes that rows and states may take, such as "200MB"; None for no bound.
            workers: processes.
            cluster: Ray address; empty for this machine.
            journal: folder that keeps what is finished; a call that was killed goes on there.
            done: is told the pass, from 1, and the bytes of each part that is finished in it.

        Returns:
            The fitted pipeline.

        Raises:
            ConfigError: a step does not fit the columns that it meets.
            DataError: a file cannot be read, or a step can learn nothing.
            CapacityError: the budget does not hold one part of the table with the states.
        """
        fitting = PipelineFitting(self.steps, table, journal)
        passing = Passing(memory=memory, workers=workers, cluster=cluster)
        while (stage := fitting.next()) is not None:
            scan = fitting.scans + 1
            fitting.run(stage, passing, lambda num_bytes, scan=scan: done(scan, num_bytes))
        return FittedPipeline(
            steps=fitting.steps_known(),
            rows=fitting.rows,
            scans=fitting.scans,
            read_bytes=fitting.read_bytes,
            warnings=tuple(fitting.warnings),
            needs_rows=any(step.needs_rows or step.rejects for step in self.steps),
        )
