"""Apache's sketches, timed in their own interpreter.

It first says its name. A line {"values": PATH of an .npy file of numbers, "k": k, "precision": p}
is answered by {"quantiles_s": seconds, "distinct_s": seconds, "distinct": estimate, "median":
estimate}.
"""

import json
import os
import sys
import time
from importlib.metadata import version

import numpy as np
from datasketches import hll_sketch, kll_doubles_sketch  # pyright: ignore[reportMissingImports]

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def timed(given):
    """Feed both sketches and time each."""
    values = np.load(given["values"])
    begin = time.perf_counter()
    quantiles = kll_doubles_sketch(given["k"])
    quantiles.update(values)
    middle = time.perf_counter()
    distinct = hll_sketch(given["precision"])
    # Only single values can be given to it.
    listed = values.tolist()
    listed_s = time.perf_counter()
    for value in listed:
        distinct.update(value)
    return {
        "quantiles_s": middle - begin,
        "distinct_s": time.perf_counter() - listed_s,
        "distinct": distinct.get_estimate(),
        "median": quantiles.get_quantile(0.5),
    }


channel.write(json.dumps({"name": f"datasketches {version('datasketches')}"}) + "\n")
channel.flush()
for line in sys.stdin:
    channel.write(json.dumps(timed(json.loads(line))) + "\n")
    channel.flush()
