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

import torch
import torch.distributed as dist
from benchmarks.train._decoder import RandomTokens, decoder, shared_run
from torch import nn

from steelyard.nn.transformer import build
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.process_group import GroupReducer
from steelyard.train.session import Session
from steelyard.train.trainer import TokenBatches, next_token_loss
from steelyard.train.transport.collectives import sum_over
from steelyard.train.transport.config import AllReduce, LinkSpeed
from steelyard.train.transport.link import GroupTransport

__all__: list[str] = []

_WAYS: tuple[AllReduce, ...] = ("halving-doubling", "ring", "tree", "built-in")
_MEGABYTES = 25
_COLD_STEPS = 2


class _Apart(GroupReducer):
    """Processes that compute side by side and leave their gradients unsummed."""

    def sum_gradients(self, parameters: Sequence[nn.Parameter], /) -> None:
        """Leave the gradients as they are."""


def _overlap(steps: int) -> dict[str, object]:
    """Time steps of the three kinds in turn, and compare the losses of those that sum."""
    # 5 million weights, and 1024 tokens a step in each of two processes.
    config = shared_run(decoder(256, 6, 1024), batch_size=16, steps=steps + _COLD_STEPS)
    link, source = LinkSpeed(), RandomTokens(1024)
    reducers: dict[str, GroupReducer] = {
        "apart": _Apart(ParallelConfig(overlap=False)),
        "after": GroupReducer(ParallelConfig(overlap=False, link=link)),
        "during": GroupReducer(ParallelConfig(link=link)),
    }
    sessions = {
        name: Session(
            build(config.architecture, seed=0),
            next_token_loss,
            TokenBatches(config, source),
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
