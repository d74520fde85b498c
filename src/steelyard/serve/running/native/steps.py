"""Runs steps in the native kernels: one call per step, into buffers that are kept."""

import ctypes
import time

import numpy as np
import torch
from torch import Tensor

from steelyard.catalog.engine_rates import KERNEL_PARTS
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.native.layout import ModelLayout, StepLayout
from steelyard.serve.running.native.library import Team
from steelyard.serve.running.native.packing import PANEL, padded
from steelyard.serve.running.pool import KVPool
from steelyard.serve.running.sampling.peaks import Peaks
from steelyard.serve.running.weights import ComputedIn
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["PARTS", "NativeSteps"]

PARTS = (*KERNEL_PARTS, "call")
"""Parts of a step that are timed on demand; "call" is all of them with what Python adds."""
_ZERO = np.zeros(1, dtype=np.int64)


def _row_of(width: int) -> int:
    """Return the numbers of a row of a buffer, as `row_of` of step.cpp."""
    return (padded(width) // PANEL | 1) * PANEL


class NativeSteps:
    """A model, its pool and the buffers of a step.

    Nothing is allocated per step unless a step has more rows than any before. The call holds no
    Python lock, so the next step can be scheduled meanwhile.

    Attributes:
        packed_bytes: bytes of the packed weights.
        stored: how the matrices of each part are kept, one for each layer.
        peaks: peaks of the last step's logits.
        part_seconds: float64 [PARTS] to which each step adds what its parts took; None by default.
    """

    def __init__(
        self,
        model: Transformer,
        pool: KVPool,
        library: ctypes.CDLL,
        *,
        rows: int,
        threads: int,
        weights: ComputedIn = "fp32",
    ) -> None:
        """Pack the weights and make buffers.

        Args:
            model: one that `layout.fits`.
            pool: keys and values.
            library: the kernels.
            rows: tokens of the largest step expected.
            threads: number of threads that share a step.
            weights: type of the products.

        Raises:
            ConfigError: a weight cannot be rounded to the type.
        """
        arch = model.architecture
        self.part_seconds: np.ndarray | None = None
        self.peaks: Peaks | None = None
        self._library = library
        self._layout = ModelLayout(model, pool, library, weights)
        self.packed_bytes = self._layout.packed_bytes
        self.stored = self._layout.stored
        self._vocab = arch.vocab_size
        self._model = self._layout.address
        self._team = Team(library, threads)
        heads = arch.num_heads * arch.head_dim
        inner = arch.intermediate_size * (2 if arch.is_gated else 1)
        self._widths = (
            arch.hidden_size,
            arch.hidden_size,
            heads + 2 * arch.num_kv_heads * arch.head_dim,
            heads,
            inner,
        )
        self._widest = max(arch.hidden_size, heads, arch.intermediate_size)
        self._indices, self._first = np.empty(0, dtype=np.int64), 0
        self._make_buffers(rows, 1)

    def _make_buffers(self, rows: int, picks: int) -> None:
        """Make buffers for a number of rows and of those that have logits."""
        self._rows, self._picks = rows, picks
        tile_words = self._library.steelyard_tile_words(rows, self._widest)
        self._logits = torch.empty(picks, padded(self._vocab))
        peaks = torch.empty(picks), torch.empty(picks, dtype=torch.int64)
        self._peaks = Peaks(*(item.numpy() for item in peaks))
        self._buffers = (
            *[torch.empty(rows, _row_of(width)) for width in self._widths],
            self._logits,
            *peaks,
            torch.empty(tile_words, dtype=torch.int32),
        )
        self._places = tuple(item.data_ptr() for item in self._buffers)
        self._found: dict[int, Tensor] = {}

    def logits(self, plan: StepPlan, token_ids: np.ndarray) -> Tensor | None:
        """Run a step.

        Args:
            plan: the step.
            token_ids: int64 [T], none of them unknown.

        Returns:
            Logits [R, V] of the sampled rows, valid until the next step; None when there are none.
        """
        begin = time.perf_counter()
        picks, places = plan.sample_rows, None
        # The kernels move picked rows to the front in place, so each is picked once, in order.
        order = picks.tolist()
        if order != sorted(set(order)):
            picks, places = np.unique(picks, return_inverse=True)
        if len(token_ids) > self._rows or len(picks) > self._picks:
            self._make_buffers(max(self._rows, len(token_ids)), max(self._picks, len(picks)))
        tokens, _rows = self._layout.place_rows(token_ids)
        step = self._describe(plan, tokens, picks)
        if self.part_seconds is not None:
            step.seconds = self.part_seconds.ctypes.data
        self._library.steelyard_run(self._team.address, self._model, ctypes.addressof(step))
        if self.part_seconds is not None:
            self.part_seconds[-1] += time.perf_counter() - begin
        if not len(picks):
            return None
        if len(picks) not in self._found:
            self._found[len(picks)] = self._logits[: len(picks), : self._vocab]
        found = self._found[len(picks)]
        chosen = slice(len(picks)) if places is None else places
        self.peaks = Peaks(self._peaks.values[chosen], self._peaks.tokens[chosen])
        return found if places is None else found[torch.from_numpy(places)]

    def _describe(self, plan: StepPlan, tokens: np.ndarray, picks: np.ndarray) -> StepLayout:
        """Describe a step; the description holds until the next one is made."""
        indices = (
            tokens,
            plan.positions,
            plan.slot_mapping,
            _ZERO,  # the kernels add lengths up to where sequences begin
            plan.query_lengths,
            plan.context_lengths,
            plan.block_tables.reshape(-1),
            picks,
        )
        counts = [len(item) for item in indices]
        if (total := sum(counts)) > len(self._indices):
            self._indices = np.empty(2 * total, dtype=np.int64)
            self._first = self._indices.ctypes.data
        # In one call: after a step, whose weights fill the caches, each one of numpy is slow.
        np.concatenate(indices, out=self._indices[:total], casting="same_kind")
        places = [self._first]
        for count in counts[:-1]:
            places.append(places[-1] + 8 * count)
        del places[4]  # lengths stand with what was put before them
        sizes = (
            len(tokens),
            plan.num_decodes,
            len(plan.request_ids),
            plan.block_tables.shape[1],
            len(picks),
        )
        return StepLayout(*sizes, *places, *self._places)
