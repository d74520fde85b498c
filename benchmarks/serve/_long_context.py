"""Decoding at 8K tokens of context: bounded caches in turns with full attention."""

import time
from collections.abc import Callable

import numpy as np
import torch
from benchmarks.common import Check, alternate, median_spread, ratio

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import Transformer, build
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan
from steelyard.serve.sparse.engine import SparseDecoder
from steelyard.serve.sparse.policies import Adore
from steelyard.serve.sparse.training import ControllerModule

__all__ = ["speed_checks"]

_CONTEXT = 8192
_STEPS = 4


def speed_checks(quick: bool) -> list[Check]:
    """Time bounded caches and full attention in turn, and count the bytes of a request."""
    batch = 8 if quick else 16
    model = _model(quick)
    print(
        f"{sum(item.numel() for item in model.parameters()) / 1e6:.1f}M parameters, {batch} "
        f"requests at {_CONTEXT} tokens of context"
    )
    full, kernel = _full(model, batch)
    sparse = {rebuild: _Sparse(model, batch, rebuild) for rebuild in (8, 0)}
    rivals: dict[str, Callable[[], object]] = {
        "full": full,
        "adore R=8": sparse[8].steps,
        "adore R=0": sparse[0].steps,
    }
    seconds = alternate(rivals, rounds=3 if quick else 7)
    for name, samples in seconds.items():
        spread = median_spread([batch * _STEPS / item for item in samples])
        print(f"{name:10s} {spread.median:8.1f} tokens/s  [{spread.low:.1f}, {spread.high:.1f}]")
    stats = sparse[8].decoder.stats()
    print(
        f"full attention by {kernel}; {sparse[8].rebuilt_share:.2f} of the 8 rebuilds used; "
        f"{stats.kv_bytes_per_request} bytes per request"
    )
    shorter = SparseDecoder(
        model,
        Adore(),
        num_requests=1,
        max_length=_CONTEXT // 2,
        controller=_controller(model),
        chunk=1,
    )
    return [
        Check(
            "3 tokens per second over full attention",
            ratio(seconds["full"], seconds["adore R=8"]).median,
            2.2,
            "higher",
        ),
        Check(
            "3 bytes per request at 8K over 4K tokens of context",
            stats.kv_bytes_per_request / shorter.stats().kv_bytes_per_request,
            1.0,
            "lower",
        ),
        Check("4 controller's share of a step", sparse[8].controller_share, 0.05, "lower"),
    ]


def _model(quick: bool) -> Transformer:
    """Build a Llama with random weights: 5M parameters when quick, else 30M."""
    arch = Architecture(
        name="long-context",
        hidden_size=256 if quick else 512,
        num_layers=4 if quick else 8,
        num_heads=4 if quick else 8,
        num_kv_heads=4 if quick else 8,
        head_dim=64,
        intermediate_size=704 if quick else 1408,
        vocab_size=8192,
        max_positions=_CONTEXT + 512,
    )
    return build(arch, seed=0).eval()


def _controller(model: Transformer):
    """Make an untrained controller; with it every rebuild is used, which is the dearest case."""
    torch.manual_seed(0)
    return ControllerModule(model.embedding.weight, 128, 32).export(model.architecture.hidden_size)


class _Sparse:
    """A decoder whose requests stand at the context's length, with drawn states."""

    def __init__(self, model: Transformer, batch: int, rebuild: int) -> None:
        """Fill caches and histories with draws: time does not depend on the values."""
        policy = Adore(capacity=256, rebuild=rebuild)
        self.decoder = SparseDecoder(
            model,
            policy,
            num_requests=batch,
            max_length=_CONTEXT + 512,
            controller=_controller(model),
            chunk=1,
        )
        self.rng = np.random.default_rng(0)
        self.rows, self.policy_s, self.total_s = np.arange(batch), 0.0, 0.0
        table, memory = self.decoder.table, self.decoder.memory
        assert memory is not None
        self.decoder.tokens[:] = self.rng.integers(0, 8192, self.decoder.tokens.shape)
        for row in self.rows:
            kept = np.sort(self.rng.choice(_CONTEXT, policy.capacity, replace=False))
            table.on_append(np.full(len(kept), row), kept)
        table.lengths[:] = memory.lengths[:] = _CONTEXT
        memory.keys[:] = 0.1 * self.rng.standard_normal(memory.keys.shape, dtype=np.float32)
        self.decoder.kv.normal_(std=0.1)
        self._watch()
        self.steps()  # compiles
        self.policy_s = self.total_s = 0.0

    def _watch(self) -> None:
        """Count the seconds of controller and choice of rebuilds."""
        memory, table = self.decoder.memory, self.decoder.table
        assert memory is not None
        for owner, name in ((memory, "append"), (memory, "scores"), (table, "rebuild_set")):
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, work: Callable[..., object]) -> Callable[..., object]:
        """Wrap a call so that its seconds add up."""

        def call(*arguments: object) -> object:
            start = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                self.policy_s += time.perf_counter() - start

        return call

    def steps(self) -> None:
        """Decode some tokens of every request."""
        start = time.perf_counter()
        for _ in range(_STEPS):
            self.decoder.feed(
                self.rows, list(self.rng.integers(0, 8192, (len(self.rows), 1)))
            ).argmax(-1)
        self.total_s += time.perf_counter() - start

    @property
    def controller_share(self) -> float:
        """Share of the steps' time that the controller took."""
        return self.policy_s / self.total_s

    @property
    def rebuilt_share(self) -> float:
        """Share of possible rebuilds that were used."""
        stats = self.decoder.stats()
        return stats.rebuilt / (stats.appended * max(self.decoder.policy.rebuild, 1))


def _full(model: Transformer, batch: int) -> tuple[Callable[[], object], str]:
    """Return steps of the engine's runner with every token cached, and its kernel's name."""
    blocks = _CONTEXT // 16 + 1
    config = SchedulerConfig(
        num_blocks=batch * blocks, max_model_len=_CONTEXT + 16, max_num_seqs=batch
    )
    runner = TorchRunner(model, config)
    runner.kv.normal_(std=0.1)
    requests = [
        Request(id=str(row), prompt=[0], params=SamplingParams(max_tokens=64, ignore_end=True))
        for row in range(batch)
    ]
    tables = np.arange(batch * blocks).reshape(batch, blocks)
    rng = np.random.default_rng(0)

    def steps() -> None:
        for step in range(_STEPS):
            position = _CONTEXT + step
            runner.execute(
                StepPlan(
                    request_ids=[item.id for item in requests],
                    num_decodes=batch,
                    token_ids=rng.integers(0, 8192, batch),
                    positions=np.full(batch, position),
                    slot_mapping=tables[:, position // 16] * 16 + position % 16,
                    query_lengths=np.ones(batch, dtype=np.int64),
                    context_lengths=np.full(batch, position + 1),
                    block_tables=tables,
                    sample_rows=np.arange(batch),
                    sampled=requests,
                    output_positions=np.full(batch, step),
                )
            )

    return steps, runner.kernel
