"""The single-process trainer: one folder per run, exact resume after a kill at any moment.

Data order and learning rate are pure functions of the step, and a checkpoint holds weights, moments
and history, so a run that was killed and called again has bit for bit the losses of one that was
not (same machine, same number of threads).
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from steelyard import files
from steelyard.config import flatten, to_plain
from steelyard.errors import BackendError, ConfigError
from steelyard.parallel import torch_threads
from steelyard.train.checkpoint import Checkpoint, CheckpointStore, load_checkpoint
from steelyard.train.config import TrainConfig
from steelyard.train.evaluate import bits_per_byte, evaluate, heldout_windows
from steelyard.train.memory import PeakMemory, warm_libraries
from steelyard.train.result import Progress, TrainResult, spread_of
from steelyard.train.session import Session
from steelyard.train.source import TokenSource, check_source

__all__ = ["train"]

_MAY_CHANGE = {"threads", "checkpoint_every"}
"""Fields that do not change what a run computes, so a resumed run may set them anew."""


def train(
    config: TrainConfig,
    shards: TokenSource,
    directory: Path,
    *,
    start_from: Path | None = None,
    on_step: Callable[[Progress], None] | None = None,
    peak_flops_per_s: float | None = None,
) -> TrainResult:
    """Train to the end, or go on where an earlier call was killed.

    A finished folder returns its stored result at once.

    Args:
        config: the run.
        shards: tokens to train and evaluate on.
        directory: the run's folder: checkpoints, final model, result.
        start_from: tensors file of another run's checkpoint to begin with: its weights, moments,
            history and step.
        on_step: called after each step.
        peak_flops_per_s: peak dense FLOP/s of the dtype here, from which `mfu` follows.

    Returns:
        Held-out loss, history and measurements.

    Raises:
        ConfigError: the configuration does not fit the data or the run in the folder, or the loss
            diverged.
        DataError: too little data, or a damaged checkpoint.
        StoreError: another process trains in this folder.
        CapacityError: the disk is full.
        BackendError: the device is not there.
    """
    directory = Path(directory)
    check_source(config, shards)
    _check_device(config.device)
    with files.exclusive(directory), torch_threads(config.threads):
        _claim(directory, config, shards, start_from)
        result = TrainResult.load(directory) or _Trainer(config, shards, directory, start_from).run(
            on_step
        )
    if peak_flops_per_s:
        result = replace(
            result, mfu=result.flops / result.tokens * result.tokens_per_s / peak_flops_per_s
        )
    return result


class _Trainer:
    """A run on its way to a result."""

    def __init__(
        self, config: TrainConfig, source: TokenSource, directory: Path, start_from: Path | None
    ) -> None:
        self.config = config
        self.source = source
        self.directory = directory
        self.store = CheckpointStore(directory, pinned=config.checkpoint_at)
        # This run's own checkpoint goes before the one it was to start from: it is further on.
        checkpoint = self.store.latest()
        begin = load_checkpoint(start_from) if checkpoint is None and start_from else None
        warm_libraries(config.device)
        self.memory = PeakMemory(config.device)
        self.session = Session(config, source)
        self.windows = heldout_windows(
            source.heldout_tokens, config.sequence_length, config.eval_tokens
        )
        if checkpoint is not None:
            self.session.restore(checkpoint)
        elif begin is not None:
            self._begin_from(begin)

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

    def run(self, on_step: Callable[[Progress], None] | None) -> TrainResult:
        """Train the remaining steps, evaluate, and store the result."""
        while self.session.steps_done < self.config.steps:
            progress = self._advance()
            if on_step is not None:
                on_step(progress)
        return self._finish()

    def _advance(self) -> Progress:
        """Train one step; evaluate and save when it is time to."""
        config, session = self.config, self.session
        rate = session.rate(session.steps_done)
        loss, seconds = session.step()
        if session.is_settled:
            self.memory.settle()
        done = session.steps_done
        eval_loss = None
        if done == config.steps or (config.eval_every and done % config.eval_every == 0):
            eval_loss = self._evaluate()
            session.history.eval_losses.append((done, eval_loss))
        if (
            done == config.steps
            or done in config.checkpoint_at
            or (config.checkpoint_every and done % config.checkpoint_every == 0)
        ):
            self._save()
        return Progress(
            done, config.steps, loss, seconds, config.tokens_per_step / seconds, rate, eval_loss
        )

    def _evaluate(self) -> float:
        """Measure the held-out loss now."""
        session, config = self.session, self.config
        session.model.eval()
        loss = evaluate(
            session.model,
            self.windows,
            batch_size=config.micro_batch_size,
            device=config.device,
            precision=session.precision,
        )
        session.model.train()
        return loss

    def _save(self) -> Path:
        """Write a checkpoint of the current step."""
        history = self.session.history
        history.peak_memory_bytes = max(history.peak_memory_bytes, self.memory.peak_bytes())
        history.resident_peak_bytes = max(
            history.resident_peak_bytes, self.memory.resident_peak_bytes()
        )
        scalars = history.scalars() | {"tokens_per_step": self.config.tokens_per_step}
        return self.store.save(self.session.steps_done, self.session.tensors(), scalars)

    def _finish(self) -> TrainResult:
        """Write the final model and the result."""
        # The result is written last: a folder that has one is finished and complete.
        from steelyard.nn import checkpoint

        model = self.directory / "model"
        checkpoint.save(self.session.model, model)
        if self.source.tokenizer is not None:
            files.write_bytes(model / "tokenizer.json", self.source.tokenizer.read_bytes())
        result = self._result(model)
        result.store(self.directory)
        return result

    def _result(self, model: Path) -> TrainResult:
        """Summarize the history."""
        from steelyard.cost import model_flops_per_token

        config, history = self.config, self.session.history
        warm = [
            seconds
            for seconds, cold in zip(history.step_times_s, history.cold, strict=True)
            if not cold
        ]
        step_time_s = statistics.median(warm or history.step_times_s)
        eval_loss = history.eval_losses[-1][1]
        tokens = config.steps * config.tokens_per_step
        return TrainResult(
            eval_loss=eval_loss,
            bits_per_byte=bits_per_byte(eval_loss, self.source.bytes_per_token),
            losses=history.losses,
            eval_losses=history.eval_losses,
            steps=config.steps,
            first_step=history.first_step,
            step_time_s=step_time_s,
            step_time_spread_s=spread_of(warm),
            total_time_s=sum(history.step_times_s),
            peak_memory_bytes=float(history.peak_memory_bytes),
            resident_peak_bytes=float(history.resident_peak_bytes),
            tokens=tokens,
            tokens_run=(config.steps - history.first_step) * config.tokens_per_step,
            flops=float(
                tokens * model_flops_per_token(config.architecture, config.sequence_length)
            ),
            tokens_per_s=config.tokens_per_step / step_time_s,
            mfu=None,
            parameters=sum(parameter.numel() for parameter in self.session.model.parameters()),
            seed=config.seed,
            checkpoint=self.store.path(config.steps),
            model=model,
        )


def _claim(
    directory: Path, config: TrainConfig, source: TokenSource, start_from: Path | None
) -> None:
    """Write down what the folder's run is, or refuse a folder that holds another one."""
    path = directory / "config.json"
    data: dict[str, object] = {
        "vocab_size": source.vocab_size,
        "num_tokens": source.num_tokens,
        "num_heldout_tokens": len(source.heldout_tokens),
    }
    # Runs of folders with a stored order, and of other sources, were written down without one.
    if getattr(source, "order", "stored") != "stored":
        data["order"] = getattr(source, "order", "")
    # The last two parts of the start's path, so that a study may be moved as a whole.
    claim = {
        "config": to_plain(config),
        "data": data,
        "start_from": "/".join(start_from.parts[-2:]) if start_from else "",
    }
    if not path.exists():
        files.write_json(path, claim)
    stored, wanted = flatten(files.read_json(path)), flatten(claim)
    for name in sorted(stored.keys() | wanted.keys()):
        same = stored.get(name) == wanted.get(name)
        if not same and name.rsplit(".", 1)[-1] not in _MAY_CHANGE:
            raise ConfigError(
                f"{directory} holds another run: its {name} is {stored.get(name)}, now "
                f"{wanted.get(name)} was asked",
                hint="choose another folder, or delete this one to train anew",
            )


def _check_device(device: str) -> None:
    """Refuse a device this machine or this build of torch does not have."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BackendError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}",
            hint="set device = 'cpu'",
        ) from error
