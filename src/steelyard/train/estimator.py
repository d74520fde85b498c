"""The training loop for any module: one folder per run, exact resume after a kill at any moment.

Batches and learning rate are pure functions of the step, and a checkpoint holds weights, moments
and history, so a run that was killed and called again has bit for bit the losses of one that was
not (same machine, same number of threads).
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import nn

from steelyard.errors import ConfigError, DivergedError, StoppedEarlyError
from steelyard.parallel import torch_threads
from steelyard.train.averages import Averages
from steelyard.train.batches import BatchSource
from steelyard.train.callback import Callback
from steelyard.train.checkpoint import Checkpoint, CheckpointStore, load_checkpoint
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.measure.energy import EnergyMeter
from steelyard.train.memory import PeakMemory, warm_libraries
from steelyard.train.reducer import AloneReducer, Reducer
from steelyard.train.replay import Replay, note_divergence, read_divergence, replay
from steelyard.train.result import EstimatorResult, Progress, spread_of
from steelyard.train.run_folder import claimed
from steelyard.train.session import Loss, Session

__all__ = ["Estimator", "OnStep"]

OnStep = Callable[[Progress], None]


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
            start_from: as for `fit`.
            on_step: called after each step.

        Returns:
            What `fit` returns; it is not stored yet.
        """
        run = _Run(self, batches, directory, start_from)
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


class _Run:
    """A run on its way to a result."""

    def __init__(
        self, estimator: Estimator, batches: BatchSource, directory: Path, start_from: Path | None
    ) -> None:
        self.config = estimator.config
        self.callbacks = estimator.callbacks
        everyone = estimator.reducer.everyone
        self.store = CheckpointStore(directory, pinned=self.config.checkpoint_at, reducer=everyone)
        self._begin_s = time.perf_counter()
        self._meter = EnergyMeter(self.config.device)
        self.is_first = not everyone.rank
        self.evaluate = estimator._evaluate
        # This run's own checkpoint goes before the one it was to start from: it is further on.
        checkpoint = self.store.latest()
        begin = load_checkpoint(start_from) if checkpoint is None and start_from else None
        warm_libraries(self.config.device)
        parameters = list(estimator.module.parameters())
        self.parameters = sum(item.numel() for item in parameters)
        held = sum(item.numel() * item.element_size() for item in parameters)
        self.memory = PeakMemory(self.config.device, held)
        self.session = estimator._open(batches)
        if checkpoint is not None:
            self.session.restore(checkpoint)
        elif begin is not None:
            self._begin_from(begin)
        # What earlier calls took; this one's comes on top.
        self._before_s, self._before_j = (
            self.session.history.duration_s,
            self.session.history.energy_j,
        )

    def _begin_from(self, checkpoint: Checkpoint) -> None:
        """Take over another run's state as this run's beginning."""
        if checkpoint.step >= self.config.steps:
            raise ConfigError(
                f"the run has {self.config.steps} steps, but its starting checkpoint already "
                f"stands at step {checkpoint.step}",
                hint="raise steps, or start from an earlier checkpoint",
            )
        if checkpoint.scalars.get("tokens_per_step") != self.config.tokens_per_step:
            raise ConfigError(
                f"the starting checkpoint trained {checkpoint.scalars.get('tokens_per_step')} "
                f"tokens a step, this run would train "
                f"{self.config.tokens_per_step}; steps would not be comparable",
                hint="keep batch_size and sequence_length of the run that made the checkpoint",
            )
        self.session.restore(checkpoint)
        # Times and losses of the steps before belong to the model, peaks to the process that made
        # them.
        history = self.session.history
        history.first_step = checkpoint.step
        history.peak_memory_bytes = 0
        history.resident_peak_bytes = 0
        history.duration_s, history.energy_j = 0.0, 0.0

    def finish(self, on_step: OnStep | None) -> EstimatorResult:
        """Train the remaining steps and summarize."""
        while self.session.steps_done < self.config.steps:
            progress = self._advance()
            if on_step is not None:
                self._tell(on_step, progress)
        return self._result()

    def _tell(self, on_step: OnStep, progress: Progress) -> None:
        """Tell of a step; keep it where it is to be the last of this call."""
        try:
            on_step(progress)
        except StoppedEarlyError:
            self._save()
            raise

    def _advance(self) -> Progress:
        """Train one step; evaluate and save when it is time to."""
        config, session = self.config, self.session
        before = session.steps_done
        try:
            loss, seconds = session.step()
        except DivergedError as error:
            if self.is_first:
                note_divergence(self.store.directory, session.history.losses)
            error.hint += "; `steelyard train replay` names the layer and the example"
            raise
        self._meter.tick()
        if session.is_settled:
            self.memory.settle()
        done = session.steps_done
        eval_loss = None
        if done == config.steps or (config.eval_every and done % config.eval_every == 0):
            eval_loss = self._measure_heldout(done)
        if (
            done == config.steps
            or done in config.checkpoint_at
            or (config.checkpoint_every and done % config.checkpoint_every == 0)
        ):
            self._save()
        return Progress(
            done,
            config.steps,
            loss,
            seconds,
            config.tokens_per_step * (done - before) / seconds,
            session.state.learning_rate,
            eval_loss,
            self.duration_s,
        )

    @property
    def duration_s(self) -> float:
        """Wall time of the run so far."""
        return self._before_s + time.perf_counter() - self._begin_s

    @property
    def energy_j(self) -> float | None:
        """Energy of the run so far; None where a part of it could not be read."""
        joules = self._meter.joules()
        return None if joules is None or self._before_j is None else self._before_j + joules

    def _measure_heldout(self, done: int) -> float | None:
        """Measure the held-out loss now."""
        if self.evaluate is None:
            return None
        session = self.session
        history, averages = session.history, session.averages
        with session.evaluation_weights():
            loss = self._loss_now()
        history.eval_losses.append((done, loss))
        for name in filter(averages.has, averages.names):
            with averages.swapped(name):
                history.average_losses.setdefault(name, []).append((done, self._loss_now()))
        return loss

    def _loss_now(self) -> float:
        """Evaluate the module with the weights that it holds."""
        assert self.evaluate is not None
        session = self.session
        session.module.eval()
        with torch.no_grad(), session.precision():
            loss = self.evaluate(session.module)
        session.module.train()
        return loss

    def _save(self) -> None:
        """Write a checkpoint of the current step."""
        session, history = self.session, self.session.history
        history.peak_memory_bytes = max(history.peak_memory_bytes, self.memory.peak_bytes())
        history.resident_peak_bytes = max(
            history.resident_peak_bytes, self.memory.resident_peak_bytes()
        )
        history.duration_s, history.energy_j = self.duration_s, self.energy_j
        session.save(self.store)

    def _result(self) -> EstimatorResult:
        """Summarize the history."""
        config, history = self.config, self.session.history
        warm = history.warm_times_s
        step_time_s = statistics.median(warm or history.step_times_s)
        pilot = self.session.pilot
        watchers = [*self.callbacks, *([pilot] if pilot else [])]
        return EstimatorResult(
            eval_loss=history.eval_losses[-1][1] if history.eval_losses else None,
            losses=history.losses,
            eval_losses=history.eval_losses,
            steps=config.steps,
            first_step=history.first_step,
            step_time_s=step_time_s,
            step_time_spread_s=spread_of(warm),
            total_time_s=sum(history.step_times_s),
            peak_memory_bytes=float(history.peak_memory_bytes),
            resident_peak_bytes=float(history.resident_peak_bytes),
            tokens=config.steps * config.tokens_per_step,
            tokens_run=(config.steps - history.first_step) * config.tokens_per_step,
            tokens_per_s=config.tokens_per_step / step_time_s,
            parameters=self.parameters,
            seed=config.seed,
            checkpoint=self.store.path(config.steps),
            duration_s=self.duration_s,
            energy_j=self.energy_j,
            average_losses=history.average_losses,
            reports={item.name: item.report() for item in watchers},
        )
