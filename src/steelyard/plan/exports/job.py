"""The job that a plan chose, as exports write it: model, batch, steps and layout."""

from dataclasses import dataclass, fields
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.config import convert
from steelyard.cost.layout import STATE_STAGES, Layout
from steelyard.errors import ConfigError, InfeasibleError, require

__all__ = ["Arrangement", "TrainingJob", "beyond", "refuse", "shards_of", "shared_by"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement:
    """A layout of plain values with its batch: what every engine's settings are read back to.

    Attributes:
        layout: degrees of parallelism and memory policies.
        micro_batch: sequences per micro-batch and replica.
        accumulation: micro-batches per step and replica.
    """

    layout: Layout
    micro_batch: int = 1
    accumulation: int = 1

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.layout.data * self.micro_batch * self.accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """A training job.

    Attributes:
        architecture: shape of the model.
        arrangement: how it lies over accelerators.
        sequence_length: tokens per sequence.
        steps: optimizer steps.
        learning_rate: peak rate.
        dtype: number format of the products.
        per_node: accelerators of a node.
    """

    architecture: Architecture
    arrangement: Arrangement
    sequence_length: int
    steps: int
    learning_rate: float
    dtype: str
    per_node: int

    def __post_init__(self) -> None:
        """Refuse nodes that the layout does not fill.

        Raises:
            ConfigError: the accelerators are no whole nodes.
        """
        count = self.num_accelerators
        require(
            self,
            # Launchers start equally many processes on every node: several nodes have to be full.
            per_node=(
                self.per_node >= 1 and (count < self.per_node or count % self.per_node == 0),
                f"at least 1, and a divisor of the layout's {count} accelerators",
            ),
        )

    @classmethod
    def of(cls, choice: dict[str, Any], *, per_node: int) -> "TrainingJob":
        """Return the job of a plan's choice.

        Args:
            choice: settings, as `plan_training` chose them (`Plan.choice`).
            per_node: accelerators of a node.

        Returns:
            The job.

        Raises:
            ConfigError: a setting is missing, or the nodes are not filled.
        """
        wanted = ("architecture", "sequence_length", "steps", "learning_rate", "dtype")
        batch = ("micro_batch", "accumulation")
        # A plan to serve or place has a choice too, but not of these.
        missing = [name for name in (*wanted, *batch) if name not in choice]
        if missing:
            raise ConfigError(
                f"the plan lacks {', '.join(missing)}", hint="export what plan_training returned"
            )
        names = {item.name for item in fields(Layout)}
        return cls(
            architecture=convert(choice["architecture"], Architecture, where="architecture"),
            arrangement=Arrangement(
                # What a plan does not decide keeps the default of the cost model that timed it.
                layout=Layout(**{name: choice[name] for name in names & set(choice)}),
                micro_batch=choice["micro_batch"],
                accumulation=choice["accumulation"],
            ),
            per_node=per_node,
            **{name: choice[name] for name in wanted[1:]},
        )

    @property
    def layout(self) -> Layout:
        """Degrees of parallelism and memory policies."""
        return self.arrangement.layout

    @property
    def num_accelerators(self) -> int:
        """Accelerators that the job occupies."""
        return int(self.layout.num_accelerators)

    @property
    def num_nodes(self) -> int:
        """Nodes of the job."""
        return max(1, self.num_accelerators // self.per_node)

    @property
    def processes_per_node(self) -> int:
        """Processes of a node, one for each accelerator."""
        return min(self.per_node, self.num_accelerators)


def shared_by(layout: Layout) -> int | None:
    """Return how many replicas share each state that a layout shards.

    Args:
        layout: plain values.

    Returns:
        Replicas; 0 for all of them, and None where kinds of state are shared by different ones.
    """
    sizes = {
        name: getattr(layout, f"{name.removesuffix('s')}_shards")
        for name, least in STATE_STAGES.items()
        if layout.zero_stage >= least
    }
    named = {layout.weight_shards, layout.gradient_shards, layout.optimizer_shards} - {0}
    alike = len({*sizes.values()}) <= 1 and named <= {*sizes.values()}
    return next(iter(sizes.values()), 0) if alike else None


def shards_of(zero_stage: int, size: int) -> dict[str, int]:
    """Return the fields of a layout whose states are shared by groups of one size.

    Args:
        zero_stage: what is sharded.
        size: replicas of a group; 0 for all.

    Returns:
        Replicas by field.
    """
    return {
        f"{name.removesuffix('s')}_shards": size
        for name, least in STATE_STAGES.items()
        if zero_stage >= least
    }


def beyond(layout: Layout, said: set[str]) -> list[str]:
    """Name the settings of a layout that an engine has no word for.

    Args:
        layout: plain values.
        said: fields that the engine's settings say; "shards" stands for groups of one size.

    Returns:
        Each other field that differs from its default, with its value.
    """
    # States that all share alike are one setting, not three.
    said = said | (
        {*shards_of(3, 0)} if "shards" in said and shared_by(layout) is not None else set()
    )
    # An engine would run its own default for what it is not told: not the layout that was timed.
    plain = Layout()
    return [
        f"{item.name} = {getattr(layout, item.name)!r}"
        for item in fields(Layout)
        if item.name not in said and getattr(layout, item.name) != getattr(plain, item.name)
    ]


def refuse(engine: str, lacks: list[str]) -> None:
    """Refuse a job that needs what an engine lacks.

    Args:
        engine: name of the engine.
        lacks: what the job needs and the engine lacks.

    Raises:
        InfeasibleError: there is something that it lacks.
    """
    if lacks:
        raise InfeasibleError(
            f"{engine} cannot run this plan: it has no {'; no '.join(lacks)}",
            hint="choose another layout, or export for another engine",
        )
