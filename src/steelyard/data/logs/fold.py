"""Templates of a table of lines in one pass, with any number of workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute
from steelyard.data.logs.counting import ShapeCounts
from steelyard.data.logs.reading import CONTINUED, INVALID, UNFORMATTED
from steelyard.data.logs.templates import TemplateSet

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FoldedTemplates", "TemplateFold", "with_content"]

_PROBLEMS = (CONTINUED, UNFORMATTED, INVALID)


@dataclass(frozen=True)
class FoldedTemplates:
    """What one pass over lines found.

    Attributes:
        templates: templates of the lines that have a header, or of all lines where there is no
            `problem`.
        problems: lines by what is wrong with them; those of invalid UTF-8 have templates too.
    """

    templates: TemplateSet
    problems: dict[str, int]


@dataclass
class _Lines:
    """Shapes, and lines of each problem, [3]."""

    shapes: ShapeCounts
    problems: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TemplateFold:
    """Finds the templates of a column of text; the same ones however its rows are split.

    Attributes:
        column: the text.
        seeds: texts of templates that are known.
        known: an earlier state that the lines are added to.
        most_shapes: shapes to keep, which bounds the state.
    """

    column: str = "Content"
    seeds: Sequence[str] = ()
    known: ShapeCounts | None = None
    most_shapes: int = 50_000

    @property
    def name(self) -> str:
        """Return what it is called in results."""
        return "templates" if self.column == "Content" else f"templates of {self.column}"

    def init(self, schema: "pa.Schema") -> _Lines:
        """Return the state before any line."""
        del schema
        return _Lines(ShapeCounts(self.most_shapes), np.zeros(len(_PROBLEMS), np.int64))

    def update(self, state: _Lines, batch: "pa.RecordBatch") -> None:
        """Take lines in."""
        state.shapes.update(with_content(batch, self.column))
        if "problem" in batch.schema.names:
            for place, name in enumerate(_PROBLEMS):
                state.problems[place] += _count(batch["problem"], name)

    def merge(self, state: _Lines, later: _Lines) -> None:
        """Take in the state of other lines."""
        state.shapes.merge(later.shapes)
        state.problems += later.problems

    def finish(self, state: _Lines) -> FoldedTemplates:
        """Return the templates."""
        shapes = ShapeCounts.of(state.shapes.sections())
        if self.known is not None:
            shapes.merge(self.known)
        counts = dict(zip(_PROBLEMS, state.problems.tolist(), strict=True))
        found = {name: count for name, count in counts.items() if count}
        return FoldedTemplates(TemplateSet(shapes, self.seeds), found)

    def sections(self, state: _Lines) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return state.shapes.sections() | {"problems": state.problems}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> _Lines:
        """Return the state of such arrays."""
        del schema
        return _Lines(ShapeCounts.of(sections), sections["problems"].copy())


def _count(column: "pa.Array", value: str) -> int:
    return int(compute().sum(compute().equal(column, value)).as_py() or 0)


def with_content(batch: "pa.RecordBatch", column: str = "Content") -> "pa.Array":
    """Return the text of rows, missing where a line has no header and so no template.

    Args:
        batch: rows.
        column: the text.

    Returns:
        Arrow text, [rows].
    """
    import pyarrow as pa

    text = batch[column].cast(pa.string())
    if "problem" not in batch.schema.names:
        return text
    has_none = compute().is_in(batch["problem"], pa.array([CONTINUED, UNFORMATTED]))
    return compute().if_else(has_none, pa.scalar(None, pa.string()), text)
