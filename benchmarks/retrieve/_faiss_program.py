"""faiss on one thread, timed in its own interpreter, one query at a time.

It first says its name. {"load": PATH} takes an .npz file with vectors, queries, the centers of the
cells and the centers of the codes, and builds indexes with exactly these. {"index": NAME, "nprobe":
n, "factor": f, "k": k, "ids": PATH} searches each query by itself, writes the numbers found and is
answered by {"seconds": s}.
"""

import json
import os
import sys
import time

import faiss  # pyright: ignore[reportMissingImports]
import numpy as np

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
faiss.omp_set_num_threads(1)
state = {}


def answer(value):
    """Write one line."""
    channel.write(json.dumps(value) + "\n")
    channel.flush()


def quantizer(centers):
    """Return the cells' centers as an index of their own."""
    made = faiss.IndexFlatL2(centers.shape[1])
    made.add(centers)
    return made


def load(path):
    """Build the indexes."""
    data = np.load(path)
    vectors, centers, codes = (data[name] for name in ("vectors", "centers", "codes"))
    vectors = vectors.astype(np.float32)
    dim, cells = vectors.shape[1], len(centers)
    state["queries"] = data["queries"].astype(np.float32)
    state["keep"] = [quantizer(centers) for _ in range(3)]
    first, second, third = state["keep"]
    flat = faiss.IndexIVFFlat(first, dim, cells)
    flat.is_trained = True
    pq = faiss.IndexIVFPQ(second, dim, cells, len(codes), 8)
    faiss.copy_array_to_vector(np.ascontiguousarray(codes).ravel(), pq.pq.centroids)
    pq.is_trained = True
    pq.precompute_table()
    fast = faiss.IndexIVFPQFastScan(third, dim, cells, 64, 4)
    fast.train(vectors[:65_536])
    for index in (flat, pq, fast):
        index.add(vectors)
    state["indexes"] = {
        "ivf": flat,
        "ivfpq": pq,
        "ivfpq, again": faiss.IndexRefineFlat(pq, faiss.swig_ptr(vectors)),
        "fast scan, again": faiss.IndexRefineFlat(fast, faiss.swig_ptr(vectors)),
    }
    state["vectors"] = vectors
    return {"loaded": len(vectors)}


def search(given):
    """Search every query by itself."""
    index = state["indexes"][given["index"]]
    inner = index
    if given["index"].endswith("again"):
        inner = faiss.downcast_index(index.base_index)
        index.k_factor = given["factor"]
    inner.nprobe = given["nprobe"]
    queries = state["queries"]
    index.search(queries[:1], given["k"])
    begin = time.perf_counter()
    found = [index.search(query[None], given["k"])[1] for query in queries]
    seconds = time.perf_counter() - begin
    np.save(given["ids"], np.concatenate(found))
    return {"seconds": seconds}


answer({"name": f"faiss {faiss.__version__}"})
for line in sys.stdin:
    told = json.loads(line)
    answer(load(told["load"]) if "load" in told else search(told))
