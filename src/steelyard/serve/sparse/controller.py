"""The controller at work: one recurrent step per token, one product per past token."""

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from steelyard.errors import ConfigError, DataError
from steelyard.files import atomic_path

__all__ = ["Controller", "ControllerStates", "distance_buckets", "model_key"]

NUM_BUCKETS = 32


def model_key(vocab_size: int, hidden_size: int) -> str:
    """Name what a controller belongs to: a hash of the vocabulary's and the hidden state's size."""
    return hashlib.sha256(
        f"vocab_size={vocab_size} hidden_size={hidden_size}".encode()
    ).hexdigest()[:16]


def distance_buckets(count: int) -> np.ndarray:
    """Return the bucket of each distance below `count`, int64 [count]: half powers of two."""
    return np.minimum(np.floor(2 * np.log2(1.0 + np.arange(count))), NUM_BUCKETS - 1).astype(
        np.int64
    )


@dataclass(frozen=True, slots=True, eq=False)
class Controller:
    """Trained weights, all float32, for one step of a gated recurrent unit and a dot-product head.

    The score of past token i for the current token t is key_i . query_t + recency[bucket(t - i)];
    its sigmoid is the probability that i is among the tokens t attends most. Keys and queries are
    linear in the unit's states z_i and z_t.

    Attributes:
        gates: [V, 3h] input part of the reset, update and new gates of every token.
        recurrent: [3h, h] recurrent weights of the gates.
        recurrent_bias: [3h].
        key: [P, h] projection of z_i.
        query: [P, h] projection of z_t.
        recency: [32] addend by distance.
        model: what `model_key` gave for the language model.

    Source: Zhang et al. 2024 (arXiv 2407.02328), section 3.1; unit of Cho et al. 2014 (arXiv
        1406.1078) as in cuDNN.
    """

    gates: np.ndarray
    recurrent: np.ndarray
    recurrent_bias: np.ndarray
    key: np.ndarray
    query: np.ndarray
    recency: np.ndarray
    model: str

    def save(self, path: Path | str) -> None:
        """Write a safetensors file; a file of that name is replaced as a whole."""
        tensors = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name != "model"
        }
        with atomic_path(Path(path)) as temporary:
            save_file(
                tensors, temporary, metadata={"model": self.model, "kind": "steelyard controller"}
            )

    @classmethod
    def load(cls, path: Path | str) -> "Controller":
        """Read what `save` wrote.

        Args:
            path: file of the controller.

        Returns:
            The controller.

        Raises:
            DataError: the file is missing, damaged, or no controller.
        """
        try:
            with safe_open(path, framework="numpy") as opened:
                metadata = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (the file is no mapping)
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"{path} cannot be read: {error}", hint="train the controller again"
            ) from error
        if (
            set(tensors) != {field.name for field in fields(cls)} - {"model"}
            or "model" not in metadata
        ):
            raise DataError(
                f"{path} holds no controller", hint="give the file that Controller.save wrote"
            )
        return cls(**tensors, model=metadata["model"])

    def refuse_other(self, vocab_size: int, hidden_size: int) -> None:
        """Refuse a language model of another vocabulary or width.

        Args:
            vocab_size: tokens of the language model.
            hidden_size: width of the language model.

        Raises:
            ConfigError: the controller was trained for another model.
        """
        if self.model != model_key(vocab_size, hidden_size):
            message = (
                f"the controller was trained for another model than one of {vocab_size} "
                f"tokens and width {hidden_size}"
            )
            raise ConfigError(message, hint="train a controller for this model")

    def states(self, num_requests: int, max_length: int) -> "ControllerStates":
        """Return empty states for requests side by side."""
        return ControllerStates(self, num_requests, max_length)


class ControllerStates:
    """What the controller remembers of B requests.

    Its hidden state, and a key of every token in half precision.

    Attributes:
        keys: float16 [B, T, P].
        lengths: int64 [B] tokens read.
    """

    def __init__(self, controller: Controller, num_requests: int, max_length: int) -> None:
        """Start with nothing read."""
        width = controller.recurrent.shape[1]
        self._controller = controller
        self._hidden = np.zeros((num_requests, width), dtype=np.float32)
        self.keys = np.zeros((num_requests, max_length, len(controller.key)), dtype=np.float16)
        self.lengths = np.zeros(num_requests, dtype=np.int64)
        self._by_distance = controller.recency[distance_buckets(max_length)].astype(np.float32)
        self._scores = np.zeros((num_requests, max_length), dtype=np.float32)

    @property
    def bytes_per_token(self) -> int:
        """Bytes a token leaves behind."""
        return self.keys.shape[2] * self.keys.itemsize

    def clear(self, row: int) -> None:
        """Forget a request."""
        self._hidden[row] = 0.0
        self.lengths[row] = 0  # keys beyond it are never read

    def append(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Read the next token of some requests.

        Args:
            rows: int64 [F], each once.
            tokens: int64 [F].
        """
        from steelyard.serve.sparse.scoring import advance

        weights = self._controller
        keys = np.empty((len(rows), self.keys.shape[2]), dtype=np.float32)
        advance(
            self._hidden,
            rows,
            weights.gates[tokens],
            weights.recurrent,
            weights.recurrent_bias,
            weights.key,
            keys,
        )
        self.keys[rows, self.lengths[rows]] = keys
        self.lengths[rows] += 1

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Score every token read so far for the latest one.

        Args:
            rows: int64 [F] requests to score.

        Returns:
            float32 [B, T] before the sigmoid, overwritten by the next call; only rows asked for and
            tokens read mean anything.
        """
        from steelyard.serve.sparse.scoring import score_past

        queries = self._hidden[rows] @ self._controller.query.T
        score_past(
            self.keys.view(np.uint16), rows, self.lengths, queries, self._by_distance, self._scores
        )
        return self._scores
