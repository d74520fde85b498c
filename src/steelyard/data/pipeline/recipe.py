"""A pipeline in a TOML file: the split that it is fitted on, and its steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.config import convert, load
from steelyard.data.pipeline.kinds import STEPS
from steelyard.data.pipeline.pipeline import Pipeline
from steelyard.data.table.splitting import TableSplit, split_stratified, split_time
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["PipelineRecipe", "SplitRule", "pipeline_of", "read_recipe"]


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """Which rows are learned from.

    Attributes:
        shares: share by name, which add up to at most 1; the first one is learned from.
        by: columns of the key, whose equal values stay together; empty for whole rows.
        stratify: column of classes of which each share has its part; empty for none.
        time: column of times: the first share holds the earliest rows; empty for none.
        seed: changes which keys go where.
    """

    shares: dict[str, float] = field(default_factory=lambda: {"train": 0.8, "test": 0.2})
    by: tuple[str, ...] = ()
    stratify: str = ""
    time: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse two ways at once.

        Raises:
            ConfigError: there are both, or time and a key.
        """
        if self.time and (self.stratify or self.by):
            raise ConfigError("a split by time has no key and no classes")

    def split(self, table: "DataTable", *, memory: str | None = None) -> TableSplit:
        """Split a table.

        Args:
            table: the table.
            memory: most bytes of a pass that this takes.

        Returns:
            Tables by name.

        Raises:
            ConfigError: shares that cannot be, or no such column.
        """
        if self.time:
            return split_time(table, self.shares, time=self.time, memory=memory)
        if self.stratify:
            given: Mapping[str, Any] = {"by": self.by, "seed": self.seed, "memory": memory}
            return split_stratified(table, self.shares, stratify=self.stratify, **given)
        key = self.by or tuple(table.schema.names)
        return TableSplit(tables=table.split(self.shares, by=key, seed=self.seed))


def pipeline_of(given: Sequence[Mapping[str, Any]]) -> Pipeline:
    """Return the pipeline of plain values, as a recipe has them.

    Args:
        given: for each step its `kind`, one of `STEPS`, and its settings.

    Returns:
        The pipeline.

    Raises:
        ConfigError: a kind or a setting is unknown, or a value cannot be.
    """
    steps = []
    for place, item in enumerate(given):
        where = f"step[{place}]"
        if not isinstance(item, Mapping) or item.get("kind") not in STEPS:
            kind = item.get("kind") if isinstance(item, Mapping) else item
            raise ConfigError(f"{where}: no kind {kind!r}", hint=f"kinds are {', '.join(STEPS)}")
        settings = {name: value for name, value in item.items() if name != "kind"}
        steps.append(convert(settings, STEPS[item["kind"]], where=where))
    return Pipeline(steps)


@dataclass(frozen=True, kw_only=True)
class PipelineRecipe:
    """A pipeline as plain values.

    Attributes:
        step: for each step its `kind` and settings.
        split: which rows are learned from; None for all.
    """

    step: list[dict[str, Any]]
    split: SplitRule | None = None

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline."""
        return pipeline_of(self.step)


def read_recipe(path: Path) -> PipelineRecipe:
    """Read a recipe.

    Args:
        path: TOML file with tables `[[step]]` and, if rows are kept aside, `[split]`.

    Returns:
        The recipe; its steps are checked.

    Raises:
        ConfigError: the file cannot be read, or a step is unknown.
    """
    recipe = load(path, PipelineRecipe)
    _ = recipe.pipeline
    return recipe
