"""The engine over bounded caches: one scheduler, one driver, slabs instead of block tables.

The scheduler is told that a block holds a whole sequence. A request then holds exactly one block
from its admission to its end, and the block's id is its slab: admission, order, fairness, aborts
and planning ahead work as they are.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import CapacityError, ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.serve.engine import LLM
from steelyard.serve.options import EngineOptions, PolicyName
from steelyard.serve.running.grammar import Grammars
from steelyard.serve.running.launcher import EngineRunner
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.fairness import OrderPolicy
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.step import StepOutput, StepPlan
from steelyard.serve.sparse.controller import Controller
from steelyard.serve.sparse.engine import SparseDecoder, slab_bytes
from steelyard.serve.sparse.policies import H2O, Adore, RetentionPolicy, Sinks, TopK, Window

__all__ = ["CACHES", "SparseRunner", "bounded_engine", "bounded_llm"]

CACHES: dict[str, Callable[[int], RetentionPolicy]] = {
    "window": Window,
    "sinks": Sinks,
    "h2o": H2O,
    "topk": TopK,
    "adaptive": Adore,
}
"""Policies by the names that the command line takes, each made of the number of tokens it keeps."""
_TOKENS = 256


def bounded_engine(
    model: Transformer,
    options: EngineOptions,
    *,
    end_tokens: tuple[int, ...] = (),
    grammars: Grammars | None = None,
    make_policy: Callable[[], OrderPolicy] | None = None,
) -> LLM:
    """Make the engine that options describe.

    Args:
        model: a decoder.
        options: name and size of the cache, and the limits of the engine.
        end_tokens: token ids that end any output unless its request ignores them.
        grammars: follows grammars; without it requests with a grammar are refused.
        make_policy: makes the order of requests; that of the options by default.

    Returns:
        The engine, as `bounded_llm` makes it.

    Raises:
        ConfigError: the cache is unknown or too small, its controller is missing or does not fit
            the model, or an option cannot be had with a bounded cache.
        CapacityError: `pool_bytes` holds no slab.
        DataError: the controller's file cannot be read.
    """
    return bounded_llm(
        model,
        _make_policy(options),
        controller=_load_controller(options),
        pool_bytes=options.pool_bytes or 256 * 2**20,
        max_model_len=options.max_model_len,
        token_budget=options.token_budget,
        end_tokens=end_tokens,
        grammars=grammars,
        asynchronous=options.asynchronous,
        max_num_seqs=options.max_num_seqs,
        order=options.policy,
        update_every=options.update_every,
        make_policy=make_policy,
    )


def bounded_llm(
    model: Transformer,
    policy: RetentionPolicy,
    *,
    controller: Controller | None = None,
    pool_bytes: int = 256 * 2**20,
    max_model_len: int = 0,
    token_budget: int = 512,
    end_tokens: tuple[int, ...] = (),
    grammars: Grammars | None = None,
    asynchronous: bool = False,
    max_num_seqs: int = 64,
    order: PolicyName = "fcfs",
    update_every: int = 0,
    make_policy: Callable[[], OrderPolicy] | None = None,
) -> LLM:
    """Make an engine whose requests keep a bounded number of tokens.

    Args:
        model: a decoder.
        policy: what is kept.
        controller: scores tokens; needed by `Adore`.
        pool_bytes: bytes of all slabs.
        max_model_len: longest sequence, 0 for the model's positions.
        token_budget: most tokens a step runs.
        end_tokens: token ids that end any output unless its request ignores them.
        grammars: follows grammars; without it requests with a grammar are refused.
        asynchronous: plan each step while the one before runs; outputs are the same.
        max_num_seqs: most requests that run at once, as far as there are slabs.
        order: order in which requests are served.
        update_every: steps between two updates of the order, 0 for none.
        make_policy: makes the order of requests; `order` by default.

    Returns:
        The engine. It refuses requests for several outputs, since a slab cannot be forked.

    Raises:
        ConfigError: policy, controller and model do not fit each other.
        CapacityError: `pool_bytes` holds no slab.

    Example:
        >>> llm = bounded_llm(model, Window(256))  # doctest: +SKIP
    """
    longest = max_model_len or model.architecture.max_positions
    slabs = _num_slabs(model, policy, longest, pool_bytes)
    # The scheduler keeps one block free when it admits a request beside others, hence the spare.
    running = min(max_num_seqs, token_budget, max(slabs - 1, 1))
    slabs = min(slabs, running + 1)
    config = SchedulerConfig(
        num_blocks=slabs,
        block_size=1 << (longest - 1).bit_length(),
        max_model_len=longest,
        token_budget=token_budget,
        max_num_seqs=running,
        watermark_fraction=0.0,
        policy=order,
        update_every=update_every,
        # What a slab holds depends on the request's own choices, so no other can use it.
        prefix_caching=False,
    )
    decoder = SparseDecoder(
        model, policy, num_requests=slabs, max_length=longest, controller=controller
    )
    runner = SparseRunner(decoder, _OneOutputSampler(grammars))
    return LLM(
        model,
        config,
        end_tokens=end_tokens,
        asynchronous=asynchronous,
        runner=runner,
        make_policy=make_policy,
    )


def _num_slabs(model: Transformer, policy: RetentionPolicy, longest: int, pool_bytes: int) -> int:
    """Return how many slabs the pool holds, at least one."""
    size = slab_bytes(model, policy, longest)
    slabs = pool_bytes // size
    if not slabs:
        raise CapacityError(
            f"pool_bytes {pool_bytes} hold no slab of {size} bytes",
            hint="raise pool_bytes, or keep fewer tokens",
        )
    return slabs


def _make_policy(options: EngineOptions) -> RetentionPolicy:
    """Make the policy that the options name."""
    return CACHES[options.cache](options.cache_tokens or _TOKENS)


def _load_controller(options: EngineOptions) -> Controller | None:
    """Read the controller, which one cache needs and no other takes."""
    path = options.cache_controller
    return None if path is None else Controller.load(path)


class _OneOutputSampler(Sampler):
    """A sampler that refuses requests for several outputs."""

    def check(self, params: SamplingParams, vocab_size: int) -> None:
        """Refuse parameters that a bounded cache cannot honor, as `Sampler.check` does."""
        if params.num_sequences > 1 or params.beam_width:
            raise ConfigError(
                "a bounded cache returns one output per request",
                hint="use n = 1, best_of = 0 or 1 and no beam_width, or serve without --cache",
            )
        super().check(params, vocab_size)


class SparseRunner(EngineRunner):
    """Executes plans of a scheduler whose blocks are the slabs of a decoder.

    A prompt is fed in pieces that begin at multiples of the decoder's chunk, wherever the plans
    cut it: tokens beyond the last multiple wait for the next plan. What is released then depends
    on the request alone, and so do its tokens, whatever else runs.

    Attributes:
        decoder: holds the slabs.
        sampler: turns logits into tokens.
        kernel: name of what runs a step.
    """

    kernel = "sparse"

    def __init__(self, decoder: SparseDecoder, sampler: Sampler) -> None:
        """Keep the parts.

        Args:
            decoder: one row per block of the scheduler.
            sampler: turns logits into tokens.
        """
        super().__init__(sampler)
        self.decoder = decoder

    @property
    def kv(self) -> Tensor:
        """Keys and values of all slabs, [L, 2, B, KV, S, D]."""
        return self.decoder.kv

    def warm_up(self) -> None:
        """Compile kernels, so that no timed step pays for it."""
        row = np.zeros(1, dtype=np.int64)
        self.decoder.feed(row, [row])
        self.decoder.free(0)
        self.sampler.warm_up(self.decoder.model.architecture.vocab_size)

    @torch.inference_mode()
    def _run(self, plan: StepPlan, token_ids: np.ndarray) -> StepOutput:
        """Run one step now."""
        rows = plan.block_tables[:, 0]
        last: dict[int, Tensor] = {}
        decodes = plan.num_decodes
        if decodes:
            # Apart from prompts: beside a chunk each decoding row would be padded to its width.
            order = np.argsort(rows[:decodes])
            chunks = [token_ids[index : index + 1] for index in order]
            logits = self.decoder.feed(rows[order], chunks)
            last.update(zip(order.tolist(), logits, strict=True))
        sampled = np.searchsorted(plan.query_starts, plan.sample_rows, side="right") - 1
        ends = self._take_in(plan, token_ids, set(sampled.tolist()))
        for pieces in self._rounds(ends, rows):
            order = sorted(pieces, key=lambda index: rows[index])
            logits = self.decoder.feed(rows[order], [pieces[index] for index in order])
            last.update(zip(order, logits, strict=True))
        if not len(sampled):
            return plan.blank_output()
        return self.sampler.sample(torch.stack([last[index] for index in sampled.tolist()]), plan)

    def _take_in(self, plan: StepPlan, token_ids: np.ndarray, sampled: set[int]) -> dict[int, int]:
        """Note the prompt tokens of a plan, and return up to where each sequence may be fed."""
        decoder = self.decoder
        starts = plan.query_starts
        ends = {}
        for index in range(plan.num_decodes, len(plan.request_ids)):
            row = int(plan.block_tables[index, 0])
            end = int(plan.context_lengths[index])
            first = end - int(plan.query_lengths[index])
            if first == 0:  # the slab's last owner ended, or this request was preempted
                decoder.free(row)
            decoder.tokens[row, first:end] = token_ids[starts[index] : starts[index + 1]]
            ends[index] = end if index in sampled else end - end % decoder.chunk
        return ends

    def _rounds(self, ends: dict[int, int], rows: np.ndarray) -> Iterator[dict[int, np.ndarray]]:
        """Yield the next piece of every prompt until all are fed up to their ends."""
        decoder = self.decoder
        while True:
            pieces = {}
            for index, end in ends.items():
                row = rows[index]
                start = int(decoder.table.lengths[row])
                if start < end:
                    pieces[index] = decoder.tokens[row, start : min(start + decoder.chunk, end)]
            if not pieces:
                return
            yield pieces
