"""What a classifier does with each example while it trains: forgetting, and the error's norm."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from steelyard.errors import ConfigError, DataError
from steelyard.train.batches import Batch
from steelyard.train.callback import Callback, StepState

__all__ = ["ExampleStatistics"]


class ExampleStatistics(Callback):
    """Counts how often each example is forgotten, and averages its EL2N score.

    An example is forgotten when it was classified rightly at one visit and wrongly at the next.
    EL2N is |softmax(logits) - one-hot|. The module's own forward pass is read: nothing is computed
    twice.

    Attributes:
        name: "examples".
        seen: visits of each example, int64 [N].
        forgotten: times each was forgotten, int64 [N].
        learned: whether it was ever right, bool [N].

    Source: Toneva et al. 2019 (arXiv 1812.05159), definition 1; Paul et al. 2021 (arXiv
        2107.07075), definition 2.2.
    """

    name = "examples"

    def __init__(
        self,
        count: int,
        *,
        ids: Callable[[Batch], Tensor],
        labels: Callable[[Batch], Tensor],
        scored_steps: int = 0,
    ) -> None:
        """Say how examples are told apart.

        Args:
            count: examples N in the data.
            ids: returns the numbers of a micro-batch's examples, int64 [B] in 0..N-1.
            labels: returns their classes, int64 [B].
            scored_steps: steps from the first whose EL2N scores are averaged; 0 for all.
        """
        self._ids, self._labels, self._scored_steps = ids, labels, scored_steps
        self._count = count
        self._reset()

    def _reset(self) -> None:
        """Forget everything."""
        self.seen = torch.zeros(self._count, dtype=torch.int64)
        self.forgotten = torch.zeros(self._count, dtype=torch.int64)
        self.learned = torch.zeros(self._count, dtype=torch.bool)
        self._was_right = torch.zeros(self._count, dtype=torch.bool)
        self._errors = torch.zeros(self._count, dtype=torch.float64)
        self._scored = torch.zeros(self._count, dtype=torch.int64)

    def begin(self, state: StepState, /) -> None:
        """Start anew.

        Args:
            state: the run.

        Raises:
            ConfigError: several processes share the steps, of which each would see a part.
        """
        if state.reducer.world_size > 1:
            raise ConfigError(
                f"{state.reducer.world_size} processes share each step: none sees all examples",
                hint="take example statistics in a run of one process",
            )
        self._reset()

    def watching(self, state: StepState, /) -> AbstractContextManager[object]:
        """Read the logits that the module returns."""
        return self._reading(state)

    @contextmanager
    def _reading(self, state: StepState) -> Iterator[None]:
        """Take the module's output inside the block."""
        outputs: list[Tensor] = []

        def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            outputs.append(output.detach())

        hook = state.module.register_forward_hook(keep)
        try:
            yield
        finally:
            hook.remove()
        for logits in outputs[-1:]:
            self._take(logits.float(), state)

    def _take(self, logits: Tensor, state: StepState) -> None:
        """Take in the logits [B, C] of a micro-batch."""
        ids, labels = self._ids(state.batch).cpu(), self._labels(state.batch)
        if logits.ndim != 2 or len(ids) != len(logits) or len(labels) != len(logits):
            raise DataError(
                f"logits {tuple(logits.shape)} do not fit {len(ids)} ids and {len(labels)} labels",
                hint="let the module return logits [B, C], and ids and labels return [B]",
            )
        is_right = (logits.argmax(1) == labels).cpu()
        self.forgotten[ids] += (self._was_right[ids] & ~is_right).long()
        self._was_right[ids] = is_right
        self.learned[ids] |= is_right
        self.seen[ids] += 1
        if not self._scored_steps or state.step < self._scored_steps:
            wrong = logits.softmax(1)
            wrong.scatter_add_(1, labels[:, None], torch.full_like(wrong[:, :1], -1.0))
            self._errors[ids] += wrong.norm(dim=1).double().cpu()
            self._scored[ids] += 1

    @property
    def el2n(self) -> Tensor:
        """Mean error norm of each example, float64 [N]; NaN where it was not scored."""
        return self._errors / self._scored

    def tensors(self) -> dict[str, Tensor]:
        """Return the columns."""
        return {
            "seen": self.seen,
            "forgotten": self.forgotten,
            "learned": self.learned,
            "was_right": self._was_right,
            "errors": self._errors,
            "scored": self._scored,
        }

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Take over the columns."""
        self.seen, self.forgotten = tensors["seen"], tensors["forgotten"]
        self.learned, self._was_right = tensors["learned"], tensors["was_right"]
        self._errors, self._scored = tensors["errors"], tensors["scored"]

    def report(self) -> dict[str, object]:
        """Return how many examples were seen, learned and never forgotten, and the mean EL2N."""
        scored = self.el2n[self._scored > 0]
        return {
            "seen": int((self.seen > 0).sum()),
            "learned": int(self.learned.sum()),
            "never_forgotten": int((self.learned & (self.forgotten == 0)).sum()),
            "mean_el2n": float(scored.mean()) if len(scored) else None,
        }
