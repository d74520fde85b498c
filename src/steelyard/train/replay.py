"""The last steps before a divergence, again and bit for bit, with everything measured."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from steelyard import files
from steelyard.config import convert
from steelyard.errors import ConfigError, DivergedError
from steelyard.nn.stability import StabilityReport, probe
from steelyard.nn.transformer import Transformer
from steelyard.train.batches import BatchSource, micro_batches
from steelyard.train.callback import Callback
from steelyard.train.checkpoint import Checkpoint, CheckpointStore, load_checkpoint
from steelyard.train.measure.fault_watch import Fault, FaultWatch, StepTrace, watched
from steelyard.train.measure.update_sizes import UpdateSizes
from steelyard.train.session import Loss, Session

__all__ = ["Divergence", "ExampleTrace", "Replay", "note_divergence", "read_divergence", "replay"]

_FILE = "diverged.json"
_WINDOW = 50
_SPIKE = 4.0
"""Times the median of the steps before that a layer or a gradient has to grow to be named."""

MakeSession = Callable[[Sequence[Callback]], Session]
"""Makes the run's session before step 0, with such callbacks beside those that it had."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """A step that went wrong.

    Attributes:
        step: its number, from 0.
        losses: losses of up to 50 steps before it, oldest first.
    """

    step: int
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleTrace:
    """One example of a batch, alone.

    Attributes:
        row: its place in the batch.
        loss: its loss; with experts or contrasts, that of a batch of one.
        gradient_norm: norm of its gradient.
        layer: first module that is not finite on it; empty where all are.
    """

    row: int
    loss: float
    gradient_norm: float
    layer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What a replay found.

    Attributes:
        began: step of the checkpoint it began at.
        steps: up to 50 steps, everything measured; the last is the one that went wrong.
        update_sizes: median relative size of the updates by step, of sound ones.
        stability: the probe of each step's first micro-batch, for decoders.
        is_identical: whether all losses that were written down came again bit for bit.
        step: first step in which something is wrong.
        kind: what: a value that is not finite, or a size beyond four times the usual.
        layer: first layer where it is seen.
        examples: examples of that step's batch, the worst first.
    """

    began: int
    steps: tuple[StepTrace, ...]
    update_sizes: tuple[tuple[int, float], ...]
    stability: tuple[StabilityReport, ...]
    is_identical: bool
    step: int
    kind: Literal["activation", "gradient", "weight", "loss spike"]
    layer: str
    examples: tuple[ExampleTrace, ...]


def note_divergence(directory: Path, losses: Sequence[float]) -> None:
    """Write down that the step after these losses went wrong.

    Args:
        directory: folder of the run.
        losses: loss of every step before it.
    """
    found = Divergence(step=len(losses), losses=tuple(losses[-_WINDOW:]))
    files.write_json(directory / _FILE, found)


def read_divergence(directory: Path) -> Divergence:
    """Find the step of a run that went wrong.

    Args:
        directory: folder of the run.

    Returns:
        The step at which it stopped; of a run that went on, the one whose loss stands out most from
        those just before it.

    Raises:
        ConfigError: nothing is written down of the run, or its losses have no spike.
    """
    path = directory / _FILE
    if path.exists():
        return convert(files.read_json(path), Divergence, where=str(path))
    newest = CheckpointStore(directory).latest()
    losses = newest.tensors["history.losses"].tolist() if newest else []
    heights = [(_height(losses, step), step) for step in range(5, len(losses))]
    height, step = max(heights, default=(0.0, 0))
    if height < _SPIKE:
        raise ConfigError(
            f"{directory} holds no run that diverged, and none of its {len(losses)} losses stands "
            f"out from those before it",
            hint="name the step to look at with --step",
        )
    return Divergence(step=step, losses=tuple(losses[max(step - _WINDOW, 0) : step]))


def _height(losses: list[float], step: int) -> float:
    """Return how far a loss stands above those before it, in times of their own rises."""
    past = losses[max(step - _WINDOW, 0) : step]
    rises = sorted(two - one for one, two in itertools.pairwise(past))
    usual = max(rises[int(0.9 * len(rises))], 1e-3 * abs(past[-1]))
    return (losses[step] - max(past[-5:])) / usual


def replay(
    make: MakeSession,
    loss: Loss,
    batches: BatchSource,
    directory: Path,
    found: Divergence,
    *,
    probes: bool = True,
) -> Replay:
    """Train again from the nearest checkpoint to the step that went wrong.

    Args:
        make: makes the run's session before step 0.
        loss: the run's loss.
        batches: the run's batches.
        directory: folder of the run; it is only read.
        found: the step, and the losses that must come again.
        probes: whether decoders are probed for stability, a step of plain descent each.

    Returns:
        What was found.
    """
    checkpoint = _nearest(directory, found.step)
    began = checkpoint.step if checkpoint else 0
    first = max(found.step - _WINDOW + 1, began)
    watch, sizes = FaultWatch(first_step=first), UpdateSizes(every=1)
    session = _restored(make((watch, sizes)), checkpoint)
    stability: list[StabilityReport] = []
    while session.steps_done <= found.step:
        if probes and session.steps_done >= first:
            stability += _probed(session, batches)
        try:
            session.step()
        except DivergedError:
            break
    again = session.history.losses[found.step - len(found.losses) : found.step]
    curve = sizes.report().get("curve", [])
    step, fault = _first_wrong(watch.traces)
    return Replay(
        began=began,
        steps=tuple(watch.traces),
        update_sizes=tuple(curve),  # pyright: ignore[reportArgumentType]
        stability=tuple(stability),
        is_identical=tuple(again) == found.losses,
        step=step,
        kind=fault.kind if fault else "loss spike",
        layer=fault.layer if fault else _grown(watch.traces, step),
        examples=_examples(_until(make, checkpoint, step), loss, batches),
    )


def _nearest(directory: Path, step: int) -> Checkpoint | None:
    """Return the checkpoint to begin at: the last before the window, else the first in it."""
    store = CheckpointStore(directory)
    before = [item for item in store.steps() if item <= step]
    early = [item for item in before if item <= step - _WINDOW + 1]
    wanted = [*reversed(early), *(item for item in before if item not in early)]
    for number in wanted:
        checkpoint = load_checkpoint(store.path(number))
        # One that was written after the fault would show it everywhere.
        if all(
            tensor.isfinite().all()
            for name, tensor in checkpoint.tensors.items()
            if name.startswith("model.") and tensor.is_floating_point()
        ):
            return checkpoint
    return None


def _restored(session: Session, checkpoint: Checkpoint | None) -> Session:
    """Put a session where a checkpoint stands."""
    if checkpoint is not None:
        session.restore(checkpoint)
    return session


def _until(make: MakeSession, checkpoint: Checkpoint | None, step: int) -> Session:
    """Return a session that stands before a step."""
    session = _restored(make(()), checkpoint)
    while session.steps_done < step:
        session.step()
    return session


def _probed(session: Session, batches: BatchSource) -> list[StabilityReport]:
    """Probe a decoder on the first micro-batch of the coming step; nothing for other modules."""
    module, config = session.module, session.config
    batch = batches.batch(session.steps_done)
    if not isinstance(module, Transformer) or not isinstance(batch, Tensor):
        return []
    part = batch[: config.micro_batch_size, :-1].to(config.device)
    return [probe(module, part, rate=max(session.rate(session.steps_done), 1e-8))]


def _first_wrong(traces: Sequence[StepTrace]) -> tuple[int, Fault | None]:
    """Return the first step in which something is wrong, and what is not finite in it."""
    for trace in traces:
        if trace.fault is not None:
            return trace.step, trace.fault
    # A large gradient shows in the loss of the step after it.
    for place in range(max(len(traces) - 3, 5), len(traces)):
        usual = statistics.median(item.gradient_norm for item in traces[:place])
        if traces[place].gradient_norm > _SPIKE * usual:
            return traces[place].step, None
    return traces[-1].step, None


def _grown(traces: Sequence[StepTrace], step: int) -> str:
    """Return the first layer, in the order of the forward pass, that is far beyond its usual."""
    place = next(number for number, trace in enumerate(traces) if trace.step == step)
    past, now = traces[:place], traces[place]
    ratios = {
        name: size / max(statistics.median(item.activations[name] for item in past), 1e-12)
        for name, size in now.activations.items()
        if past
    }
    grown = (name for name, ratio in ratios.items() if ratio > _SPIKE)
    return next(grown, max(ratios, key=lambda name: ratios[name], default=""))


def _examples(session: Session, loss: Loss, batches: BatchSource) -> tuple[ExampleTrace, ...]:
    """Run each example of the coming step's batch alone; the worst come first."""
    config, state = session.config, session.state
    state.micro_batch_size = 1
    # Batch statistics of one example are none: those of the run stand in.
    session.module.eval()
    found = []
    rows = micro_batches(batches.batch(session.steps_done), 1, config.device)
    for row, example in enumerate(rows):
        state.micro_batch, state.batch = row, example
        trace = StepTrace(step=session.steps_done)
        session.module.zero_grad(set_to_none=True)
        with watched(session.module, trace, state), session.precision():
            value = loss(session.module, example)
        total = value[0] + value[1] if isinstance(value, tuple) else value
        total.backward()
        gradients = [item.grad for item in state.parameters.values() if item.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients))
        layer = trace.fault.layer if trace.fault else ""
        alone = value[0] if isinstance(value, tuple) else value
        found.append(
            ExampleTrace(row=row, loss=float(alone.detach()), gradient_norm=norm, layer=layer)
        )
    return tuple(sorted(found, key=_badness, reverse=True))


def _badness(example: ExampleTrace) -> tuple[bool, float]:
    """Order examples: those that are not finite first, then by their gradients."""
    is_finite = math.isfinite(example.loss) and math.isfinite(example.gradient_norm)
    return not is_finite, example.gradient_norm if is_finite else 0.0
