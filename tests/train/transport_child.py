"""One process that sums vectors every way; `python transport_child.py FOLDER`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

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
    torch.save(found, Path(sys.argv[1]) / f"{rank}.pt")
    dist.destroy_process_group()
