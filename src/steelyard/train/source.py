"""What the trainer asks of its data, and the checks that data and configuration fit each other."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from steelyard.errors import ConfigError, DataError, all_of
from steelyard.train.config import TrainConfig

__all__ = ["TokenSource", "check_source"]


class TokenSource(Protocol):
    """Tokens in an order that depends on nothing but an index and a seed.

    `data.shards.TokenShards` is one.
    """

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to `vocab_size - 1`."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens to train on."""
        ...

    @property
    def heldout_tokens(self) -> np.ndarray:
        """Tokens kept for evaluation, integers [N]."""
        ...

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes an average token stands for."""
        ...

    @property
    def tokenizer(self) -> Path | None:
        """File of the tokenizer that cut the text, to be kept beside the weights, or None."""
        ...

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int, /) -> Any:
        """Return the int64 tokens [B, T + 1] of batch `index`."""
        ...


def check_source(config: TrainConfig, source: TokenSource) -> None:
    """Refuse data that the configuration cannot be trained on, with everything that is in the way.

    Args:
        config: the run.
        source: data of the run.

    Raises:
        ConfigError: the vocabulary of the data is larger than the architecture's, or the run wants
            more unique tokens than there are.
        DataError: there are fewer tokens than one batch or one held-out window needs.
    """
    all_of(
        lambda: _check_vocabulary(config, source),
        lambda: _check_training(config, source),
        lambda: _check_heldout(config, source),
    )


def _check_vocabulary(config: TrainConfig, source: TokenSource) -> None:
    """Refuse tokens that the model has no row for."""
    rows = config.architecture.vocab_size
    if source.vocab_size > rows:
        raise ConfigError(
            f"the data has a vocabulary of {source.vocab_size} tokens, the architecture "
            f"{config.architecture.name!r} only {rows}",
            hint=f"set vocab_size = {source.vocab_size} in the architecture, or prepare the data "
            f"with --vocab-size {rows}",
        )


def _check_training(config: TrainConfig, source: TokenSource) -> None:
    """Refuse less than a batch."""
    window = config.sequence_length + 1
    if config.unique_tokens and not window <= config.unique_tokens <= source.num_tokens:
        raise ConfigError(
            f"unique_tokens is {config.unique_tokens}, the data has {source.num_tokens}",
            hint=f"give {window} (a sequence) to {source.num_tokens}, or 0 for all",
        )
    if source.num_tokens < config.batch_size * window:
        raise DataError(
            f"{source.num_tokens} training tokens are fewer than one batch of {config.batch_size} "
            f"x {window}",
            hint="add text, or lower batch_size or sequence_length",
        )


def _check_heldout(config: TrainConfig, source: TokenSource) -> None:
    """Refuse less than a window to evaluate on."""
    window = config.sequence_length + 1
    if len(source.heldout_tokens) < window:
        raise DataError(
            f"{len(source.heldout_tokens)} held-out tokens are fewer than one window of {window}",
            hint="add text, raise the held-out fraction, or lower sequence_length",
        )
