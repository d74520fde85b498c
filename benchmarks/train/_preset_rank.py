"""One of several processes that spread a decoder; started as torchrun starts it.

`python -m benchmarks.train._preset_rank FILE STEPS P1A1-2 ...` trains by each preset in turn, here
with 2 processes along "model", and writes what it found to FILE.
"""

import json
import os
import sys
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from benchmarks.train._decoder import RandomTokens, decoder, shared_run

from steelyard.nn.transformer import build
from steelyard.train.launch import launched
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.partition_rules import Preset
from steelyard.train.reducer import Reducer
from steelyard.train.session import Session
from steelyard.train.trainer import TokenBatches, next_token_loss

__all__ = ["losses_and_held_bytes"]


def losses_and_held_bytes(steps: int, reducer: Reducer | None = None) -> tuple[list[float], int]:
    """Train alone or with others.

    Args:
        steps: how long.
        reducer: the others, and how the weights are spread.

    Returns:
        The losses, and the bytes of weights and moments that this process holds.
    """
    config = shared_run(decoder(64, 3, 1024), batch_size=4, steps=steps)
    model = build(config.architecture, seed=0)
    session = Session(
        model, next_token_loss, TokenBatches(config, RandomTokens(1024)), config, reducer=reducer
    )
    losses = [session.step()[0] for _ in range(steps)]
    moments = [
        value
        for optimizer in session.state.optimizers
        for state in optimizer.state.values()
        for value in state.values()
    ]
    held = (
        getattr(item, "to_local", lambda item=item: item)()
        for item in [*session.state.parameters.values(), *moments]
    )
    return losses, sum(item.numel() * item.element_size() for item in held)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    port = int(os.environ["MASTER_PORT"])
    for number, way in enumerate(sys.argv[3:]):
        # A group of its own for each: the one before may still be closing at its port.
        os.environ["MASTER_PORT"] = str(port + number)
        preset, _, model = way.partition("-")
        with launched(ParallelConfig(partition=cast(Preset, preset), model=int(model))) as reducer:
            found[preset] = losses_and_held_bytes(int(sys.argv[2]), reducer)
            if not reducer.everyone.rank:
                Path(sys.argv[1]).write_text(json.dumps(found))
            dist.barrier()
