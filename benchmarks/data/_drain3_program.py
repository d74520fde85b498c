"""Drain3, timed in its own interpreter.

It first says its name. A line {"lines": PATH, "masks": [regular expressions], "clusters": most
clusters, "similarity": st, "depth": depth} is answered by {"seconds": s, "clusters": count}: each
line of the file is added to a miner that begins empty.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from drain3 import TemplateMiner  # pyright: ignore[reportMissingImports]
from drain3.masking import MaskingInstruction  # pyright: ignore[reportMissingImports]
from drain3.template_miner_config import TemplateMinerConfig  # pyright: ignore[reportMissingImports]

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def timed(given):
    """Mine the lines of a file."""
    config = TemplateMinerConfig()
    config.drain_sim_th = given["similarity"]
    config.drain_depth = given["depth"]
    config.drain_max_clusters = given["clusters"]
    config.masking_instructions = [MaskingInstruction(mask, "*") for mask in given["masks"]]
    miner = TemplateMiner(config=config)
    lines = Path(given["lines"]).read_text().split("\n")
    begin = time.perf_counter()
    for line in lines:
        miner.add_log_message(line)
    return {
        "seconds": time.perf_counter() - begin,
        "clusters": len(miner.drain.clusters),
        "lines": len(lines),
    }


channel.write(json.dumps({"name": f"drain3 {version('drain3')}"}) + "\n")
channel.flush()
for line in sys.stdin:
    channel.write(json.dumps(timed(json.loads(line))) + "\n")
    channel.flush()
