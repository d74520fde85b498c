"""Contrastive training of two towers, in batches larger than their activations fit in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_functional
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.errors import ConfigError, DataError
from steelyard.train.batches import Batch

__all__ = ["ContrastiveLoss", "info_nce", "pair_batch", "same_texts"]


class _Pair(Protocol):
    """A module with two towers."""

    queries: Callable[[Tensor, Tensor], Tensor]
    documents: Callable[[Tensor, Tensor], Tensor]


def info_nce(
    queries: Tensor,
    documents: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    masked: Tensor | None = None,
    margin: float | None = None,
) -> Tensor:
    """Return how surprising each query's own document is among all.

    Args:
        queries: unit vectors [Q, D].
        documents: unit vectors [N, D].
        positives: place of each query's own document, int64 [Q].
        temperature: what cosines are divided by, above 0.
        masked: documents that count as no negative of a query, bool [Q, N]; such as copies of its
            own one.
        margin: documents whose cosine is above that of the query's own less this margin count as
            no negative either, as they are likely good answers too; None for none.

    Returns:
        Negative logarithms of the share of the own document [Q].

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), stage 1: in-batch negatives with false
        ones masked.
    """
    cosines = queries @ documents.T
    own = positives[:, None]
    hidden = torch.zeros_like(cosines, dtype=torch.bool) if masked is None else masked.clone()
    if margin is not None:
        hidden |= cosines.detach() > cosines.detach().gather(1, own) - margin
    hidden.scatter_(1, own, value=False)
    logits = (cosines / temperature).masked_fill(hidden, -torch.inf)
    return F.cross_entropy(logits, positives, reduction="none")


def same_texts(own: Tensor, keys: Tensor) -> Tensor:
    """Return which documents are copies of each query's own one.

    Args:
        own: key of each query's document, int64 [Q]; equal keys are equal texts.
        keys: keys of all documents, int64 [N].

    Returns:
        Bool [Q, N].
    """
    return own[:, None] == keys[None, :]


def pair_batch(
    queries: tuple[Tensor, Tensor],
    documents: tuple[Tensor, Tensor],
    keys: Tensor,
) -> dict[str, Tensor]:
    """Return a batch of queries with their documents.

    Args:
        queries: tokens int64 [B, T] and lengths int64 [B].
        documents: tokens int64 [B, 1 + H, S] and lengths [B, 1 + H]: the query's own document, and
            H that are hard to tell from it.
        keys: key of each document's text, int64 [B, 1 + H].

    Returns:
        The batch that `ContrastiveLoss` takes.

    Raises:
        DataError: the tensors are not of equal length.
    """
    sizes = {len(part) for part in (*queries, *documents, keys)}
    if len(sizes) != 1 or keys.shape != documents[1].shape:
        raise DataError(
            f"queries and documents of {sorted(sizes)} examples, keys {list(keys.shape)} for "
            f"lengths {list(documents[1].shape)}",
            hint="give each query as many documents as the others, and each document a key",
        )
    return {
        "queries": queries[0],
        "query_lengths": queries[1],
        "documents": documents[0],
        "document_lengths": documents[1],
        "keys": keys,
    }


@dataclass(frozen=True, kw_only=True)
class ContrastiveLoss:
    """InfoNCE of two towers over all documents of a batch, on all processes.

    With `chunk`, activations of no more than so many texts are held at once: vectors are computed
    without a graph, the loss gives their gradients, and each chunk is computed again to carry its
    part of them to the weights. Loss and gradients are those of the whole batch.

    Attributes:
        temperature: what cosines are divided by.
        margin: see `info_nce`; None for none.
        chunk: texts of each tower that are computed at once; 0 for all. Chunks call `backward`
            themselves, so they take no gradient scaling and no second micro-batch's averaging:
            leave `accumulation` at 1.

    Source: Gao et al. 2021 (GradCache, arXiv 2101.06983), section 3.
    """

    temperature: float = 0.05
    margin: float | None = None
    chunk: int = 0

    def __post_init__(self) -> None:
        """Refuse what is out of range.

        Raises:
            ConfigError: a temperature not above 0, or a negative chunk.
        """
        if self.temperature <= 0 or self.chunk < 0:
            raise ConfigError(
                f"temperature {self.temperature:g}, chunks of {self.chunk}",
                hint="give a temperature above 0, and chunks of 1 or more; 0 for one",
            )

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch of `pair_batch`.

        Args:
            module: has the towers `queries` and `documents`.
            batch: queries with their documents.

        Returns:
            A scalar with its graph.
        """
        assert isinstance(batch, dict)
        pair = cast(_Pair, module)
        sides = (
            (pair.queries, batch["queries"], batch["query_lengths"]),
            (pair.documents, batch["documents"].flatten(0, 1), batch["document_lengths"].flatten()),
        )
        if not self.chunk or not torch.is_grad_enabled():
            queries, documents = (tower(tokens, lengths) for tower, tokens, lengths in sides)
            return self._of(queries, documents, batch["keys"])
        return self._chunked(sides, batch["keys"])

    def _of(self, queries: Tensor, documents: Tensor, keys: Tensor) -> Tensor:
        """Return the mean loss of vectors, those of other processes as further negatives."""
        rows = torch.arange(len(queries), device=queries.device) * keys.shape[1]
        own = keys[:, 0]
        everything = keys.flatten()
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            rows = rows + dist.get_rank() * len(documents)
            # With its graph: a document's gradient comes from the queries of all processes.
            documents = torch.cat(dist_functional.all_gather(documents))
            parts = [torch.empty_like(everything) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, everything)
            everything = torch.cat(parts)
        masked = same_texts(own, everything)
        losses = info_nce(
            queries,
            documents,
            rows,
            temperature=self.temperature,
            masked=masked,
            margin=self.margin,
        )
        return losses.mean()

    def _chunked(
        self,
        sides: tuple[tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor], ...],
        keys: Tensor,
    ) -> Tensor:
        """Return the loss; the gradients of all chunks but the last are in the weights by then."""
        pieces = [
            (tower, tokens[at : at + self.chunk], lengths[at : at + self.chunk])
            for tower, tokens, lengths in sides
            for at in range(0, len(tokens), self.chunk)
        ]
        states, vectors = [], []
        for tower, tokens, lengths in pieces:
            states.append(torch.get_rng_state())
            with torch.no_grad():
                vectors.append(tower(tokens, lengths))
        ended = torch.get_rng_state()
        count = -(-len(sides[0][1]) // self.chunk)
        leaves = [piece.requires_grad_() for piece in vectors]
        loss = self._of(torch.cat(leaves[:count]), torch.cat(leaves[count:]), keys)
        gradients = torch.autograd.grad(loss, leaves)
        last = loss.detach()
        for number, (tower, tokens, lengths) in enumerate(pieces):
            # The same dropout as in the first pass, else the gradient is that of another function.
            torch.set_rng_state(states[number])
            carried = (tower(tokens, lengths) * gradients[number]).sum()
            if number < len(pieces) - 1:
                carried.backward()
            else:
                # Whoever called runs the last backward pass: its value is the loss, its gradient
                # that of the last chunk.
                last = last + carried - carried.detach()
        torch.set_rng_state(ended)
        return last
