"""Speed of vector indexes on one thread, one query at a time, beside faiss in the same run.

Both search the same cells with the same codes, so the candidates must be equal. 1 compares codes, 2
whole vectors, 3 the best of each library at a recall: 10 of the 10 nearest found to .8 and .95.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import peers
from benchmarks.common import Check, ratio
from benchmarks.retrieve._sift_like import sift_like
from benchmarks.serve._json_process import JsonProcess, peer_environment
from numpy.typing import NDArray

from steelyard.errors import BackendError
from steelyard.parallel import torch_threads
from steelyard.retrieve import IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.tuning import recall_at

PAPER = ["39-fanns"]

_K, _QUERIES = 10, 200
_GOALS = (0.8, 0.95)
_PROBES = (1, 2, 4, 8, 16, 32, 64)
_FACTORS = (2, 4, 8, 16)


def run(quick: bool) -> list[Check]:
    """Build the indexes once, give the same centers to faiss, and search in turn."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    count, cells, rounds = (100_000, 512, 3) if quick else (1_000_000, 4096, 5)
    made = sift_like(count + _QUERIES)
    vectors, queries = made[:count], made[count:].astype(np.float32)
    with torch_threads(1), tempfile.TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        own = _built(vectors, cells)
        print(f"{count:,} vectors in {cells} cells, built in {time.perf_counter() - began_s:.0f} s")
        truth = _truth(vectors, queries)
        try:
            peer = _peer(Path(folder), vectors, queries, own["ivfpq"])
        except BackendError as error:
            print(f"left out: {error}; {error.hint}")
            return []
        sides = _Sides(own, peer, queries, truth, Path(folder) / "ids.npy")
        return [*_same_work(sides, rounds), *_frontiers(sides, rounds)]


def _built(vectors: NDArray[np.uint8], cells: int) -> dict[str, Any]:
    """Build one index of whole vectors and one of codes, with the same cells."""
    sample = vectors[:: max(1, len(vectors) // (64 * cells))]
    codes = IVFPQ(128, nlist=cells, rerank=1)
    codes.train(sample)
    codes.add(vectors)
    whole = IVFFlat(128, nlist=cells)
    whole.centers = codes.centers
    whole.add(vectors)
    fast = IVFFastScan(128, nlist=cells)
    fast.centers = codes.centers
    fast.codec.train_codes(sample.astype(np.float32), fast.centers, seed=0)
    fast.add(vectors)
    return {"ivfpq": codes, "ivf": whole, "fast scan": fast}


def _truth(vectors: NDArray[np.uint8], queries: NDArray[np.float32]) -> NDArray[np.int64]:
    exact = IVFFlat(128, store="uint8")
    exact.add(vectors)
    return exact.search(queries, _K).ids


def _peer(
    folder: Path, vectors: NDArray[np.uint8], queries: NDArray[np.float32], codes: IVFPQ
) -> JsonProcess:
    """Start faiss with the same centers."""
    hint = "python -m benchmarks peers install faiss"
    program = str(Path(__file__).with_name("_faiss_program.py"))
    peer = JsonProcess([str(peers.python("faiss")), program], {}, peer_environment(), hint)
    path = folder / "data.npz"
    centers = {"centers": codes.centers, "codes": codes.codec.quantizer.centers}
    np.savez(path, vectors=vectors, queries=queries, **centers)
    peer.ask({"load": str(path)})
    return peer


class _Sides:
    """Both libraries, asked in the same words."""

    def __init__(
        self,
        own: dict[str, Any],
        peer: JsonProcess,
        queries: NDArray[np.float32],
        truth: NDArray[np.int64],
        ids: Path,
    ) -> None:
        self.own, self.peer, self.queries, self.truth, self.ids = own, peer, queries, truth, ids

    def ours(self, name: str, nprobe: int, factor: int) -> tuple[float, NDArray[np.int64]]:
        """Search every query by itself; return seconds and numbers."""
        index = self.own[name.removesuffix(", again")]
        more = {} if name == "ivf" else {"rerank": factor if name.endswith("again") else 0}
        begin = time.perf_counter()
        found = [index.search(query, _K, nprobe=nprobe, **more).ids for query in self.queries]
        return time.perf_counter() - begin, np.concatenate(found)

    def theirs(self, name: str, nprobe: int, factor: int) -> tuple[float, NDArray[np.int64]]:
        """Ask faiss for the same."""
        given = {"index": name, "nprobe": nprobe, "factor": factor, "k": _K, "ids": str(self.ids)}
        told = self.peer.ask(given)
        return float(told["seconds"]), np.load(self.ids)

    def recall(self, ids: NDArray[np.int64]) -> float:
        """Return the share of the true neighbours among numbers."""
        return float(recall_at(ids, self.truth).mean())


def _same_work(sides: _Sides, rounds: int) -> list[Check]:
    """Search the same cells with the same codes."""
    checks = []
    for number, name in (("1", "ivfpq"), ("2", "ivf")):
        sides.ours(name, 16, 0)
        pairs = [(sides.ours(name, 16, 0), sides.theirs(name, 16, 0)) for _ in range(rounds)]
        spread = ratio([theirs[0] for _, theirs in pairs], [ours[0] for ours, _ in pairs])
        found, other = pairs[0][0][1], pairs[0][1][1]
        same = float(recall_at(found, other).mean())
        print(
            f"{name}, 16 cells: speed over faiss {spread.median:.2f} ({spread.low:.2f} to "
            f"{spread.high:.2f}), {_QUERIES / pairs[0][0][0]:,.0f} queries/s; same candidates "
            f"{same:.4f}, recall {sides.recall(found):.3f}"
        )
        checks += [
            Check(f"{number} speed of {name} over faiss", spread.median, 1.0, "higher"),
            Check(f"{number} candidates of {name} that are equal", same, 0.999, "higher"),
        ]
    return checks


def _ways(kinds: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """List the settings of some kinds of index: cells, and candidates that are compared again."""
    for kind in kinds:
        for nprobe in _PROBES:
            for factor in _FACTORS if kind.endswith("again") else (0,):
                yield kind, nprobe, factor


def _frontiers(sides: _Sides, rounds: int) -> list[Check]:
    """Take the fastest setting of each library that reaches a recall, and time both in turn."""
    kinds = ("ivf", "ivfpq, again", "fast scan, again")
    asks = {"ours": sides.ours, "faiss": sides.theirs}
    tried: dict[str, list[tuple[float, float, tuple[str, int, int]]]] = {}
    for side, ask in asks.items():
        tried[side] = []
        for way in _ways(kinds):
            ask(*way)
            seconds, ids = ask(*way)
            tried[side].append((seconds, sides.recall(ids), way))
    for side, found in tried.items():
        for kind in kinds:
            reached = [item for item in found if item[2][0] == kind and item[1] >= _GOALS[-1]]
            told = min(reached, default=None)
            print(f"{side}, {kind} at {_GOALS[-1]:g}: {told and (_QUERIES / told[0], *told[1:])}")
    checks = []
    for goal in _GOALS:
        best = {
            side: min((item for item in found if item[1] >= goal), default=None)
            for side, found in tried.items()
        }
        if best["ours"] is None or best["faiss"] is None:
            checks.append(
                Check(f"3 speed over faiss's best at recall {goal:g}", 0.0, 0.8, "higher")
            )
            continue
        own_way, other_way = best["ours"][2], best["faiss"][2]
        pairs = [(sides.ours(*own_way)[0], sides.theirs(*other_way)[0]) for _ in range(rounds)]
        spread = ratio([other for _, other in pairs], [own for own, _ in pairs])
        print(
            f"recall {goal:g}: ours {own_way} ({best['ours'][1]:.3f}), faiss {other_way} "
            f"({best['faiss'][1]:.3f}): {spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"
        )
        name = f"3 speed over faiss's best at recall {goal:g}"
        checks.append(Check(name, spread.median, 0.8, "higher"))
    return checks
