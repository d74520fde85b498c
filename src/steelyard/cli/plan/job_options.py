"""Options that name a training job: model, machines, layout and batch."""

from dataclasses import dataclass
from typing import Literal

import cyclopts

from steelyard import catalog
from steelyard.cli.output import Switch
from steelyard.cli.plan.step_options import StepOptions
from steelyard.cli.plan.train import check_one
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError, SteelyardError, merged
from steelyard.plan.machines import machines_of
from steelyard.sim.step.training import TrainingStep

__all__ = ["MOST_PASSES", "JobOptions"]

MOST_PASSES = 300_000

ScheduleName = Literal["1f1b", "gpipe", "zero-bubble"]


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A training job.

    Args:
        model: catalog name of a dense decoder.
        cluster: catalog name of the cluster, or this-machine.
        accelerator: catalog name of an accelerator, in place of a cluster.
        pipeline: ranks of the pipeline.
        tensor: accelerators that a layer is split over, with sequence parallelism.
        data: replicas, which share optimizer states.
        chunks: stages per rank; several make 1f1b interleaved.
        micro_batches: micro-batches per step and replica.
        micro_batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        schedule: order of the passes: 1f1b, gpipe or zero-bubble.
        recompute: run each forward pass again before its backward pass.
        dtype: number format of the products; bf16 on published accelerators when empty.
    """

    model: str
    cluster: str = ""
    accelerator: str = ""
    pipeline: int = 1
    tensor: int = 1
    data: int = 1
    chunks: int = 1
    micro_batches: int = 1
    micro_batch: int = 1
    sequence_length: int = 2048
    schedule: ScheduleName = "1f1b"
    recompute: Switch = False
    dtype: str = ""

    @property
    def num_passes(self) -> int:
        """Forward passes of all ranks in a step."""
        return self.pipeline * self.chunks * self.micro_batches

    def step(self, options: StepOptions, *more: SteelyardError) -> TrainingStep:
        """Return the step that the job runs.

        Args:
            options: overlaps and the model's block.
            *more: what else is wrong with the verb's options.

        Returns:
            Model, machine and layout.

        Raises:
            ConfigError: names every wrong option.
        """
        check_one(self.cluster, self.accelerator)
        options.check()
        wrong = [*self._wrong(), *more]
        if wrong:
            raise merged(wrong)
        return TrainingStep(
            pipeline=self.pipeline,
            tensor=self.tensor,
            data=self.data,
            num_chunks=self.chunks,
            num_micro_batches=self.micro_batches,
            micro_batch=self.micro_batch,
            sequence_length=self.sequence_length,
            schedule=self.schedule,
            recompute=self.recompute,
            **options.settings(catalog.architecture_by_name(self.model), self._machine()),
        )

    def _wrong(self) -> list[SteelyardError]:
        """List sizes below 1, and a pipeline too large to simulate."""
        names = ("pipeline", "tensor", "data", "chunks", "micro_batches", "micro_batch")
        options = {
            f"--{name.replace('_', '-')}": getattr(self, name)
            for name in (*names, "sequence_length")
        }
        wrong: list[SteelyardError] = [
            ConfigError(f"{name} is {size}, but must be at least 1", hint=f"change {name}")
            for name, size in options.items()
            if size < 1
        ]
        if self.num_passes > MOST_PASSES:
            wrong.append(
                ConfigError(
                    f"--pipeline x --chunks x --micro-batches is {self.num_passes:,}, but at most "
                    f"{MOST_PASSES:,} are simulated",
                    hint="use fewer micro-batches: each further one lasts as long as the last",
                )
            )
        return wrong

    def _machine(self) -> Machine:
        """Return the accelerator with its links; a cluster must have as many."""
        count = self.tensor * self.pipeline * self.data
        found = machines_of(
            cluster=self.cluster,
            accelerator=self.accelerator,
            # A cluster has the nodes that it has; an accelerator alone gets as many as are asked.
            count=count if self.accelerator else 0,
            dtype=self.dtype,
        )
        most = found.cluster.num_nodes * found.cluster.accelerators_per_node
        if count > most:
            raise ConfigError(
                f"--tensor x --pipeline x --data is {count:,}, but {found.cluster.name} has "
                f"{most:,} accelerators",
                hint="use fewer, or name an accelerator with --accelerator",
            )
        if found.calibrated:
            return found.calibrated[0]
        return Machine.from_accelerator(found.accelerator, dtype=found.dtype, cluster=found.cluster)
