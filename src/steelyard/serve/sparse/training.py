"""Trains the controller against a frozen language model."""

from collections.abc import Callable, Iterable
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.serve.sparse.controller import NUM_BUCKETS, Controller, distance_buckets, model_key
from steelyard.serve.sparse.labels import Aggregation, attention_rows, top_labels

__all__ = ["ControllerModule", "Objective", "balanced_loss", "mass_loss", "train_controller"]

Objective = Literal["labels", "mass"]


class ControllerModule(nn.Module):
    """The controller as it is trained, over the model's frozen embeddings.

    Attributes:
        unit: gated recurrent unit.
        key: projection of a past token's state.
        query: projection of the current token's state.
        recency: [32] addend by distance.
    """

    embedding: Tensor

    def __init__(self, embedding: Tensor, width: int, projection: int) -> None:
        """Draw the weights from PyTorch's generator, which the caller seeds.

        Args:
            embedding: [V, C] of the language model.
            width: width of the hidden state, h.
            projection: width of keys and queries, P.
        """
        super().__init__()
        # Scaled to deviation 1, so that training does not depend on the model's own scale.
        frozen = embedding.detach().float()
        self.register_buffer("embedding", frozen / frozen.std(), persistent=False)
        self.unit = nn.GRU(embedding.shape[1], width, batch_first=True)
        self.key = nn.Linear(width, projection, bias=False)
        self.query = nn.Linear(width, projection, bias=False)
        self.recency = nn.Parameter(torch.zeros(NUM_BUCKETS))

    def forward(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """Score all tokens for some of them.

        Args:
            tokens: int64 [B, T].
            queries: int64 [Q] positions.

        Returns:
            Scores before the sigmoid [B, Q, T]; those right of the diagonal mean nothing.
        """
        states = self.unit(self.embedding[tokens])[0]
        scores = self.query(states[:, queries]) @ self.key(states).transpose(1, 2)
        distance = (queries[:, None] - torch.arange(tokens.shape[1], device=tokens.device)).clamp(
            min=0
        )
        buckets = torch.from_numpy(distance_buckets(tokens.shape[1])).to(tokens.device)
        return scores + self.recency[buckets[distance]]

    @torch.no_grad()
    def export(self, hidden_size: int) -> Controller:
        """Return the weights for decoding.

        Args:
            hidden_size: width of the language model.

        Returns:
            The controller.
        """
        weights = {name: cast(Tensor, item) for name, item in self.unit.named_parameters()}
        gates = self.embedding @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
        arrays = (
            gates,
            weights["weight_hh_l0"],
            weights["bias_hh_l0"],
            self.key.weight,
            self.query.weight,
            self.recency,
        )
        return Controller(
            *(_array(item) for item in arrays), model=model_key(len(self.embedding), hidden_size)
        )


def balanced_loss(scores: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Average the binary cross-entropy over pairs so that marked and unmarked ones weigh alike.

    Args:
        scores: [B, Q, T] before the sigmoid.
        labels: bool [B, Q, T].
        valid: bool [B, Q, T] pairs that take part.

    Returns:
        A scalar.
    """
    each = F.binary_cross_entropy_with_logits(scores, labels.float(), reduction="none")
    marked, unmarked = labels & valid, ~labels & valid
    parts = [(each * chosen).sum() / chosen.sum().clamp(min=1) for chosen in (marked, unmarked)]
    return (parts[0] + parts[1]) / 2


def mass_loss(scores: Tensor, weights: Tensor, valid: Tensor) -> Tensor:
    """Return the cross-entropy between attention on past tokens and the softmax of their scores.

    It is averaged over rows, and teaches the order of magnitude of each token's attention where
    labels only tell the first from the rest.

    Args:
        scores: [B, Q, T].
        weights: attention [B, Q, T].
        valid: bool [B, Q, T] pairs that take part.

    Returns:
        A scalar.
    """
    target = weights.masked_fill(~valid, 0.0)
    target = target / target.sum(-1, keepdim=True).clamp(min=1e-9)
    told = scores.masked_fill(~valid, -torch.inf).log_softmax(-1)
    return -(target * told.masked_fill(~valid, 0.0)).sum(-1).mean()


def train_controller(
    model: Transformer,
    batches: Iterable[np.ndarray],
    *,
    width: int = 128,
    projection: int = 32,
    top: int = 96,
    objective: Objective = "mass",
    aggregation: Aggregation = "mean",
    num_sinks: int = 4,
    rows_per_sequence: int = 96,
    learning_rate: float = 3e-3,
    num_updates: int = 0,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Controller:
    """Train a controller on sequences of text.

    The controller learns from sampled rows of full attention, averaged over heads. The language
    model stays as it is.

    Args:
        model: a decoder; it is put in evaluation mode.
        batches: int64 [B, T] token ids, one array per update; T at most the model's positions.
        width: width of the controller's hidden state.
        projection: width of keys and queries; a token leaves 2 bytes per value behind.
        top: tokens to mark per row, K; "labels" only.
        objective: "labels": tell the most attended past tokens from the rest, by balanced binary
            cross-entropy; "mass": tell how the row's attention is spread, by cross-entropy with the
            softmax of the scores.
        aggregation: how attention is combined over layers.
        num_sinks: first tokens left out of the ranking.
        rows_per_sequence: rows of attention sampled per update.
        learning_rate: highest rate; it falls linearly to a twentieth when `num_updates` is known.
        num_updates: updates planned, 0 when unknown.
        seed: seed of weights and samples.
        progress: called with the update and its loss.

    Returns:
        The controller.

    Raises:
        ConfigError: there was no batch, or a sequence is too short to rank anything.

    Source: Zhang et al. 2024 (arXiv 2407.02328), section 3.1, for "labels"; "mass" is listwise
        distillation (Cao et al. 2007, ListNet).
    """
    model.eval()
    with torch.random.fork_rng(devices=[]):  # the caller's generator stays as it is
        torch.manual_seed(seed)
        module = ControllerModule(model.embedding.weight, width, projection).to(
            model.embedding.weight.device
        )
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    rng = np.random.default_rng(seed)
    update = -1
    for update, batch in enumerate(batches):
        if num_updates:
            optimizer.param_groups[0]["lr"] = learning_rate * _rate_at(update, num_updates)
        tokens = torch.from_numpy(batch).to(model.embedding.weight.device)
        queries = _sample_rows(rng, tokens.shape[1], rows_per_sequence, num_sinks).to(tokens.device)
        weights = attention_rows(model, tokens, queries, aggregation=aggregation)
        labels, valid = top_labels(weights, queries, top, num_sinks=num_sinks)
        scores = module(tokens, queries)
        loss = (
            mass_loss(scores, weights, valid)
            if objective == "mass"
            else balanced_loss(scores, labels, valid)
        )
        _improve(module, optimizer, loss)
        if progress is not None:
            progress(update, float(loss.detach()))
    if update < 0:
        raise ConfigError(
            "no batch was given to train the controller on",
            hint="give at least one [B, T] array of token ids",
        )
    return module.export(model.architecture.hidden_size)


def _improve(module: ControllerModule, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step down the loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()


def _rate_at(update: int, num_updates: int) -> float:
    """Return the share of the highest learning rate: ten updates of rise, then a linear fall."""
    return min(1.0, (update + 1) / 10, max(0.05, 1.1 * (1 - update / num_updates)))


def _sample_rows(rng: np.random.Generator, length: int, count: int, num_sinks: int) -> Tensor:
    """Choose rows, sorted, none among the sinks."""
    if length < num_sinks + 2:
        raise ConfigError(
            f"a sequence of {length} tokens is too short to rank past tokens",
            hint=f"give {num_sinks + 2} or more",
        )
    choices = np.arange(num_sinks + 1, length)
    return torch.from_numpy(np.sort(rng.choice(choices, min(count, len(choices)), replace=False)))


def _array(tensor: Tensor) -> np.ndarray:
    """Copy to numpy."""
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())
