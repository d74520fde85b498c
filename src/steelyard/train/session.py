"""One training run in this process: module, optimizer and history, one step at a time."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor, nn

from steelyard.errors import ConfigError, DataError, DivergedError
from steelyard.nn.fp8.convert import convert
from steelyard.nn.fp8.recipes import Amax
from steelyard.nn.parts.noise import Noise
from steelyard.train import optimizer as optimizers
from steelyard.train import schedules
from steelyard.train.averages import Averages, swapped
from steelyard.train.batch_pilot import BatchPilot
from steelyard.train.batches import Batch, BatchSource, count_examples, micro_batches
from steelyard.train.callback import Callback, StepState
from steelyard.train.checkpoint import Checkpoint, CheckpointStore
from steelyard.train.compilation import CompiledLoss
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.gradients import GradientTree
from steelyard.train.history import History
from steelyard.train.reducer import AloneReducer, Reducer
from steelyard.train.schedule_free import ScheduleFree

__all__ = ["Loss", "Session"]

_COLD_STEPS = 5
_STRICT_STEPS = 3

Loss = Callable[[nn.Module, Batch], Tensor | tuple[Tensor, Tensor]]
"""Returns the mean loss of a batch's examples, a scalar with its graph.

A pair has a second scalar that is trained on too but not reported, such as what modules collected
in the forward pass to balance their experts.
"""


class Session:
    """Module, optimizer, schedule and history of a run, advanced by `step`.

    Attributes:
        config: the run.
        module: what is trained.
        history: what happened up to now.
        averages: averages of the weights that the run keeps.
        pilot: what sets the batch of an adaptive run, None for others.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        batches: BatchSource,
        config: EstimatorConfig,
        *,
        callbacks: Sequence[Callback] = (),
        reducer: Reducer | None = None,
    ) -> None:
        """Make the optimizer; the session stands before step 0.

        Args:
            module: what is trained, with the weights it starts from.
            loss: loss of a micro-batch.
            batches: where batches come from.
            config: the run.
            callbacks: what watches the steps.
            reducer: joins the processes of a step; None for one process.

        Raises:
            ConfigError: a callback cannot watch this run, or the processes cannot share its steps.
        """
        self.config = self._now = config
        if config.dtype == "fp8":
            convert(module, Amax())
        self.module = module.to(config.device).train()
        self.module.zero_grad(set_to_none=True)
        reducer = reducer or AloneReducer()
        self._partition = reducer.partition
        if self._partition is not None:
            self._partition.spread(module, config)
        self.history = History()
        self._loss = CompiledLoss(loss) if config.compile is True else loss
        self._noises = [item for item in module.modules() if isinstance(item, Noise)]
        self._batches = batches
        self._schedule = schedules.for_config(config)
        self.averages = Averages(config.averages)
        self.pilot = BatchPilot(config) if config.adaptive_batch else None
        own = [self.averages] if config.averages else []
        self._callbacks = [*callbacks, *own, *([self.pilot] if self.pilot else [])]
        self.state = StepState(
            module=module,
            parameters={
                name: item for name, item in module.named_parameters() if item.requires_grad
            },
            optimizers=optimizers.make_optimizers(module, config),
            reducer=reducer,
            accumulation=config.accumulation,
            micro_batch_size=config.micro_batch_size,
        )
        if self._partition is not None:
            self._partition.regroup(self.state.optimizers)
        self._check_names()
        self._check_shares()
        self._lay_tree()
        self._steps_here = 0
        for callback in self._callbacks:
            callback.begin(self.state)

    def _check_names(self) -> None:
        """Refuse callbacks whose states and reports would mix."""
        names = [item.name for item in self._callbacks]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"callbacks are named {names}", hint="give every callback a name of its own"
            )

    def _check_shares(self) -> None:
        """Refuse processes that cannot each have the same number of micro-batches."""
        world_size, count = self.state.reducer.world_size, self.config.accumulation
        if count % world_size:
            raise ConfigError(
                f"accumulation is {count}: {world_size} processes cannot share {count} "
                f"micro-batches of a step evenly",
                hint=f"set accumulation to a multiple of {world_size}",
            )

    def _lay_tree(self, *, in_one_group: bool = False) -> None:
        """Choose the order in which a step's gradients are added."""
        self._in_one_group = in_one_group
        self._tree = GradientTree(
            list(self.state.parameters.values()),
            self._now.accumulation,
            self.state.reducer.world_size,
            in_one_group=in_one_group,
        )

    @property
    def steps_done(self) -> int:
        """Optimizer steps behind the current weights."""
        return len(self.history.losses)

    @property
    def is_settled(self) -> bool:
        """Whether this process has trained the steps in which every kind of tensor was made."""
        return self._steps_here >= _STRICT_STEPS

    @property
    def precision(self) -> Callable[[], AbstractContextManager[object]]:
        """Makes the context of a forward pass: autocast for bf16 and fp8, nothing for fp32."""
        if self.config.dtype != "fp32":
            return lambda: torch.autocast(self.config.device.split(":")[0], dtype=torch.bfloat16)
        return contextlib.nullcontext

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.config.learning_rate * float(self._schedule[step])

    def step(self) -> tuple[float, float]:
        """Train one step on the batch of its number.

        Returns:
            Mean loss before the update, and the wall time in seconds.

        Raises:
            DivergedError: the loss is no longer finite.
            DataError: the source gave a batch of another size.
        """
        index = self.steps_done
        start = time.perf_counter()
        count = self.pilot.count(index) if self.pilot else 1
        loss = self._update(index, count)
        seconds = time.perf_counter() - start
        if not math.isfinite(loss):
            raise DivergedError(
                f"training diverged: the loss of step {index + 1} is {loss}",
                hint=f"lower learning_rate = {self.config.learning_rate:g} (a third is a good "
                f"try), or lengthen the warm-up",
            )
        # A step that took several batches stands for as many.
        self.history.losses += count * [loss]
        self.history.step_times_s += count * [seconds / count]
        self.history.cold += count * [self._steps_here < _COLD_STEPS]
        self._steps_here += 1
        return loss, seconds

    def _update(self, index: int, count: int) -> float:
        """Run forward, backward and the optimizer for one batch, or for some at once."""
        state = self.state
        state.step, state.learning_rate = index, self.rate(index)
        if self.pilot is not None:
            assert self.config.adaptive_batch is not None
            state.learning_rate *= self.config.adaptive_batch.factor(count)
            self._take(count)
        loss = self._backward(self._share_of(index))
        state.reducer.sum_gradients(self._tree.parameters)
        for callback in self._callbacks:
            callback.before_update(state)
        if self.config.clip:
            clip = _clip if self._partition is None else self._partition.clip
            clip(self._tree.parameters, self.config.clip)
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = state.learning_rate
            optimizer.step()
        for parameter in self._tree.parameters:
            parameter.grad = None
        for callback in self._callbacks:
            callback.after_update(state)
        return loss

    def _take(self, count: int) -> None:
        """Set the step up for several batches of the recipe."""
        accumulation = count * self.config.accumulation
        if accumulation == self.state.accumulation:
            return
        self.state.accumulation = accumulation
        self._now = replace(
            self.config, accumulation=accumulation, batch_size=count * self.config.batch_size
        )
        self._lay_tree(in_one_group=self._in_one_group)

    def _share_of(self, index: int) -> list[Batch]:
        """Return this process's micro-batches of a step."""
        found: list[Batch] = []
        for number in range(self._now.accumulation // self.config.accumulation):
            found += self._micro_batches(index + number)
        count = self._tree.micro_batches
        first = self.state.reducer.rank * count
        return found[first : first + count]

    def _micro_batches(self, index: int) -> list[Batch]:
        """Return all micro-batches of a batch of the recipe."""
        batch = self._batches.batch(index)
        if count_examples(batch) != self.config.batch_size:
            raise DataError(
                f"batch {index} holds {count_examples(batch)} examples, but batch_size is "
                f"{self.config.batch_size}",
                hint="let the source cut batches of batch_size examples",
            )
        config = self.config
        return list(micro_batches(batch, config.micro_batch_size, config.device))

    def _backward(self, parts: list[Batch]) -> float:
        """Compute the gradients of this process's micro-batches; return the step's mean loss."""
        state, config = self.state, self._now
        watching = [item for item in self._callbacks if item.wants_micro_batches(state.step)]
        losses = []
        for number, part in enumerate(parts):
            state.micro_batch, state.batch = number, part
            self._seed_draws()
            with contextlib.ExitStack() as around:
                for callback in self._callbacks:
                    around.enter_context(callback.watching(state))
                around.enter_context(self.precision())
                found = self._loss(state.module, part)
            loss, *auxiliary = found if isinstance(found, tuple) else (found,)
            state.loss = loss.detach()
            for extra in auxiliary:
                loss = loss + extra
            # Each micro-batch's loss counts by its share: the sum of the gradients is that of the
            # whole batch's mean.
            loss = loss if config.accumulation == 1 else loss / config.accumulation
            # A callback that reads micro-batches must find them unsummed.
            is_last = number == len(parts) - 1 and not watching
            with state.reducer.overlapped(self._tree) if is_last else contextlib.nullcontext():
                loss.backward()
            losses.append(state.loss / config.accumulation)
            for callback in watching:
                callback.after_backward(state)
            self._tree.end_micro_batch(apart=bool(watching))
        self._tree.end_step()
        return float(state.reducer.gather(torch.stack(losses)).sum().item())

    def _seed_draws(self) -> None:
        """Make what a module draws, as dropout does, a function of seed, step and micro-batch."""
        # A resumed run, and one shared by more processes, then draws the same numbers.
        state = self.state
        number = state.reducer.rank * self._tree.micro_batches + state.micro_batch
        seed = hash((self.config.seed, state.step, number)) & 0xFFFFFFFF
        # `torch.manual_seed` seeds every kind of device there may be, which takes .6 ms.
        torch.default_generator.manual_seed(seed)
        for number, noise in enumerate(self._noises):
            noise.reseed(seed + number)
        if self.config.device.startswith("cuda"):
            torch.cuda.manual_seed(seed)

    def evaluation_weights(self) -> AbstractContextManager[None]:
        """Put the weights to evaluate in place: those trained, or the average of schedule-free."""
        averages = self._evaluated()
        return swapped(list(averages), list(averages.values()))

    def end(self) -> None:
        """Leave the weights to evaluate in the module; the session trains no further."""
        with torch.no_grad():
            for weight, average in self._evaluated().items():
                weight.copy_(average)

    def _evaluated(self) -> dict[nn.Parameter, Tensor]:
        """Return what takes the place of weights in evaluations; empty for most optimizers."""
        return {
            weight: average
            for optimizer in self.state.optimizers
            if isinstance(optimizer, ScheduleFree)
            for weight, average in optimizer.averages().items()
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return everything a checkpoint holds as tensors."""
        state = optimizers.named_state(self.module, self.state.optimizers, self.steps_done)
        watched = {
            f"callback.{callback.name}.{name}": tensor
            for callback in self._callbacks
            for name, tensor in callback.tensors().items()
        }
        return state | self.history.tensors() | watched

    def scalars(self) -> dict[str, object]:
        """Return what a checkpoint holds besides."""
        return self.history.scalars() | {
            "tokens_per_step": self.config.tokens_per_step,
            "gradient_groups": "one" if self._in_one_group else "tree",
        }

    def save(self, store: CheckpointStore) -> None:
        """Write a checkpoint of the current step; all processes of the run call it.

        Args:
            store: where it goes.

        Raises:
            CapacityError: the disk is full.
        """
        if self._partition is None:
            store.save(self.steps_done, self.tensors(), self.scalars())
        else:
            pieces = self._partition.pieces(self.tensors())
            store.save_pieces(self.steps_done, pieces, self.scalars())

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint.

        Args:
            checkpoint: checkpoint of a run with the same module.

        Raises:
            DataError: the checkpoint is of another module.
        """
        try:
            tensors, partition = checkpoint.tensors, self._partition
            if partition is not None:
                tensors = partition.parts(tensors)
            optimizers.load_state(self.module, self.state.optimizers, tensors, checkpoint.step)
            self.history = History.restore(checkpoint)
        except (KeyError, RuntimeError) as error:
            raise DataError(
                f"the checkpoint of step {checkpoint.step} does not fit the model: {error}",
                hint="start from a checkpoint of the same architecture",
            ) from error
        # Runs of before there was a tree go on as they began, with equal bits.
        self._lay_tree(in_one_group=checkpoint.scalars.get("gradient_groups") != "tree")
        for callback in self._callbacks:
            prefix = f"callback.{callback.name}."
            kept = {
                name.removeprefix(prefix): tensor
                for name, tensor in checkpoint.tensors.items()
                if name.startswith(prefix)
            }
            if kept:
                callback.restore(kept)


def _clip(parameters: Sequence[nn.Parameter], largest: float) -> None:
    """Scale the gradients down to a global norm of `largest`, where theirs is larger."""
    gradients = [item.grad for item in parameters if item.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    # torch's own function multiplies by 1 where nothing is to be clipped: a pass for nothing. Near
    # the limit it decides itself, in its own precision.
    if float(norm) > (1 - 1e-4) * largest - 1e-6:
        nn.utils.clip_grads_with_norm_(parameters, largest, norm)
