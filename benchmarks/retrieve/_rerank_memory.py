"""Memory that re-ranking adds to a process, and what its reads fetch from the device.

As a program: READER STORE INDEX COUNT OUT; searches and prints memory and bytes as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._device_reads import device_read_bytes
from benchmarks.retrieve._token_documents import TokenDocuments
from benchmarks.retrieve._token_world import TokenWorld

from steelyard.retrieve.multivector import MultiVectorStore, PrefetchedReranker
from steelyard.retrieve.opening import open_index

_QUERIES = 100


def memory_checks(world: TokenWorld, folder: Path) -> list[Check]:
    """Compare the process that reads from the drive with one that holds everything."""
    told = {}
    for reader in ("threads", "memory"):
        command = [sys.executable, "-m", "benchmarks.retrieve._rerank_memory", reader]
        index = world.store.path.with_suffix(".index")
        out = folder / f"{reader}.npz"
        command += [str(world.store.path), str(index), str(world.made.count), str(out)]
        run = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        told[reader] = json.loads(run.stdout.splitlines()[-1])
    ours, whole = told["threads"], told["memory"]
    both = [np.load(folder / f"{reader}.npz") for reader in told]
    unlike = sum(int((both[0][name] != both[1][name]).sum()) for name in ("ids", "scores"))
    print(
        f"memory of {world.made.count:,} documents: {ours['added_bytes'] / 1e6:,.0f} MB, all in "
        f"memory {whole['added_bytes'] / 1e6:,.0f} MB; {ours['device_bytes'] / 1e6:,.1f} MB came "
        f"from the device by its counter, {ours['read_bytes'] / 1e6:,.1f} MB were asked for"
        f"{'; ' + ours['note'] if ours['note'] else ''}"
    )
    return [
        Check("2 answers unlike those from memory", float(unlike), 0.0, "lower"),
        Check(
            "2 memory over all in memory", ours["added_bytes"] / whole["added_bytes"], 0.2, "lower"
        ),
        Check(
            "2 bytes from the device over those asked for",
            ours["device_bytes"] / ours["read_bytes"],
            0.99,
            "higher",
        ),
    ]


def _main(reader: str, store_path: str, index_path: str, count: str, out: str) -> None:
    """Open everything, search, and say what it took."""
    queries = TokenDocuments(int(count)).queries(_QUERIES)
    _warm(Path(store_path), Path(index_path), queries)
    before = resident_bytes()
    store = MultiVectorStore.open(Path(store_path))
    index = open_index(Path(index_path))
    # Mapped arrays count as soon as they are touched; an index that serves is touched whole.
    for values in index.rows.columns.values():
        values.max()
    with PrefetchedReranker(index, store, reader=reader, rerank=128) as reranker:  # pyright: ignore[reportArgumentType]
        device = device_read_bytes()
        found = [
            reranker.search(queries.texts[place : place + 1], [tokens], 10)
            for place, tokens in enumerate(queries.tokens)
        ]
        device = device_read_bytes() - device
        added = resident_bytes() - before
    np.savez(
        out,
        ids=np.concatenate([item.ids for item in found]),
        scores=np.concatenate([item.scores for item in found]),
    )
    told = {
        "added_bytes": added,
        "device_bytes": device,
        "read_bytes": sum(item.trace.read_bytes for item in found),
        "note": found[0].trace.note,
    }
    print(json.dumps(told))


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory, mapped pages among them."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _warm(store: Path, index: Path, queries) -> None:
    """Load kernels and libraries with one search, and let go of everything again."""
    opened = MultiVectorStore.open(store)
    with PrefetchedReranker(open_index(index), opened, reader="mmap", rerank=8) as reranker:
        reranker.search(queries.texts[:1], queries.tokens[:1], 5)


if __name__ == "__main__":
    _main(*sys.argv[1:])
