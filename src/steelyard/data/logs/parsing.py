"""Parsed logs: which template each line has, written as a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.logs.counting import ShapeCounts
from steelyard.data.logs.fold import FoldedTemplates, TemplateFold, with_content
from steelyard.data.logs.reading import LogTable
from steelyard.data.logs.templates import TemplateSet
from steelyard.errors import require
from steelyard.files import atomic_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["ParseSettings", "ParsedLog", "find_templates", "parsed_batches", "write_parsed"]

_SLICES = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class ParseSettings:
    """How logs are read: what a recipe holds.

    Attributes:
        format: header of the lines, or the name of a known one; "" for none, None to look for it.
        seeds: texts of templates that are known, <*> where a variable stands.
        workers: processes that read parts of the logs.
        cluster: address of a Ray cluster; empty for this machine.
    """

    format: str | None = None
    seeds: tuple[str, ...] = ()
    workers: int = 1
    cluster: str = ""

    def __post_init__(self) -> None:
        """Refuse a number of processes below one."""
        require(self, workers=(self.workers >= 1, "1 or more"))


@dataclass(frozen=True)
class ParsedLog:
    """A log's templates and where their lines stand.

    Attributes:
        templates: templates of the lines.
        counts: lines of each template in these files, [templates].
        unmatched: lines that no template has, those without a header among them.
        problems: lines by what is wrong with them.
        timeline: lines of each template in each of at most 60 equal parts of the log, in the order
            of its lines, [templates, parts].
        lines: lines of the files.
    """

    templates: TemplateSet
    counts: NDArray[np.int64]
    unmatched: int
    problems: dict[str, int]
    timeline: NDArray[np.int64]
    lines: int


def find_templates(
    table: LogTable,
    *,
    seeds: "Sequence[str]" = (),
    known: ShapeCounts | None = None,
    workers: int = 1,
    cluster: str = "",
    journal: Path | None = None,
) -> tuple[FoldedTemplates, int]:
    """Return the templates of a log, and its lines.

    Args:
        table: the log.
        seeds: texts of templates that are known.
        known: an earlier state that the lines are added to.
        workers: processes; templates do not depend on their number.
        cluster: address of a Ray cluster that the lines are read on; empty for this machine.
        journal: folder that keeps finished parts; a run that was killed goes on there.

    Returns:
        Templates with the lines that have something wrong, and all lines.
    """
    fold = TemplateFold(seeds=tuple(seeds), known=known)
    folded = table.fold(fold, workers=workers, cluster=cluster, journal=journal)
    return folded.results[fold.name], folded.rows


def parsed_batches(
    table: LogTable, templates: TemplateSet
) -> Iterator[tuple["pa.RecordBatch", NDArray[np.int32]]]:
    """Yield the lines of a log as rows with their templates.

    Args:
        table: the log.
        templates: made of it, or of another one.

    Yields:
        Rows with columns `file`, `line`, the fields of the header, `Content`, `problem`,
        `template_id` (missing for a line without one), `template` and `parameters` (a list, missing
        where the line does not read as its template), and the template numbers, [rows].
    """
    import pyarrow as pa

    texts = pa.array(templates.texts, pa.string())
    for path, batch in table.batches():
        column = with_content(batch)
        numbers = templates.assign(column)
        places = pa.array(numbers, pa.int32(), mask=numbers < 0)
        contents = column.to_pylist()
        parameters = [
            None if text is None or number < 0 else templates.parameters(text, number)
            for text, number in zip(contents, numbers.tolist(), strict=True)
        ]
        columns: dict[str, Any] = {"file": pa.array([path] * len(batch), pa.string())}
        columns |= {name: batch[name] for name in batch.schema.names}
        columns["template_id"] = places
        columns["template"] = texts.take(places)
        columns["parameters"] = pa.array(parameters, pa.list_(pa.string()))
        yield pa.RecordBatch.from_pydict(columns), numbers


def write_parsed(
    table: LogTable, found: FoldedTemplates, lines: int, path: Path | None = None
) -> ParsedLog:
    """Count the templates of a log's lines, and write the lines as a table.

    Args:
        table: the log.
        found: its templates.
        lines: lines of the log.
        path: Parquet file to write; None only counts.

    Returns:
        The counts.

    Raises:
        DataError: the log has changed, or the file cannot be written.
    """
    templates = found.templates
    timeline = np.zeros((len(templates.texts), min(_SLICES, max(lines, 1))), np.int64)
    done = unmatched = 0
    with _Parquet(path) as writer:
        for batch, numbers in _batches(table, templates, with_rows=path is not None):
            if batch is not None:
                writer.write(batch)
            places = (done + np.arange(len(numbers))) * timeline.shape[1] // max(lines, 1)
            is_known = numbers >= 0
            # A log that grows between the passes has lines beyond the last part.
            last = np.minimum(places[is_known], timeline.shape[1] - 1)
            np.add.at(timeline, (numbers[is_known], last), 1)
            unmatched += int((~is_known).sum())
            done += len(numbers)
    return ParsedLog(templates, timeline.sum(axis=1), unmatched, found.problems, timeline, done)


def _batches(
    table: LogTable, templates: TemplateSet, *, with_rows: bool
) -> "Iterator[tuple[pa.RecordBatch | None, NDArray[np.int32]]]":
    if with_rows:
        yield from parsed_batches(table, templates)
        return
    for _, batch in table.batches():
        yield None, templates.assign(with_content(batch))


class _Parquet:
    """Writes batches to a file that appears when it is whole; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._writer: Any = None

    def __enter__(self) -> "_Parquet":
        if self._path is not None:
            self._atomic = atomic_path(self._path)
            self._beside = self._atomic.__enter__()
        return self

    def write(self, batch: "pa.RecordBatch") -> None:
        """Add rows."""
        from pyarrow import parquet

        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._beside, batch.schema, compression="zstd")
        self._writer.write_batch(batch)

    def __exit__(self, *raised: Any) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._path is not None:
            self._atomic.__exit__(*raised)
