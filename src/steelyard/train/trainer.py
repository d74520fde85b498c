"""Train a decoder: the general loop with next-token loss on token batches."""

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard import files
from steelyard.errors import all_of
from steelyard.nn.moe.losses import auxiliary_loss
from steelyard.nn.parts.token_loss import FEW_LOGITS
from steelyard.nn.transformer import Transformer, build, refuse_unsupported
from steelyard.parallel import torch_threads
from steelyard.train.batches import Batch
from steelyard.train.callback import Callback
from steelyard.train.checkpoint import load_checkpoint
from steelyard.train.config import Measure, TrainConfig
from steelyard.train.estimator import Estimator
from steelyard.train.evaluate import bits_per_byte, evaluate, heldout_windows
from steelyard.train.measure import GradientNoiseScale, UpdateSizes
from steelyard.train.optimizer import load_state
from steelyard.train.reducer import AloneReducer, Reducer
from steelyard.train.repeats import RepeatedTokens
from steelyard.train.replay import Divergence, Replay, read_divergence, replay
from steelyard.train.result import EstimatorResult, OnStep, TrainResult
from steelyard.train.run_folder import check_compile, check_device, claimed
from steelyard.train.session import Loss, Session
from steelyard.train.source import TokenSource, check_source

__all__ = ["TokenBatches", "next_token_loss", "open_session", "replay_run", "train"]

_GAUGES: dict[Measure, Callable[[int], Callback]] = {
    "noise-scale": lambda every: GradientNoiseScale(every=every),
    "noise-scale-per-example": lambda every: GradientNoiseScale("per-example", every=every),
    "noise-scale-norm-layers": lambda every: GradientNoiseScale("norm-layers", every=every),
    "update-sizes": lambda every: UpdateSizes(every=every),
}


class TokenBatches:
    """Token batches of a run, as `batches.BatchSource` wants them."""

    def __init__(self, config: TrainConfig, source: TokenSource) -> None:
        """Fix size and seed.

        Args:
            config: the run.
            source: where tokens come from.
        """
        unique = config.unique_tokens
        self._source = RepeatedTokens(source, unique, config.sequence_length) if unique else source
        self._what = (config.batch_size, config.sequence_length, config.seed)

    def batch(self, index: int, /) -> Tensor:
        """Return the int64 tokens [B, T + 1] of a step."""
        return torch.from_numpy(self._source.batch(index, *self._what))


def next_token_loss(module: nn.Module, tokens: Batch) -> Tensor:
    """Return the mean cross-entropy of predicting each of tokens [B, T + 1] from those before."""
    return _losses(module, tokens).mean()


def routed_loss(module: nn.Module, tokens: Batch) -> tuple[Tensor, Tensor]:
    """Return the same of a mixture of experts, and what its routers add to it in training."""
    losses = _losses(module, tokens)
    return losses.mean(), auxiliary_loss(module, losses.detach())


def _losses(module: nn.Module, tokens: Batch) -> Tensor:
    """Return the cross-entropy of each predicted token, [B T]."""
    assert isinstance(tokens, Tensor)
    read, wanted = tokens[:, :-1], tokens[:, 1:]
    is_plain = (
        isinstance(module, Transformer)
        and module.has_plain_head
        and read.numel() * module.architecture.vocab_size > FEW_LOGITS
    )
    # torch.compile fuses logits and loss by itself.
    if is_plain and not torch.compiler.is_compiling():
        return module(read, targets=wanted).flatten()
    # Logits go to float32 first: a log-softmax over a vocabulary in bfloat16 loses what a small
    # step of the loss consists of.
    logits = module(read).flatten(0, 1).float()
    return F.cross_entropy(logits, wanted.flatten(), reduction="none")


def open_session(
    config: TrainConfig, source: TokenSource, callbacks: Sequence[Callback] = ()
) -> Session:
    """Make a session of a decoder that stands before step 0, with neither folder nor files.

    Args:
        config: the run.
        source: where tokens come from.
        callbacks: what watches the steps; `config.measure` is left out.

    Returns:
        The session.
    """
    return Session(
        _build(config),
        _loss_of(config),
        TokenBatches(config, source),
        config,
        callbacks=callbacks,
    )


def replay_run(
    config: TrainConfig, source: TokenSource, directory: Path, *, step: int | None = None
) -> Replay:
    """Train the last steps before a divergence again, with everything measured.

    Args:
        config: the run.
        source: its tokens.
        directory: its folder, which is only read.
        step: step to look at, from 0; None for the one that went wrong.

    Returns:
        The steps, and the first layer and the examples that are to blame.

    Raises:
        ConfigError: the run did not diverge and has no spike, and no step was named.
        DataError: a checkpoint is damaged.
    """
    found = read_divergence(directory) if step is None else Divergence(step=step, losses=())
    with torch_threads(config.threads):
        return replay(
            lambda callbacks: open_session(config, source, callbacks),
            _loss_of(config),
            TokenBatches(config, source),
            directory,
            found,
        )


def _loss_of(config: TrainConfig) -> Loss:
    """Return the loss of a decoder."""
    return routed_loss if config.architecture.num_experts else next_token_loss


def train(
    config: TrainConfig,
    shards: TokenSource,
    directory: Path,
    *,
    start_from: Path | None = None,
    on_step: OnStep | None = None,
    peak_flops_per_s: float | None = None,
    callbacks: Sequence[Callback] = (),
    reducer: Reducer | None = None,
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
        callbacks: what watches the steps beside `config.measure`.
        reducer: joins the processes that share each step; None for one process.

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
    all_of(
        lambda: check_source(config, shards),
        lambda: check_device(config.device),
        lambda: check_compile(config),
        lambda: refuse_unsupported(config.architecture),
    )
    joined = reducer or AloneReducer()
    with claimed(directory, config, _told_apart(shards), start_from, joined.everyone):
        result = TrainResult.load(directory)
        if result is None:
            model = _build(config)
            estimator = Estimator(
                model,
                _loss_of(config),
                config,
                evaluate=_heldout_loss(config, shards),
                callbacks=[
                    *callbacks,
                    *(_GAUGES[item](config.measure_every) for item in config.measure),
                ],
                reducer=joined,
            )
            batches = TokenBatches(config, shards)
            found = estimator.run(batches, directory, start_from=start_from, on_step=on_step)
            result = _decoder_result(config, shards, found, directory / "model")
            if not joined.everyone.rank:
                result = _keep(estimator, shards, result, directory)
            joined.wait()
    if peak_flops_per_s:
        result = replace(
            result, mfu=result.flops / result.tokens * result.tokens_per_s / peak_flops_per_s
        )
    return result


def _keep(
    estimator: Estimator, source: TokenSource, result: TrainResult, directory: Path
) -> TrainResult:
    """Write the final model, its averages and the result; return it with the time that took."""
    begin_s = time.perf_counter()
    model, config = estimator.module, estimator.config
    assert isinstance(model, Transformer) and isinstance(config, TrainConfig)
    is_spread = estimator.reducer.partition is not None
    _save(_whole(config, result.checkpoint) if is_spread else model, source, result.model)
    for average in config.averages:
        with estimator.averaged(average.name):
            _save(model, source, directory / f"model-{average.name}")
    result = replace(result, duration_s=result.duration_s + time.perf_counter() - begin_s)
    # The result is written last: a folder that has one is finished and complete.
    result.store(directory)
    return result


def _told_apart(source: TokenSource) -> dict[str, object]:
    """Return what tells the data of a run from other data."""
    data: dict[str, object] = {
        "vocab_size": source.vocab_size,
        "num_tokens": source.num_tokens,
        "num_heldout_tokens": len(source.heldout_tokens),
    }
    # Runs of folders with a stored order, and of other sources, were written down without one.
    if getattr(source, "order", "stored") != "stored":
        data["order"] = getattr(source, "order", "")
    return data


def _build(config: TrainConfig) -> Transformer:
    """Make the model with its seed."""
    return build(config.architecture, dtype=torch.float32, device=config.device, seed=config.seed)


def _whole(config: TrainConfig, checkpoint: Path) -> Transformer:
    """Make the model of a checkpoint whose weights no process holds as a whole."""
    kept, model = load_checkpoint(checkpoint), _build(config)
    load_state(model, [], kept.tensors, kept.step)
    return model


def _heldout_loss(config: TrainConfig, source: TokenSource) -> Callable[[nn.Module], float]:
    """Make the measurement of the held-out loss."""
    windows = heldout_windows(source.heldout_tokens, config.sequence_length, config.eval_tokens)
    return lambda module: evaluate(
        module, windows, batch_size=config.micro_batch_size, device=config.device
    )


def _save(model: Transformer, source: TokenSource, folder: Path) -> None:
    """Write the final model, with the tokenizer of its data."""
    from steelyard.nn import checkpoint

    checkpoint.save(model, folder)
    if source.tokenizer is not None:
        files.write_bytes(folder / "tokenizer.json", source.tokenizer.read_bytes())


def _decoder_result(
    config: TrainConfig, source: TokenSource, found: EstimatorResult, model: Path
) -> TrainResult:
    """Add what only decoders have to a result."""
    from steelyard.cost import model_flops_per_token

    assert found.eval_loss is not None
    flops = found.tokens * model_flops_per_token(config.architecture, config.sequence_length)
    return TrainResult(
        **{item.name: getattr(found, item.name) for item in fields(found)},
        bits_per_byte=bits_per_byte(found.eval_loss, source.bytes_per_token),
        flops=float(flops),
        mfu=None,
        model=model,
    )
