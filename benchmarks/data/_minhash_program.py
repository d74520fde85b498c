"""MinHash and LSH of a peer, timed in its own interpreter.

Its argument has {"peer": "rensa" or "datasketch"}. It first says its name. A line {"sets": PATH of
a JSON list of lists of texts, "num_perm": K, "bands": B, "rows": r, "pairs": pairs of sets} is
answered by seconds of the signatures, the estimated similarities of the pairs, and the bytes that
an LSH index of all sets takes.
"""

import gc
import json
import os
import sys
import time
import tracemalloc
from importlib.metadata import version
from pathlib import Path

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
PEER = json.loads(sys.argv[1])["peer"]


def rensa_answer(sets, given):
    """Sign with R-MinHash: one object a set, and the call that takes all sets."""
    import rensa  # pyright: ignore[reportMissingImports]

    begin = time.perf_counter()
    made = []
    for tokens in sets:
        one = rensa.RMinHash(num_perm=given["num_perm"], seed=42)
        one.update(tokens)
        made.append(one)
    middle = time.perf_counter()
    rensa.RMinHash.digest_matrix_from_token_sets(sets, given["num_perm"], 42)
    whole_s = time.perf_counter() - middle
    alike = [made[one].jaccard(made[other]) for one, other in given["pairs"]]
    return {"seconds": min(middle - begin, whole_s), "similarity": alike}


def datasketch_answer(sets, given):
    """Sign in batches, and insert all into an LSH index."""
    from datasketch import MinHash, MinHashLSH  # pyright: ignore[reportMissingImports]

    begin = time.perf_counter()
    made = MinHash.bulk([[token.encode() for token in tokens] for tokens in sets],
                        num_perm=given["num_perm"])  # fmt: skip
    seconds = time.perf_counter() - begin
    alike = [made[one].jaccard(made[other]) for one, other in given["pairs"]]
    gc.collect()
    tracemalloc.start()
    shape = (given["bands"], given["rows"])
    index = MinHashLSH(num_perm=given["num_perm"], params=shape)
    for number, one in enumerate(made):
        index.insert(number, one)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "seconds": seconds,
        "similarity": alike,
        "index_bytes": held,
        "keys": len(index.keys),
    }


channel.write(json.dumps({"name": f"{PEER} {version(PEER)}"}) + "\n")
channel.flush()
for line in sys.stdin:
    asked = json.loads(line)
    with Path(asked["sets"]).open() as listed:
        texts = json.load(listed)
    answer = rensa_answer if PEER == "rensa" else datasketch_answer
    channel.write(json.dumps(answer(texts, asked)) + "\n")
    channel.flush()
