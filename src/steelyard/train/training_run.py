"""The steps of one run: train, evaluate and save when it is time to, and summarize."""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from steelyard.errors import ConfigError, DivergedError, StoppedEarlyError
from steelyard.train.callback import Callback
from steelyard.train.checkpoint import Checkpoint, CheckpointStore, load_checkpoint
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.measure.energy import EnergyMeter
from steelyard.train.memory import PeakMemory, warm_libraries
from steelyard.train.reducer import Reducer
from steelyard.train.replay import note_divergence
from steelyard.train.result import EstimatorResult, OnStep, Progress, spread_of
from steelyard.train.session import Session

__all__ = ["TrainingRun"]


class TrainingRun:
    """A run on its way to a result, whose folder is claimed.

    Attributes:
        config: the run.
        session: module, optimizer and history.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        module: nn.Module,
        config: EstimatorConfig,
        directory: Path,
        *,
        start_from: Path | None,
        evaluate: Callable[[nn.Module], float] | None,
        callbacks: Sequence[Callback],
        reducer: Reducer,
    ) -> None:
        """Open the session, and go on from the newest checkpoint.

        Args:
            open_session: makes a session that stands before step 0.
            module: what it trains.
            config: the run.
            directory: the run's folder.
            start_from: tensors file of another run's checkpoint to begin with, or None.
            evaluate: measures the held-out loss of the module; None for no evaluation.
            callbacks: what watches the steps.
            reducer: joins the processes that share each step.

        Raises:
            ConfigError: the start's checkpoint does not fit the run.
            DataError: a checkpoint is damaged or of another module.
        """
        self.config = config
        self._callbacks = callbacks
        everyone = reducer.everyone
        self._store = CheckpointStore(directory, pinned=self.config.checkpoint_at, reducer=everyone)
        self._begin_s = time.perf_counter()
        self._meter = EnergyMeter(self.config.device)
        self._is_first = not everyone.rank
        self._evaluate = evaluate
        # This run's own checkpoint goes before the one it was to start from: it is further on.
        checkpoint = self._store.latest()
        begin = load_checkpoint(start_from) if checkpoint is None and start_from else None
        warm_libraries(self.config.device)
        parameters = list(module.parameters())
        self._parameters = sum(item.numel() for item in parameters)
        held = sum(item.numel() * item.element_size() for item in parameters)
        self._memory = PeakMemory(self.config.device, held)
        self.session = open_session()
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
        """Train the remaining steps and summarize.

        Args:
            on_step: called after each step.

        Returns:
            The result, not yet stored.

        Raises:
            DivergedError: the loss is not finite.
            StoppedEarlyError: `on_step` ended the run; a checkpoint of that step was kept.
        """
        try:
            while self.session.steps_done < self.config.steps:
                progress = self._advance()
                if on_step is not None:
                    self._tell(on_step, progress)
        finally:
            self._memory.release()
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
            if self._is_first:
                note_divergence(self._store.directory, session.history.losses)
            error.hint += "; `steelyard train replay` names the layer and the example"
            raise
        self._meter.tick()
        if session.is_settled:
            self._memory.settle()
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
        if self._evaluate is None:
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
        assert self._evaluate is not None
        session = self.session
        session.module.eval()
        with torch.no_grad(), session.precision():
            loss = self._evaluate(session.module)
        session.module.train()
        return loss

    def _save(self) -> None:
        """Write a checkpoint of the current step."""
        session, history = self.session, self.session.history
        history.peak_memory_bytes = max(history.peak_memory_bytes, self._memory.peak_bytes())
        history.resident_peak_bytes = max(
            history.resident_peak_bytes, self._memory.resident_peak_bytes()
        )
        history.duration_s, history.energy_j = self.duration_s, self.energy_j
        session.save(self._store)

    def _result(self) -> EstimatorResult:
        """Summarize the history."""
        config, history = self.config, self.session.history
        warm = history.warm_times_s
        step_time_s = statistics.median(warm or history.step_times_s)
        pilot = self.session.pilot
        watchers = [*self._callbacks, *([pilot] if pilot else [])]
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
            parameters=self._parameters,
            seed=config.seed,
            checkpoint=self._store.path(config.steps),
            duration_s=self.duration_s,
            energy_j=self.energy_j,
            average_losses=history.average_losses,
            reports={item.name: item.report() for item in watchers},
        )
