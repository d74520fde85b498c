"""Measures the noise scale of a run and says how many of its batches the next step takes."""

from torch import Tensor, tensor

from steelyard.train.callback import StepState
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.measure.noise_scale import GradientNoiseScale

__all__ = ["BatchPilot"]

_DECAY = 0.9
"""Part of the averages that a measurement keeps: about the last ten count, so that the batch
follows."""

_LEAST = 5


class BatchPilot(GradientNoiseScale):
    """Keeps the batch at what its rule makes of the noise scale, within a factor of two.

    Attributes:
        name: "adaptive-batch".
        multiple: batches of the recipe that the next step would take.
    """

    def __init__(self, config: EstimatorConfig) -> None:
        """Begin with the recipe's own batch.

        Args:
            config: the run, with `adaptive_batch`.
        """
        assert config.adaptive_batch is not None
        super().__init__("accumulation", decay=_DECAY)
        self.name = "adaptive-batch"
        self.multiple = 1
        self._config = config
        self._rule = config.adaptive_batch
        self._updates = 0
        self._since = 0
        self._course: list[tuple[int, int]] = []

    def begin(self, state: StepState, /) -> None:
        """Begin anew."""
        super().begin(state)
        self.multiple, self._updates, self._since, self._course = 1, 0, 0, []

    def count(self, step: int) -> int:
        """Return how many batches a step takes.

        Args:
            step: batches that were trained on before it.

        Returns:
            A power of two, at most `multiple`, that passes over no checkpoint, evaluation or end.
        """
        config = self._config
        ends = [config.steps, *(at for at in config.checkpoint_at if at > step)]
        ends += [
            (step // every + 1) * every
            for every in (config.checkpoint_every, config.eval_every)
            if every
        ]
        room = min(ends) - step
        return min(self.multiple, 1 << (room.bit_length() - 1))

    def wants_micro_batches(self, step: int, /) -> bool:
        """Whether this update is measured."""
        return self._updates % self._rule.every == 0

    def after_update(self, state: StepState, /) -> None:
        """Double or halve the batch where the one it should be is a factor of two away."""
        was_measured = self.wants_micro_batches(state.step)
        self._updates += 1
        if not was_measured:
            return
        self._since += 1
        # Early estimates may be negative, or not there.
        goal = self._rule.wanted(max(self.estimate.value, 0.0))
        batch = self.multiple * self._config.batch_size
        if self._since < _LEAST:
            return
        wanted = self.multiple
        if goal >= 2 * batch:
            wanted = min(2 * self.multiple, self._rule.largest)
        elif goal < batch / 2:
            wanted = max(self.multiple // 2, 1)
        if wanted != self.multiple:
            self.multiple, self._since = wanted, 0
            self._course.append((state.step, wanted))

    def tensors(self) -> dict[str, Tensor]:
        """Return the history and the present batch."""
        now = [self.multiple, self._updates, self._since]
        return super().tensors() | {"now": tensor(now), "course": tensor(self._course).view(-1, 2)}

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Take over a history and a batch."""
        super().restore(tensors)
        self.multiple, self._updates, self._since = map(int, tensors["now"])
        self._course = [(int(step), int(multiple)) for step, multiple in tensors["course"]]

    def report(self) -> dict[str, object]:
        """Return the noise scale, updates made, and (step, multiple) of each change."""
        return super().report() | {"updates": self._updates, "batches": self._course}
