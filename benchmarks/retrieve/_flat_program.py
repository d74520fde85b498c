"""faiss's IndexFlatIP, timed in its own interpreter.

It first says its name. {"load": PATH, "count": n, "asked": q, "threads": t} takes an .npy file of
vectors whose last rows are the queries. {"search": PATH, "k": k} searches all queries at once,
writes the numbers found and is answered by {"seconds": s, "bytes": of the index}.
"""

import json
import os
import sys
import time

import faiss  # pyright: ignore[reportMissingImports]
import numpy as np

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
state = {}


def answer(value):
    """Write one line."""
    channel.write(json.dumps(value) + "\n")
    channel.flush()


def load(given):
    """Build the index."""
    faiss.omp_set_num_threads(given["threads"])
    made = np.load(given["load"], mmap_mode="r")
    index = faiss.IndexFlatIP(made.shape[1])
    for first in range(0, given["count"], 100_000):
        index.add(made[first : min(first + 100_000, given["count"])].astype(np.float32))
    state["index"] = index
    state["queries"] = made[given["count"] :].astype(np.float32)
    return {"loaded": index.ntotal}


def search(given):
    """Search all queries at once."""
    index = state["index"]
    begin = time.perf_counter()
    found = index.search(state["queries"], given["k"])[1]
    seconds = time.perf_counter() - begin
    np.save(given["search"], found)
    return {"seconds": seconds, "bytes": index.ntotal * index.d * 4}


answer({"name": f"faiss {faiss.__version__}"})
for line in sys.stdin:
    told = json.loads(line)
    answer(load(told) if "load" in told else search(told))
