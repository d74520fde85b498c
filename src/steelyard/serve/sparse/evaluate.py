"""What a bounded cache costs in quality.

Sequences are fed token by token, as in decoding: a full prefill would hide what releases cost.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.serve.sparse.controller import Controller
from steelyard.serve.sparse.engine import SparseDecoder
from steelyard.serve.sparse.labels import Aggregation, attention_rows, top_labels
from steelyard.serve.sparse.policies import RetentionPolicy

__all__ = ["Evaluation", "controller_recall", "evaluate", "evaluate_full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How well each next token was told.

    Attributes:
        tokens: int64 [B, T] the sequences.
        losses: float32 [B, T - 1] cross-entropy of each next token, nats.
        choices: int64 [B, T - 1] likeliest next token.
        seconds: seconds of decoding, model and policy together.
        kv_bytes_per_request: bytes of keys and values a request held at most.
        rebuilt_per_token: released tokens computed again, per token fed.
    """

    tokens: np.ndarray
    losses: np.ndarray
    choices: np.ndarray
    seconds: float
    kv_bytes_per_request: int
    rebuilt_per_token: float = 0.0

    @property
    def cross_entropy(self) -> float:
        """Mean loss, nats per token."""
        return float(self.losses.mean())

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, all sequences together."""
        return self.losses.size / self.seconds

    def agreement(self, other: "Evaluation") -> float:
        """Return the share of places at which two evaluations name the same likeliest token."""
        return float((self.choices == other.choices).mean())

    def recall_accuracy(self, spans: list[list[tuple[int, int]]]) -> float:
        """Return the share of spans whose every token was the likeliest.

        Args:
            spans: positions (first, end) of each sequence; first at least 1.

        Returns:
            A fraction; NaN without spans.
        """
        hit = self.choices == self.tokens[:, 1:]
        found = [
            bool(hit[row, first - 1 : end - 1].all())
            for row, places in enumerate(spans)
            for first, end in places
        ]
        return float(np.mean(found)) if found else float("nan")


@torch.inference_mode()
def evaluate_full(model: Transformer, tokens: np.ndarray) -> Evaluation:
    """Evaluate full attention, in one forward per sequence.

    It equals decoding step by step with every token cached.

    Args:
        model: a decoder.
        tokens: int64 [B, T].

    Returns:
        The evaluation; its seconds are those of the parallel forward.
    """
    arch = model.architecture
    parts = []
    start = time.perf_counter()
    for row in torch.from_numpy(tokens).to(model.embedding.weight.device):
        parts.append(_told(model(row[None, :-1])[0], row[1:]))
    seconds = time.perf_counter() - start
    size = (
        2
        * arch.num_layers
        * arch.num_kv_heads
        * arch.head_dim
        * model.embedding.weight.element_size()
        * tokens.shape[1]
    )
    losses, choices = (np.stack(column) for column in zip(*parts, strict=True))
    return Evaluation(
        tokens=tokens, losses=losses, choices=choices, seconds=seconds, kv_bytes_per_request=size
    )


@torch.inference_mode()
def evaluate(
    model: Transformer,
    policy: RetentionPolicy,
    tokens: np.ndarray,
    *,
    controller: Controller | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluate a policy by feeding sequences one token at a time, all sequences side by side.

    Args:
        model: a decoder.
        policy: what is kept.
        tokens: int64 [B, T], T at least 2.
        controller: controller for policies that need one.
        progress: called with the tokens fed of each sequence.

    Returns:
        The evaluation.

    Raises:
        ConfigError: the sequences are too short, or policy, controller and model do not fit each
            other.
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise ConfigError(
            f"tokens have shape {tokens.shape}, but [B, T] with T >= 2 is needed",
            hint="give longer sequences",
        )
    decoder = SparseDecoder(
        model,
        policy,
        num_requests=len(tokens),
        max_length=tokens.shape[1],
        controller=controller,
        chunk=1,
    )
    # One token a step even where the decoder takes chunks: a chunk's tokens see each other before
    # anything is released.
    rows = np.arange(len(tokens))
    targets = torch.from_numpy(tokens).to(decoder.kv.device)
    losses, choices = [], []
    start = time.perf_counter()
    for place in range(tokens.shape[1] - 1):
        loss, choice = _told(
            decoder.feed(rows, list(tokens[:, place : place + 1])), targets[:, place + 1]
        )
        losses.append(loss)
        choices.append(choice)
        if progress is not None:
            progress(place + 1)
    seconds = time.perf_counter() - start
    stats = decoder.stats()
    return Evaluation(
        tokens=tokens,
        losses=np.stack(losses, 1),
        choices=np.stack(choices, 1),
        seconds=seconds,
        kv_bytes_per_request=stats.kv_bytes_per_request,
        rebuilt_per_token=stats.rebuilt / stats.appended,
    )


def controller_recall(
    model: Transformer,
    controller: Controller,
    tokens: np.ndarray,
    rows: np.ndarray,
    *,
    top: int = 96,
    num_sinks: int = 4,
    aggregation: Aggregation = "mean",
) -> float:
    """Measure how much attention the controller's best past tokens hold.

    It is set in relation to what the most attended tokens hold; sinks are left out of both.

    Args:
        model: a decoder.
        controller: controller trained for the model.
        tokens: int64 [B, T].
        rows: int64 [Q] positions to measure at, rising.
        top: tokens each may name, K.
        num_sinks: first tokens left out.
        aggregation: how attention is combined over layers.

    Returns:
        A fraction of the oracle's attention mass, 1 at best.
    """
    queries = torch.from_numpy(rows)
    weights = attention_rows(model, torch.from_numpy(tokens), queries, aggregation=aggregation)
    best, _ = top_labels(weights, queries, top, num_sinks=num_sinks)
    states = controller.states(len(tokens), tokens.shape[1])
    every = np.arange(len(tokens))
    scores = np.full(weights.shape, -np.inf, dtype=np.float32)
    wanted = {int(row): index for index, row in enumerate(rows)}
    for place in range(int(rows.max()) + 1):
        states.append(every, tokens[:, place])
        if place in wanted:
            scores[:, wanted[place], : place + 1] = states.scores(every)[:, : place + 1]
    named, _ = top_labels(torch.from_numpy(scores), queries, top, num_sinks=num_sinks)
    return float((weights * named).sum() / (weights * best).sum())


def _told(logits: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return loss and likeliest token of each row."""
    losses = F.cross_entropy(logits.float(), targets, reduction="none")
    return losses.numpy(force=True), logits.argmax(-1).numpy(force=True)
