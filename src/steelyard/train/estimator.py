"""The training loop for any module: one folder per run, exact resume after a kill at any moment.

Batches and learning rate are pure functions of the step, and a checkpoint holds weights, moments
and history, so a run that was killed and called again has bit for bit the losses of one that was
not (same machine, same number of threads).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from torch import nn

from steelyard.errors import ConfigError
from steelyard.parallel import torch_threads
from steelyard.train.averages import Averages
from steelyard.train.batches import BatchSource
from steelyard.train.callback import Callback
from steelyard.train.checkpoint import CheckpointStore, load_checkpoint
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.reducer import AloneReducer, Reducer
from steelyard.train.replay import Replay, read_divergence, replay
from steelyard.train.result import EstimatorResult, OnStep
from steelyard.train.run_folder import claimed
from steelyard.train.session import Loss, Session
from steelyard.train.training_run import TrainingRun

__all__ = ["Estimator"]


class Estimator:
    """Trains a module on batches with a loss.

    Attributes:
        module: what is trained; after `fit` it holds the final weights.
        config: the run.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        config: EstimatorConfig,
        *,
        evaluate: Callable[[nn.Module], float] | None = None,
        callbacks: Sequence[Callback] = (),
        reducer: Reducer | None = None,
    ) -> None:
        """Say what is trained and how; nothing is done before `fit`.

        Args:
            module: parameters that require gradients are trained.
            loss: called with the module and a micro-batch; returns the mean loss of its examples,
                or a pair of it and of what is added to it but not reported.
            config: the run.
            evaluate: measures the held-out loss of the module, which is in evaluation mode; None
                for no evaluation.
            callbacks: what watches the steps.
            reducer: joins the processes that share each step; None for one process.
        """
        self.module = module
        self.config = config
        self.callbacks = list(callbacks)
        self.reducer = reducer or AloneReducer()
        self._loss = loss
        self._evaluate = evaluate
        self._averages = Averages(())

    def fit(
        self,
        batches: BatchSource,
        directory: Path,
        *,
        start_from: Path | None = None,
        on_step: OnStep | None = None,
        data: Mapping[str, object] | None = None,
    ) -> EstimatorResult:
        """Train to the end, or go on where an earlier call was killed.

        The weights before the first step are kept in the folder too: a run goes on from there,
        whatever weights the module of a later call was made with. A finished folder returns its
        stored result at once, and the module takes its final weights.

        Args:
            batches: where batches come from.
            directory: the run's folder: checkpoints and result.
            start_from: tensors file of another run's checkpoint to begin with: its weights,
                moments, history and step.
            on_step: called after each step.
            data: scalars that tell this data from other data, such as a version; a folder of a run
                on other data is refused.

        Returns:
            Held-out loss, history and measurements.

        Raises:
            ConfigError: the configuration does not fit the run in the folder, or the loss diverged.
            DataError: a batch has the wrong size, or a checkpoint is damaged or of another module.
            StoreError: another process trains in this folder.
            CapacityError: the disk is full.
            BackendError: the device is not there.
        """
        directory = Path(directory)
        with claimed(directory, self.config, data or {}, start_from, self.reducer.everyone):
            result = EstimatorResult.load(directory)
            # A finished run trains nothing, but its caller wants the module with its weights.
            if result is not None:
                session = self._open(batches)
                session.restore(load_checkpoint(result.checkpoint))
                return self._keep(session, result)
            self._save_beginning(batches, directory, start_from)
            result = self.run(batches, directory, start_from=start_from, on_step=on_step)
            if not self.reducer.everyone.rank:
                result.store(directory)
            self.reducer.wait()
        return result

    def _save_beginning(
        self, batches: BatchSource, directory: Path, start_from: Path | None
    ) -> None:
        """Keep the weights before the first step, where there are no later ones."""
        store, reducer = CheckpointStore(directory), self.reducer
        keeps = not reducer.everyone.rank and reducer.partition is None  # parts come of the seed
        if keeps and start_from is None and not store.steps():
            session = self._open(batches)
            store.save(0, session.tensors(), session.scalars())
        self.reducer.wait()

    def _open(self, batches: BatchSource) -> Session:
        """Make a session that stands before step 0."""
        return Session(
            self.module,
            self._loss,
            batches,
            self.config,
            callbacks=self.callbacks,
            reducer=self.reducer,
        )

    def run(
        self,
        batches: BatchSource,
        directory: Path,
        *,
        start_from: Path | None = None,
        on_step: OnStep | None = None,
    ) -> EstimatorResult:
        """Train the remaining steps of a run whose folder is claimed, and keep checkpoints.

        Args:
            batches: where batches come from.
            directory: the run's folder.
            start_from: checkpoint that `fit` takes.
            on_step: called after each step.

        Returns:
            What `fit` returns; it is not stored yet.
        """
        run = TrainingRun(
            lambda: self._open(batches),
            self.module,
            self.config,
            directory,
            start_from=start_from,
            evaluate=self._evaluate,
            callbacks=self.callbacks,
            reducer=self.reducer,
        )
        return self._keep(run.session, run.finish(on_step))

    def replay(self, batches: BatchSource, directory: Path) -> Replay:
        """Train the last steps before a divergence again, with everything measured.

        The module is left with the weights before the step that went wrong.

        Args:
            batches: where batches come from.
            directory: the run's folder, which is only read.

        Returns:
            The steps, and the first layer and the examples that are to blame.

        Raises:
            ConfigError: the run did not diverge and has no spike, or no checkpoint is left from
                before it.
        """
        found = read_divergence(directory)
        # Without one the run would begin at the weights that this call's module happens to have.
        if not any(step <= found.step for step in CheckpointStore(directory).steps()):
            raise ConfigError(
                f"{directory} has no checkpoint from before step {found.step}",
                hint="set checkpoint_at to keep some for good",
            )

        def make(extra: Sequence[Callback]) -> Session:
            callbacks = [*self.callbacks, *extra]
            return Session(self.module, self._loss, batches, self.config, callbacks=callbacks)

        with torch_threads(self.config.threads):
            return replay(make, self._loss, batches, directory, found)

    def _keep(self, session: Session, result: EstimatorResult) -> EstimatorResult:
        """Leave the weights to evaluate in the module, and the averages at hand."""
        self._averages = session.averages
        session.end()
        return result

    def averaged(self, name: str) -> AbstractContextManager[None]:
        """Put an average in the place of the module's weights for a block, after `fit`.

        Args:
            name: name of the average, such as "ema-0.999".

        Returns:
            A context manager.

        Raises:
            ConfigError: the run kept no such average.
        """
        return self._averages.swapped(name)
