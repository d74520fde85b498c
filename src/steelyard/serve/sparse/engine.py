"""A batched decoder over bounded caches: every request owns a slab of constant size."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import CapacityError, ConfigError
from steelyard.nn.traits import refuse_unserved
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.packed_model import packed_model
from steelyard.serve.running.pool import lazy_zeros
from steelyard.serve.running.weights import chosen_weights
from steelyard.serve.sparse.attention import SlabAttention
from steelyard.serve.sparse.controller import Controller
from steelyard.serve.sparse.labels import refuse_limited_attention
from steelyard.serve.sparse.policies import RetentionPolicy, Sinks, TopK
from steelyard.serve.sparse.renumber import SinkKeys
from steelyard.serve.sparse.slots import BLOCK_SIZE, SlotTable, slab_width

__all__ = ["SparseDecoder", "SparseStats", "slab_bytes"]


@dataclass(frozen=True, slots=True)
class SparseStats:
    """Counters of a decoder.

    Attributes:
        steps: steps run.
        appended: tokens fed.
        released: tokens that left a cache.
        rebuilt: released tokens computed again.
        kv_bytes_per_request: bytes of keys and values of one slab.
        controller_bytes_per_token: bytes of controller state a token leaves behind, 0 without a
            controller.
    """

    steps: int
    appended: int
    released: int
    rebuilt: int
    kv_bytes_per_request: int
    controller_bytes_per_token: int


class SparseDecoder:
    """Decodes up to B requests together, each from a bounded cache.

    `feed` takes prompts in chunks and releases after each, so memory never exceeds the slab;
    `prefill.fill` instead runs a whole prompt with full attention, in memory that grows with it,
    and keeps the best tokens.

    Attributes:
        model: model in evaluation mode; its linear layers are packed where that is faster,
            so later changes do not reach it.
        table: which token stands in which slot.
        kv: [L, 2, B, KV, S, D] keys and values.
        tokens: int64 [B, T] what each request was fed.
        chunk: most tokens of a request in a step.
        memory: the controller's states, or None.

    Source: Zhang et al. 2024 (arXiv 2407.02328), section 3.
    """

    def __init__(
        self,
        model: Transformer,
        policy: RetentionPolicy,
        *,
        num_requests: int,
        max_length: int,
        controller: Controller | None = None,
        chunk: int = BLOCK_SIZE,
    ) -> None:
        """Allocate the slabs.

        Args:
            model: a decoder.
            policy: what is kept.
            num_requests: requests side by side, B.
            max_length: longest sequence, T.
            controller: scores tokens; needed by a policy whose signal is "controller".
            chunk: most tokens of a request in a step.

        Raises:
            ConfigError: sizes are out of range, the policy lacks its controller, or the controller
                was trained for another model.
            CapacityError: there is no memory for the slabs.
        """
        _refuse(model, policy, max_length, controller)
        arch = model.architecture
        self.model = model.eval()
        is_plain = chosen_weights(model, "auto") == "fp32"
        self._packed = packed_model(model, "fp32")[0] if is_plain else model
        self.chunk = _chunk_of(policy, chunk)
        self.table = SlotTable(policy, num_requests, max_length, chunk=self.chunk)
        self.tokens = np.zeros((num_requests, max_length), dtype=np.int64)
        self.memory = (
            controller.states(num_requests, max_length)
            if controller is not None and policy.signal == "controller"
            else None
        )
        weight = next(model.parameters())
        width = self.table.width
        shape = (arch.num_layers, 2, num_requests, arch.num_kv_heads, width, arch.head_dim)
        try:
            self.kv = lazy_zeros(shape, weight.dtype, weight.device)
        except (OSError, OverflowError, RuntimeError) as error:
            raise CapacityError(
                f"no memory for {num_requests} slabs of {self.table.width} slots",
                hint="lower num_requests",
            ) from error
        self._sinks = (
            SinkKeys(model, policy, self.kv)
            if isinstance(policy, Sinks) and policy.renumber
            else None
        )
        self._steps = self._appended = self._released = self._rebuilt = 0

    @property
    def policy(self) -> RetentionPolicy:
        """What is kept."""
        return self.table.policy

    def stats(self) -> SparseStats:
        """Return the counters."""
        kv_bytes = self.kv.numel() * self.kv.element_size() // len(self.tokens)
        state_bytes = self.memory.bytes_per_token if self.memory is not None else 0
        return SparseStats(
            self._steps, self._appended, self._released, self._rebuilt, kv_bytes, state_bytes
        )

    def free(self, row: int) -> None:
        """Forget a request, so that its slab can serve another."""
        self.table.clear(row)
        if self.memory is not None:
            self.memory.clear(row)

    @torch.inference_mode()
    def feed(self, rows: np.ndarray, chunks: list[np.ndarray]) -> Tensor:
        """Run the next tokens of some requests, together with released ones that matter again.

        Tokens are rebuilt only for requests that get a single token: those that decode.

        Args:
            rows: int64 [F] requests, rising.
            chunks: [F] token ids of each, at least one and at most `chunk`.

        Returns:
            Logits after each request's last token, [F, V].

        Raises:
            ConfigError: a chunk is empty or too long, or a request outgrows `max_length`; nothing
                changes.
        """
        counts = np.array([len(chunk) for chunk in chunks])
        new_rows, new_positions = self._remember(rows, chunks, counts)
        scores = self._score(rows, chunks)
        single = np.zeros(len(self.tokens), dtype=bool)
        single[rows[counts == 1]] = True
        again_rows, again_positions = (
            self.table.rebuild_set(scores, single)
            if scores is not None
            else (new_rows[:0], new_rows[:0])
        )
        # Rebuilt and new tokens are one batch, sorted, so that the last row of a request is its
        # latest token. A rebuilt token sees what is cached now, not what it once saw.
        flat_rows = np.concatenate([again_rows, new_rows])
        flat_positions = np.concatenate([again_positions, new_positions])
        order = np.lexsort((flat_positions, flat_rows))
        flat_rows = flat_rows[order]
        flat_positions = flat_positions[order]
        last = np.searchsorted(flat_rows, rows, side="right") - 1
        hidden = self._forward(flat_rows, flat_positions, last)
        self._release(scores)
        self._steps += 1
        self._appended += len(new_rows)
        self._rebuilt += len(again_rows)
        return self._packed.head(hidden)

    def _remember(
        self, rows: np.ndarray, chunks: list[np.ndarray], counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Check and store new tokens; return row and position of each."""
        starts = self.table.lengths[rows]
        if counts.min() < 1 or counts.max() > self.chunk:
            raise ConfigError(
                f"a chunk has {counts.min()} to {counts.max()} tokens, but may have 1 to "
                f"{self.chunk}",
                hint="cut the prompt",
            )
        if (starts + counts > self.tokens.shape[1]).any():
            raise ConfigError(
                f"a request would outgrow max_length = {self.tokens.shape[1]}",
                hint="free it, or raise max_length",
            )
        flat_rows = np.repeat(rows, counts)
        positions = (
            np.repeat(starts, counts)
            + np.arange(len(flat_rows))
            - np.repeat(np.cumsum(counts) - counts, counts)
        )
        self.tokens[flat_rows, positions] = np.concatenate(chunks)
        return flat_rows, positions

    def _score(self, rows: np.ndarray, chunks: list[np.ndarray]) -> np.ndarray | None:
        """Let the controller read the new tokens and score all, [B, T]; None without one."""
        if self.memory is None:
            return None
        # Its unit is recurrent: tokens of one request go one after the other, requests together.
        for index in range(max(map(len, chunks))):
            some = [place for place, chunk in enumerate(chunks) if len(chunk) > index]
            self.memory.append(rows[some], np.array([chunks[place][index] for place in some]))
        return self.memory.scores(rows)

    def _forward(self, rows: np.ndarray, positions: np.ndarray, last: np.ndarray) -> Tensor:
        """Run rows of the flat batch; return the last hidden states of some."""
        table = self.table
        policy = self.policy
        slots = table.on_append(rows, positions)
        if self._sinks is not None:
            self._sinks.turn(table)
        device = self.kv.device
        tokens, places, wanted = (
            torch.from_numpy(item).to(device)
            for item in (self.tokens[rows, positions], positions, last)
        )
        attend = SlabAttention(
            self.kv,
            rows,
            slots,
            positions,
            table.positions,
            count_mass=policy.signal == "attention",
        )
        hidden = self._packed.run(tokens, places, attend, wanted)
        mass = attend.mass.numpy(force=True)
        if isinstance(policy, TopK):
            # The first pass ranked all tokens; this one attends to the best and to the latest.
            again = SlabAttention(self.kv, rows, slots, positions, table.positions)
            again.restrict(
                _largest(mass, policy.attended) | (table.positions == table.lengths[:, None] - 1)
            )
            return self._packed.run(tokens, places, again, wanted)
        table.received += mass
        return hidden

    def _release(self, scores: np.ndarray | None) -> None:
        """Bring every request back to its capacity."""
        # After the step, so that its own tokens compete with those that were kept.
        signal = self.table.received if scores is None else self.table.of_slots(scores)
        self._released += len(self.table.select_release(signal)[0])


def _refuse(
    model: Transformer, policy: RetentionPolicy, max_length: int, controller: Controller | None
) -> None:
    """Refuse what does not fit together."""
    arch = model.architecture
    refuse_unserved(arch)
    if max_length > arch.max_positions:
        raise ConfigError(
            f"max_length {max_length} is beyond the {arch.max_positions} positions of {arch.name}",
            hint="lower max_length",
        )
    refuse_limited_attention(model, max_length)
    if policy.signal == "controller" and controller is None:
        raise ConfigError(
            f"{type(policy).__name__} needs a controller",
            hint="train one with sparse.training.train_controller",
        )
    if controller is not None:
        controller.refuse_other(arch.vocab_size, arch.hidden_size)


def slab_bytes(
    model: Transformer, policy: RetentionPolicy, max_length: int, chunk: int = BLOCK_SIZE
) -> int:
    """Return the bytes of keys and values that one request holds.

    Args:
        model: a decoder.
        policy: what is kept.
        max_length: longest sequence; it counts only for a policy that keeps all.
        chunk: most tokens of a request in a step.

    Returns:
        Bytes of one slab.
    """
    arch, weight = model.architecture, next(model.parameters())
    slot = 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim * weight.element_size()
    return slot * slab_width(policy, max_length, _chunk_of(policy, chunk))


def _chunk_of(policy: RetentionPolicy, chunk: int) -> int:
    """Return the tokens of a request that one step may take."""
    # Each token of the oracle attends to a choice of its own, so a step has one per request.
    return 1 if isinstance(policy, TopK) else chunk


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Mark the `count` largest of each row."""
    marked = np.ones(values.shape, dtype=bool)
    if count < values.shape[1]:
        marked[:] = False
        np.put_along_axis(marked, np.argpartition(-values, count, axis=1)[:, :count], True, axis=1)
    return marked
