"""fast-plaid under a limit of memory: builds an index of given tokens, searches, says what it took.

Arguments: .npz file with tokens, lengths, queries and sources; folder for the index; most bytes.
"""

import json
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from fast_plaid import search  # pyright: ignore[reportMissingImports]
from fast_plaid.search import fast_plaid as creating  # pyright: ignore[reportMissingImports]

kmeans, kmeans_s = creating.compute_kmeans, [0.0]


def timed_kmeans(*values, **words):
    """Find centroids as fast-plaid does, and keep how long that took."""
    begin_s = time.perf_counter()
    found = kmeans(*values, **words)
    kmeans_s[0] = time.perf_counter() - begin_s
    return found


def peak_bytes():
    """Return the most memory that was resident; what `getrusage` says may be the caller's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    most = int(sys.argv[3])
    # Of the data segment: what a library maps without using it does not count.
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    torch.set_num_threads(2)
    data = np.load(sys.argv[1])
    tokens = torch.from_numpy(data["tokens"])
    documents = list(torch.split(tokens, data["lengths"].tolist()))
    begin_s = time.perf_counter()
    creating.compute_kmeans = timed_kmeans
    index = search.FastPlaid(index=sys.argv[2], device="cpu")
    index.create(documents_embeddings=documents)
    took_s = time.perf_counter() - begin_s
    built = peak_bytes()
    found = index.search(queries_embeddings=torch.from_numpy(data["queries"]), top_k=1)
    firsts = np.array([row[0][0] for row in found])
    print(
        json.dumps(
            {
                "version": version("fast-plaid"),
                "seconds": took_s,
                "kmeans_s": kmeans_s[0],
                "processor_s": time.process_time(),
                "built": built,
                "searching": peak_bytes(),
                "right": float((firsts == data["sources"]).mean()),
            }
        )
    )
