"""fast-plaid beside our store: memory to build and to search, in environments of their own."""

import json
import math
import subprocess
import sys
from pathlib import Path

from benchmarks import peers
from benchmarks.common import Check

from steelyard.errors import BackendError

_MOST_BYTES = 8 * 2**30
_TOKENS = 48
"""Of a document, in the mean."""
_OURS = """
import json, sys, time
from pathlib import Path
import numpy as np
from benchmarks.retrieve._token_documents import TEXT_DIM, TokenDocuments
from steelyard.resident import peak_resident_bytes
from steelyard.retrieve import IVFFlat
from steelyard.retrieve.multivector import MultiVectorStore, PrefetchedReranker
count, folder = int(sys.argv[1]), Path(sys.argv[2])
made = TokenDocuments(count)
begin_s = time.perf_counter()
store = MultiVectorStore.build(folder / "ours", made.stream)
took_s = time.perf_counter() - begin_s
built = peak_resident_bytes()
cells = max(16, round(2 * count**0.5))
index = IVFFlat(TEXT_DIM, nlist=cells, nprobe=max(1, cells // 8), metric="ip")
texts = np.concatenate(list(made.texts()))
index.train(texts[: 64 * cells])
index.add(texts)
queries = made.queries(50, seed=7)
with PrefetchedReranker(index, store, rerank=128) as reranker:
    found = [
        reranker.search(queries.texts[n : n + 1], [own], 1).ids[0, 0]
        for n, own in enumerate(queries.tokens)
    ]
peak = peak_resident_bytes()
print(json.dumps({
    "built": built, "peak": peak, "seconds": took_s,
    "right": float((found == queries.sources).mean()),
}))
"""


def peer_checks(folder: Path, counts: tuple[int, ...], most_s: float) -> list[Check]:
    """Build the largest made collection that fast-plaid completes in 8 GiB and a time, and ours.

    Its time is foretold by a build of 2,000 documents: it compares each token with each center, of
    which there are more the more tokens there are. So no time goes into one that would not end.

    Args:
        folder: where.
        counts: documents to choose from, ascending; with the first alone nothing is foretold.
        most_s: seconds that a build may take.

    Returns:
        The checks; none where the peer is not installed or completes none.
    """
    try:
        python = str(peers.python("fast-plaid"))
    except BackendError as error:
        print(f"fast-plaid left out: {error}; {error.hint}")
        return []
    best = counts[0], _fast_plaid(python, counts[0], folder, most_s)
    for count in counts[:0:-1]:
        if best[1] is None:
            break
        told_s = best[1]["seconds"] * _work(count) / _work(best[0])
        if told_s <= most_s:
            # A quarter more: a foretold time is no promise.
            found = _fast_plaid(python, count, folder, 1.25 * most_s)
            if found is not None:
                best = count, found
                break
        print(f"fast-plaid: {count:,} documents would take {told_s:,.0f} s, {most_s:,.0f} allowed")
    count, theirs = best
    if theirs is None:
        return []
    command = [sys.executable, "-c", _OURS, str(count), str(folder)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    ours = json.loads(run.stdout.splitlines()[-1])
    print(
        f"{count:,} documents of {counts}: fast-plaid {theirs['version']} builds with "
        f"{theirs['built'] / 1e6:,.0f} MB in {theirs['seconds']:.0f} s, of which centers took "
        f"{theirs['kmeans_s']:.0f} ({theirs['processor_s']:.0f} s of processors), searches with "
        f"{theirs['searching'] / 1e6:,.0f} MB, {theirs['right']:.0%} of sources found first; ours "
        f"builds with {ours['built'] / 1e6:,.0f} MB in {ours['seconds']:.0f} s, with the index "
        f"{ours['peak'] / 1e6:,.0f} MB, {ours['right']:.0%}"
    )
    return [
        Check(
            "2 memory to build, fast-plaid's over ours",
            theirs["built"] / ours["built"],
            1.0,
            "higher",
        ),
        Check(
            "2 sources found first, ours less theirs",
            ours["right"] - theirs["right"],
            0.0,
            "higher",
        ),
    ]


def _work(count: int) -> float:
    """Return tokens times centers: as many as the power of two below 16 roots of the tokens."""
    tokens = count * _TOKENS
    return tokens * 2.0 ** math.floor(math.log2(16 * tokens**0.5))


def _fast_plaid(python: str, count: int, folder: Path, most_s: float) -> dict | None:
    """Run the peer under its limits; None where it does not end well."""
    data = folder / f"tokens-{count}.npz"
    code = (
        "import sys, numpy as np; from benchmarks.retrieve._token_documents import TokenDocuments\n"
        "made = TokenDocuments(int(sys.argv[1]))\n"
        "parts = [made.batch(first) for first in range(0, made.count, 512)]\n"
        "queries = made.queries(50, seed=7)\n"
        "np.savez(sys.argv[2], tokens=np.concatenate([part[1] for part in parts]).astype('f2'),\n"
        "    lengths=np.concatenate([np.diff(part[2]) for part in parts]),\n"
        "    queries=np.stack(queries.tokens), sources=queries.sources)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(count), str(data)], check=True)
    program = Path(__file__).parent / "_fast_plaid_program.py"
    command = [python, str(program), str(data), str(folder / f"plaid-{count}"), str(_MOST_BYTES)]
    try:
        run = subprocess.run(command, capture_output=True, check=False, text=True, timeout=most_s)
    except subprocess.TimeoutExpired:
        print(f"fast-plaid took more than {most_s:,.0f} s for {count:,} documents")
        return None
    finally:
        data.unlink()
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not lines:
        print(run.stderr.strip().splitlines()[-1:] or "no word from fast-plaid")
        return None
    return json.loads(lines[-1])
