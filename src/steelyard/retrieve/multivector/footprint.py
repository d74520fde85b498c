"""Memory that searches with re-ranking add to a process, measured in one that does nothing else.

As a program: a file with queries, and the options as JSON; it prints bytes.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import BackendError
from steelyard.resident import resident_bytes
from steelyard.retrieve.multivector.reranker import PrefetchedReranker
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.opening import open_index

__all__ = ["main", "measure_footprint"]

_LIMIT_S = 600


def measure_footprint(
    store: Path,
    index: Path,
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
    *,
    k: int,
    weight: float = 1.0,
    **options: float,
) -> int:
    """Open a store and an index in a new process, search, and return what that added.

    Args:
        store: folder of the store.
        index: file of the index; mapped pages of it count, as searches touch them.
        texts: vectors of queries' texts [Q, D].
        tokens: vectors of their tokens.
        k: documents of each.
        weight: of the texts' vectors in a score.
        **options: `prefetch_step`, `rerank`, `depth` and `nprobe` of the reranker.

    Returns:
        Bytes that are resident after the searches and were not before anything was opened.

    Raises:
        BackendError: the process failed, or took more than ten minutes.
    """
    words = {"store": str(store), "index": str(index), "k": k, "weight": weight, **options}
    with tempfile.TemporaryDirectory() as folder:
        queries = Path(folder) / "queries.npz"
        named = {f"tokens{place}": item for place, item in enumerate(tokens)}
        np.savez(queries, texts=texts, **named)  # pyright: ignore[reportArgumentType]
        command = [sys.executable, "-m", __name__, str(queries), json.dumps(words)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=True
            )
            return int(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            told = getattr(error, "stderr", "") or str(error)
            raise BackendError(
                f"the memory of searches cannot be measured: {told.strip().splitlines()[-1:]}",
                hint="plan without --check",
            ) from error


def main(arguments: list[str]) -> int:
    """Search once to load everything, let go of it, open everything again, search, and print.

    Args:
        arguments: file with queries, and the options as JSON.

    Returns:
        0.
    """
    words: dict[str, Any] = json.loads(arguments[1])
    store, index = Path(words.pop("store")), Path(words.pop("index"))
    k = int(words.pop("k"))
    with np.load(arguments[0]) as data:
        texts = data["texts"]
        tokens = [data[f"tokens{place}"] for place in range(len(texts))]
    _search(store, index, texts[:1], tokens[:1], k, words).close()
    before = resident_bytes()
    held = _search(store, index, texts, tokens, k, words)
    sys.stdout.write(f"{resident_bytes() - before}\n")
    held.close()
    return 0


def _search(
    store: Path,
    index: Path,
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
    k: int,
    words: dict[str, Any],
) -> PrefetchedReranker:
    """Search with everything newly opened, and return what holds it."""
    reranker = PrefetchedReranker(open_index(index), MultiVectorStore.open(store), **words)
    for place, own in enumerate(tokens):
        reranker.search(texts[place : place + 1], [own], k)
    return reranker


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
