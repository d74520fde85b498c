"""One process that sums vectors every way, and trains; `python transport_child.py FOLDER`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from sources import MarkovTokens

from steelyard.config import load
from steelyard.train import TrainConfig
from steelyard.train.process_group import GroupReducer
from steelyard.train.trainer import train
from steelyard.train.transport.collectives import sum_over
from steelyard.train.transport.config import LinkSpeed
from steelyard.train.transport.link import GroupTransport
from steelyard.train.transport.shaper import Shaper

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = {}
    for how in ("halving-doubling", "ring", "tree", "built-in"):
        transport = GroupTransport(shaper=Shaper(LinkSpeed(bits_per_s=1e9)))
        values = torch.randn(960, generator=torch.Generator().manual_seed(rank))
        sum_over(transport, values, how)
        found[how] = values, transport.sent_bytes
    folder = Path(sys.argv[1])
    torch.save(found, folder / f"{rank}.pt")
    config = load(folder / "wanted.json", TrainConfig)
    reducer = GroupReducer(config.parallel)
    train(config, MarkovTokens(), folder / "run", reducer=reducer)
    dist.destroy_process_group()
