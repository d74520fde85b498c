"""One process of those that time their sums; started as torchrun starts it.

`python -m benchmarks.train._overlap_rank FILE overlap STEPS` trains over an emulated link of
1 Gbit/s, in turn without sums, with sums after the backward pass and with sums during it;
`... FILE bandwidth ROUNDS` sums 25 MB over the link there is, by our code and by the library.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build
from steelyard.train import TrainConfig
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.process_group import GroupReducer
from steelyard.train.session import Session
from steelyard.train.trainer import TokenBatches, next_token_loss
from steelyard.train.transport.collectives import sum_over
from steelyard.train.transport.config import AllReduce, LinkSpeed
from steelyard.train.transport.link import GroupTransport

__all__ = ["Noise"]

_WAYS: tuple[AllReduce, ...] = ("halving-doubling", "ring", "tree", "built-in")
_MEGABYTES = 25
_COLD_STEPS = 2


class Noise:
    """Uniform tokens in memory."""

    bytes_per_token = 1.0
    tokenizer = None
    vocab_size = 1024
    num_tokens = 1 << 16

    def __init__(self) -> None:
        self._tokens = np.random.default_rng(0).integers(0, self.vocab_size, self.num_tokens)
        self.heldout_tokens = self._tokens[:1024]

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int) -> np.ndarray:
        """Cut consecutive windows [B, T + 1]."""
        size = batch_size * (sequence_length + 1)
        start = index * size % (self.num_tokens - size)
        return self._tokens[start : start + size].reshape(batch_size, sequence_length + 1)


class _Apart(GroupReducer):
    """Processes that compute side by side and leave their gradients unsummed."""

    def sum_gradients(self, parameters: Sequence[nn.Parameter], /) -> None:
        """Leave the gradients as they are."""


def _config(steps: int) -> TrainConfig:
    """Make the run: 5 million weights, 1024 tokens a step in each of two processes."""
    architecture = Architecture(
        name="h256-l6",
        hidden_size=256,
        num_layers=6,
        num_heads=8,
        num_kv_heads=8,
        head_dim=32,
        intermediate_size=688,
        vocab_size=Noise.vocab_size,
        max_positions=128,
    )
    return TrainConfig(
        architecture=architecture,
        steps=steps,
        batch_size=16,
        accumulation=2,
        sequence_length=128,
        learning_rate=1e-3,
        threads=1,
    )


def _overlap(steps: int) -> dict[str, object]:
    """Time steps of the three kinds in turn, and compare the losses of those that sum."""
    config, link = _config(steps + _COLD_STEPS), LinkSpeed()
    reducers: dict[str, GroupReducer] = {
        "apart": _Apart(ParallelConfig(overlap=False)),
        "after": GroupReducer(ParallelConfig(overlap=False, link=link)),
        "during": GroupReducer(ParallelConfig(link=link)),
    }
    sessions = {
        name: Session(
            build(config.architecture, seed=0),
            next_token_loss,
            TokenBatches(config, Noise()),
            config,
            reducer=reducer,
        )
        for name, reducer in reducers.items()
    }
    for _ in range(config.steps):
        for session in sessions.values():
            session.step()
    seconds = {
        name: session.history.step_times_s[_COLD_STEPS:] for name, session in sessions.items()
    }
    losses = [sessions[name].history.losses for name in ("after", "during")]
    return {"seconds": seconds, "equal": losses[0] == losses[1]}


def _bandwidth(rounds: int) -> dict[str, object]:
    """Time sums of 25 MB, each way in turn."""
    transport = GroupTransport()
    values = torch.ones(_MEGABYTES * 10**6 // 4)
    seconds: dict[str, list[float]] = {how: [] for how in _WAYS}
    for _ in range(rounds):
        for how, kept in seconds.items():
            values.fill_(1.0)
            dist.barrier()
            start = time.perf_counter()
            sum_over(transport, values, how)  # pyright: ignore[reportArgumentType]
            dist.barrier()
            kept.append(time.perf_counter() - start)
    return {"seconds": seconds}


_KINDS: dict[str, Callable[[int], dict[str, object]]] = {
    "overlap": _overlap,
    "bandwidth": _bandwidth,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = _KINDS[sys.argv[2]](int(sys.argv[3]))
    if not dist.get_rank():
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.destroy_process_group()
