"""One of several processes that train the same decoder, spread in several ways.

`python partition_child.py FOLDER NAMES` reads `wanted.json` of FOLDER and, for each of the names
such as "P2A1-1" (preset and processes along "model"), writes the losses; "P2A1-1@25" begins with
step 25 of the run in FOLDER/alone.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from sources import MarkovTokens

from steelyard.config import load
from steelyard.train import TrainConfig
from steelyard.train.launch import launched
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.trainer import train

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    config, source = load(folder / "wanted.json", TrainConfig), MarkovTokens()
    losses = {}
    port = int(os.environ["MASTER_PORT"])
    for number, name in enumerate(sys.argv[2].split(",")):
        # A group of its own for each: the one before may still be closing at its port.
        os.environ["MASTER_PORT"] = str(port + number)
        way, _, step = name.partition("@")
        preset, _, model = way.partition("-")
        start = folder / "alone" / f"step-{int(step):08d}.safetensors" if step else None
        parallel = ParallelConfig(partition=preset, model=int(model))
        with launched(parallel) as reducer:
            found = train(
                replace(config, parallel=parallel),
                source,
                folder / name,
                reducer=reducer,
                start_from=start,
            )
            losses[name] = found.losses, found.eval_loss
            if not reducer.everyone.rank:
                (folder / "losses.json").write_text(json.dumps(losses))
            dist.barrier()
