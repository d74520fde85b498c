"""The thousand largest inner products of a million vectors, exactly, beside faiss on two threads.

Ours keeps a byte of each number and maps float16 vectors from a file; faiss's IndexFlatIP keeps
float32. Both answer the same batch of queries, in turn in one run. The truth is in float64.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks import peers
from benchmarks.common import Check, ratio
from benchmarks.serve._json_process import JsonProcess, peer_environment
from numpy.typing import NDArray

from steelyard.errors import BackendError
from steelyard.retrieve.exact import ExactSearch
from steelyard.retrieve.tuning import recall_at

PAPER = ["06-massiveds"]

_K, _DIM, _THREADS = 1000, 256, 2
_BLOCK = 100_000


def run(quick: bool) -> list[Check]:
    """Write vectors, search them by both, and compare with the truth."""
    count, asked, rounds = (50_000, 64, 3) if quick else (1_000_000, 256, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = _written(folder, count + asked)
        made = np.load(path, mmap_mode="r")
        vectors, queries = made[:count], np.asarray(made[count:], np.float32)
        own_bytes = _anonymous_bytes()
        index = ExactSearch(vectors)
        own_bytes = max(_anonymous_bytes() - own_bytes, sum(index.memory_bytes().values()))
        try:
            peer = _peer(path, count, asked)
        except BackendError as error:
            print(f"left out: {error}; {error.hint}")
            return []
        told = peer.ask({"search": str(folder / "ids.npy"), "k": _K})
        hits = index.search(queries, _K, threads=_THREADS)
        pairs = []
        for _ in range(rounds):
            began_s = time.perf_counter()
            index.search(queries, _K, threads=_THREADS)
            took_s = time.perf_counter() - began_s
            told = peer.ask({"search": str(folder / "ids.npy"), "k": _K})
            pairs.append((took_s, float(told["seconds"])))
        truth = _truth(vectors, queries)
        recall = float(recall_at(hits.ids, truth).mean())
        other = float(recall_at(np.load(folder / "ids.npy"), truth).mean())
    speed = ratio([theirs for _, theirs in pairs], [ours for ours, _ in pairs])
    share = own_bytes / float(told["bytes"])
    print(
        f"{peer.name}: {speed.median:.2f} ({speed.low:.2f} to {speed.high:.2f}) of its speed, "
        f"{asked / np.median([ours for ours, _ in pairs]):,.0f} queries/s; recall {recall:.6f}, "
        f"faiss {other:.6f}; memory {own_bytes / 1e6:,.0f} of {told['bytes'] / 1e6:,.0f} MB; "
        f"{hits.stats.reranked / asked:,.0f} vectors compared a query"
    )
    return [
        Check("1 speed over faiss", speed.median, 1.0, "higher"),
        Check("1 memory over faiss's", share, 0.5, "lower"),
        Check("1 recall", recall, 1.0, "higher"),
    ]


def _written(folder: Path, count: int) -> Path:
    """Write clustered vectors of length 1 as float16, as those of encoders are."""
    rng = np.random.default_rng(0)
    middles = rng.normal(size=(2000, _DIM)).astype(np.float32)
    path = folder / "vectors.npy"
    made = np.lib.format.open_memmap(path, "w+", np.float16, (count, _DIM))
    for first in range(0, count, _BLOCK):
        rows = min(_BLOCK, count - first)
        drawn = middles[rng.integers(0, len(middles), rows)]
        drawn = drawn + rng.normal(size=drawn.shape).astype(np.float32)
        made[first : first + rows] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    made.flush()
    return path


def _truth(vectors: NDArray[np.float16], queries: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the largest products in float64, of equal ones the smaller number."""
    best = np.full((len(queries), _K), -np.inf)
    ids = np.zeros((len(queries), _K), np.int64)
    for first in range(0, len(vectors), _BLOCK):
        part = np.asarray(vectors[first : first + _BLOCK], np.float64)
        found = queries.astype(np.float64) @ part.T
        take = np.argpartition(-found, min(_K, found.shape[1] - 1), axis=1)[:, :_K]
        values = np.concatenate([best, np.take_along_axis(found, take, axis=1)], axis=1)
        numbers = np.concatenate([ids, take + first], axis=1)
        order = np.lexsort((numbers, -values), axis=1)[:, :_K]
        best, ids = (np.take_along_axis(x, order, axis=1) for x in (values, numbers))
    return ids


def _anonymous_bytes() -> int:
    """Return the memory of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def _peer(path: Path, count: int, asked: int) -> JsonProcess:
    """Start faiss with the same vectors."""
    hint = "python -m benchmarks peers install faiss"
    program = str(Path(__file__).with_name("_flat_program.py"))
    peer = JsonProcess([str(peers.python("faiss")), program], {}, peer_environment(), hint)
    peer.ask({"load": str(path), "count": count, "asked": asked, "threads": _THREADS})
    return peer
